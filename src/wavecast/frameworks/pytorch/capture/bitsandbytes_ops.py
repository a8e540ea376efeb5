"""bitsandbytes while tracing: it is imported as without a GPU, and its ops run as on CUDA.

bitsandbytes loads a CUDA library when it is imported and CUDA is available, which a machine without
a GPU cannot do. Its ops have fake versions; those that CUDA builds from other ops are taken apart
here as in `bitsandbytes/backends/cuda/ops.py` and `backends/default/ops.py` (release 0.50).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.replacements import replacing

_NAME = "bitsandbytes"
_FUNCTIONS = "bitsandbytes.functional"
_LOG = logging.getLogger(_NAME)

LARGEST_FUSED = 512
"""Up to this many rows, a matmul with a 4-bit weight counts as one fused kernel. On CUDA the limit
depends on the GPU and the shape; for most large weights it lies between 32 and 512."""


@contextmanager
def bitsandbytes_on_cuda(assumptions: Assumptions) -> Iterator[None]:
    """Let the block import and use bitsandbytes as on a machine with a CUDA GPU."""
    patches = _Patches(assumptions)
    finder = _Finder(patches.apply)
    sys.meta_path.insert(0, finder)
    try:
        if _NAME in sys.modules:
            patches.apply()
        yield
    finally:
        sys.meta_path.remove(finder)
        patches.undo()


class _Finder(importlib.abc.MetaPathFinder):
    """Imports bitsandbytes with the torch that was there before tracing began."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._before = (
            (torch.cuda, {"is_available": torch.cuda.is_available}),
            (torch, {"compile": torch.compile}),
        )

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The spec of bitsandbytes, whose loader imports it in this way. None for others."""
        if fullname != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            with ExitStack() as stack:
                replace = stack.enter_context(replacing())
                for owner, attributes in self._before:
                    replace(owner, **attributes)
                stack.enter_context(_disable_current_modes())
                stack.callback(_LOG.setLevel, _LOG.level)
                _LOG.setLevel(logging.ERROR)  # it warns that its kernels for the CPU are missing
                execute(module)
            self._then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Patches:
    """What is replaced in bitsandbytes while tracing."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._stack = ExitStack()

    def apply(self) -> None:
        """Replace the kernels of its ops, and what calls its CUDA library directly."""
        functions = sys.modules.get(_FUNCTIONS)
        defined = [name for name in _EXPANDED if hasattr(torch.ops.bitsandbytes, name)]
        library = torch.library.Library(_NAME, "IMPL")
        self._stack.callback(library._destroy)
        for name in defined:
            # Above autograd, so that the ops inside are dispatched one by one.
            library.impl(name, _EXPANDED[name], "AutogradCPU")
        if functions is not None:
            self._stack.callback(_forget_fakes, functions, dict(functions.name2qmap))
            functions.name2qmap.clear()  # code books that were made on the host before
            self._stack.enter_context(replacing())(functions, **self._paging())

    def undo(self) -> None:
        """Put everything back."""
        self._stack.close()

    def _paging(self) -> dict[str, Callable[..., Any]]:
        """The functions for paged memory, which the GPU and the host share."""

        def get_paged(*shape: int, dtype: Any = torch.float32, device: Any = "cuda") -> Any:
            paged = torch.empty(shape, dtype=dtype, device=device)
            paged.is_paged, paged.page_deviceid = True, 0
            return paged

        def prefetch(_tensor: Any, _to_cpu: bool = False) -> None:
            self._assumptions.note("the state of the paged optimizer counts as memory of the GPU")

        return {
            "get_paged": get_paged,
            "fill": lambda tensor, value, *_, **__: tensor.fill_(value),
            "prefetch_tensor": prefetch,
        }


def _forget_fakes(functions: Any, code_books: dict[str, Any]) -> None:
    """Drop what bitsandbytes kept while tracing: fake paged memory, and code books."""
    functions.name2qmap.clear()
    functions.name2qmap.update(code_books)
    pages = functions.GlobalPageManager.get_instance().paged_tensors
    pages[:] = [page for page in pages if not isinstance(page, FakeTensor)]


def _gemm_4bit(
    source: Any,
    packed: Any,
    shape: Any,
    absmax: Any,
    blocksize: int,
    quant_type: str,
    bias: Any = None,
    absmax_8bit: Any = None,
    absmax_code: Any = None,
    absmax_offset: Any = None,
) -> Any:
    """A matmul with a 4-bit weight (n, k): fused for few rows, else dequantised first."""
    ops = torch.ops.bitsandbytes
    if source.numel() // source.shape[-1] <= LARGEST_FUSED:
        with torch._C._AutoDispatchBelowAutograd():
            return ops.gemm_4bit(
                *(source, packed, shape, absmax, blocksize, quant_type, bias),
                *(absmax_8bit, absmax_code, absmax_offset),
            )
    if absmax_8bit is not None:
        absmax = ops.dequantize_blockwise(absmax_8bit, absmax, absmax_code, 256, torch.float32)
        absmax = absmax + absmax_offset
    weight = ops.dequantize_4bit(packed, absmax, blocksize, quant_type, shape, source.dtype)
    return torch.nn.functional.linear(source, weight, bias)


def _int8_scaled_mm(
    a: Any, b: Any, row_stats: Any, col_stats: Any, bias: Any = None, dtype: Any = None
) -> Any:
    """An int8 matmul, and its scaling back to floating point."""
    ops = torch.ops.bitsandbytes
    matmul = ops.int8_linear_matmul(a, b)
    return ops.int8_mm_dequant(matmul, row_stats, col_stats, dtype or torch.float16, bias)


def _int8_mixed_scaled_mm(
    _source: Any,
    a: Any,
    b: Any,
    row_stats: Any,
    col_stats: Any,
    _outlier_cols: Any = None,
    bias: Any = None,
) -> Any:
    """The same for inputs with outliers. `_int8_vectorwise_quant` assumes that there are none."""
    out = torch.ops.bitsandbytes.int8_scaled_mm(
        a, b, row_stats, col_stats, bias=bias, dtype=_source.dtype
    )
    return out, torch.empty(0, device=_source.device, dtype=_source.dtype)


def _int8_vectorwise_quant(source: Any, threshold: float = 0.0) -> Any:
    """Rows as int8 with a scale each. Whether there are outliers is read from the GPU."""
    outlier_cols = None
    if threshold > 0.0:
        outliers = source.abs() >= threshold
        bool(outliers.any())
        outlier_cols = torch.empty(0, device=source.device, dtype=torch.int64)
    with torch._C._AutoDispatchBelowAutograd():
        rows, stats, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(source)
    if outlier_cols is not None and source.numel() > source.shape[-1]:
        rows[:, outlier_cols] = 0
    return rows, stats, outlier_cols


def _int8_double_quant(source: Any, threshold: float = 0.0) -> Any:
    """Rows and columns as int8, each with its own scale."""
    rows, row_stats, outlier_cols = torch.ops.bitsandbytes.int8_vectorwise_quant(source, threshold)
    magnitude = source.abs().view(-1, source.shape[-1])
    if threshold > 0.0:
        mask = magnitude >= threshold
        magnitude.masked_fill_(mask, 0.0)
        source = source.masked_fill(mask, 0.0)
    col_stats = magnitude.amax(dim=0).float()
    columns = torch.round(source.mul(127.0) / col_stats.unsqueeze(0)).to(torch.int8)
    return rows, columns, row_stats, col_stats.flatten().float(), outlier_cols


_EXPANDED: dict[str, Callable[..., Any]] = {
    "gemm_4bit": _gemm_4bit,
    "int8_scaled_mm": _int8_scaled_mm,
    "int8_mixed_scaled_mm": _int8_mixed_scaled_mm,
    "int8_vectorwise_quant": _int8_vectorwise_quant,
    "int8_double_quant": _int8_double_quant,
}
"""The ops that CUDA builds from others, by name."""
