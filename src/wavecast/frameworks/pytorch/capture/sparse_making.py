"""How the sparse matrices of a traced step are made, by functions that replace those of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import wavecast.frameworks.pytorch.capture.sparse_functions  # noqa: F401  (it fills FUNCTIONS)
from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.sparse_ops import COO, CSC, CSR
from wavecast.frameworks.pytorch.capture.sparse_tensors import FUNCTIONS, Parts, SparseMatrix
from wavecast.frameworks.pytorch.recording.user_lines import user_line

_CONVERTED = ("to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc")


def sparse_functions() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each module or class with functions that make sparse tensors, and their replacements."""
    yield torch, _MAKERS
    yield torch.Tensor, {name: _from_dense(FUNCTIONS[name]) for name in _CONVERTED}
    legacy = {f"{n}Tensor": _legacy(d) for n, d in _LEGACY.items()}
    yield torch.sparse, {name: made for name, made in legacy.items() if hasattr(torch.sparse, name)}


_LEGACY = {"Float": torch.float32, "Double": torch.float64, "Half": torch.float16}


def _tensor(data: Any, dtype: Any, device: Any) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device or data.device, dtype or data.dtype)
    return torch.as_tensor(data, dtype=dtype, device=device)


def _coo(
    indices: Any,
    values: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    is_coalesced: bool | None = None,
    **_: Any,
) -> Any:
    """`torch.sparse_coo_tensor`, for matrices."""
    if values is None:
        raise _refused("an empty sparse tensor")
    values = _tensor(values, dtype, device)
    indices = _tensor(indices, torch.int64, values.device)
    if indices.shape[0] != 2 or values.dim() != 1:
        raise _refused("a sparse tensor that is no matrix of numbers")
    if size is None:
        size = [int(row.max()) + 1 for row in indices]
    parts = Parts((indices,), values, tuple(size), COO, bool(is_coalesced))
    made = SparseMatrix(parts)
    return made.requires_grad_() if requires_grad else made


def _compressed(layout: str) -> Callable[..., Any]:
    def make(
        limits: Any,
        others: Any,
        values: Any,
        size: Any = None,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        **_: Any,
    ) -> Any:
        values = _tensor(values, dtype, device)
        indices = tuple(_tensor(part, None, values.device) for part in (limits, others))
        if indices[0].dim() != 1 or values.dim() != 1:
            raise _refused("a batch of sparse matrices, or one of blocks")
        if size is None:
            own = (indices[0].shape[0] - 1, int(indices[1].max()) + 1)
            size = own if layout == CSR else own[::-1]
        made = SparseMatrix(Parts(indices, values, tuple(size), layout, True))
        return made.requires_grad_() if requires_grad else made

    return make


_MAKERS = {
    "sparse_coo_tensor": _coo,
    "sparse_csr_tensor": _compressed(CSR),
    "sparse_csc_tensor": _compressed(CSC),
}


def _legacy(dtype: Any) -> Callable[..., Any]:
    """`torch.sparse.FloatTensor` and the like."""
    return lambda indices, values, size=None: _coo(indices, values, size, dtype=dtype)


def _from_dense(convert: Callable[..., Any]) -> Callable[..., Any]:
    """`dense.to_sparse()` and the like: the elements that are not zero are looked for."""

    def to_sparse(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, SparseMatrix):
            return convert(tensor, *args, **kwargs)
        if tensor.dim() != 2 or args:
            raise _refused("a sparse tensor that is no matrix of numbers")
        indices = tensor.nonzero().t().contiguous()
        values = tensor[indices[0], indices[1]]
        return convert(SparseMatrix(Parts((indices,), values, tuple(tensor.shape), COO, True)))

    return to_sparse


def _refused(what: str) -> CaptureError:
    return CaptureError(
        f"the step makes {what} at {user_line()}, which cannot be traced; use the dense form, or "
        "one sparse matrix"
    )
