"""Sparse matrices while tracing: the class that torch's functions make instead of its own.

Code sees a tensor with the shape, type, device and layout of a sparse one. Inside are its indices
and values, which are plain or fake tensors as all others, and functions of torch that get the
matrix run the ops of `sparse_ops` on them. What CUDA does besides is done here, too: it sorts the
indices of a matrix in COO that is not known to be sorted, for each matmul, and so it does with
every transposed matrix of a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.sparse_ops import COO, CSC, CSR, OPS
from wavecast.frameworks.pytorch.recording.user_lines import user_line

_LAYOUTS = {COO: torch.sparse_coo, CSR: torch.sparse_csr, CSC: torch.sparse_csc}
_FLIPPED = {COO: COO, CSR: CSC, CSC: CSR}

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The functions of torch that take a sparse matrix, by name (`sparse_functions`)."""
_SHOWN = {"shape", "dtype", "ndim", "names", "is_leaf", "grad_fn", "is_quantized", "itemsize"}


@dataclass(frozen=True)
class Parts:
    """The indices and values of a sparse matrix."""

    indices: tuple[Any, ...]
    values: Any
    size: tuple[int, ...]
    layout: str
    is_coalesced: bool

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The first arguments of the ops that take a matrix."""
        return list(self.indices), self.values.detach(), list(self.size), self.layout


class SparseMatrix(torch.Tensor):
    """A sparse matrix of a traced step."""

    parts: Parts

    @staticmethod
    def __new__(cls, parts: Parts) -> SparseMatrix:
        """The matrix of these parts."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, parts.size, dtype=parts.values.dtype, device="cpu"
        )
        made.parts = parts
        return made  # type: ignore[no-any-return]

    def __init__(self, parts: Parts) -> None:
        """Do nothing: `__new__` has made it."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch that got a sparse matrix."""
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__"):
            name = getattr(getattr(func, "__self__", None), "__name__", name)
            if name in _SHOWN:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {}))
        run = FUNCTIONS.get(name.removeprefix("_sparse_").strip("_"))
        out = NotImplemented if run is None else run(*args, **(kwargs or {}))
        if out is NotImplemented:
            raise CaptureError(
                f"the step calls {name} on a sparse tensor at {user_line()}, which cannot be "
                "traced; use the dense form, or multiply by rows and columns with index_select and "
                "index_add, as for a list of edges"
            )
        return out

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        """Refuse an op that C++ code runs on the matrix itself."""
        raise CaptureError(
            f"{func} at {user_line()} gets a sparse tensor, which cannot be traced; use the dense "
            "form"
        )

    def with_values(self, values: Any) -> SparseMatrix:
        """A matrix with other values at the same places."""
        p = self.parts
        return SparseMatrix(Parts(p.indices, values, p.size, p.layout, p.is_coalesced))

    def mapped(self, change: Callable[[Any], Any]) -> SparseMatrix:
        """A matrix with indices and values changed in the same way, as when moved."""
        p = self.parts
        indices = tuple(change(part) for part in p.indices)
        return SparseMatrix(Parts(indices, change(p.values), p.size, p.layout, p.is_coalesced))

    layout = property(lambda self: _LAYOUTS[self.parts.layout])
    device = property(lambda self: self.parts.values.device)
    is_cuda = property(lambda self: self.parts.values.is_cuda)
    is_cpu = property(lambda self: self.parts.values.is_cpu)
    is_meta = property(lambda self: False)
    is_sparse = property(lambda self: self.parts.layout == COO)
    is_sparse_csr = property(lambda self: self.parts.layout == CSR)
    requires_grad = property(lambda self: self.parts.values.requires_grad)
    data = property(lambda self: self.with_values(self.parts.values.detach()))
    T = property(lambda self: self.t())

    @property
    def _local_tensor(self) -> Any:
        """The values, whose memory is that of a buffer of the model."""
        return self.parts.values

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The matrix on another device, or with values of another type."""
        values = self.parts.values.to(*args, **kwargs)
        device = values.device
        if values is self.parts.values:
            return self
        moved = self.mapped(lambda part: part if part is self.parts.values else part.to(device))
        return moved.with_values(values)

    def cuda(self, *args: Any, **kwargs: Any) -> Any:
        """The matrix on the GPU."""
        return self if self.is_cuda else self.mapped(lambda part: part.cuda(*args, **kwargs))

    def cpu(self, *_: Any, **__: Any) -> Any:
        """The matrix on the host."""
        return self.mapped(lambda part: part.cpu()) if self.is_cuda else self

    def pin_memory(self, *_: Any, **__: Any) -> Any:
        """The matrix itself."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Ask for the gradient of the values."""
        self.parts.values.requires_grad_(requires_grad)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with values of its own."""
        return memo.setdefault(id(self), self.mapped(lambda part: part.detach().clone()))

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """How `pickle` makes it again."""
        return SparseMatrix, (self.parts,)

    def __repr__(self, **_: Any) -> str:
        """A short text: the values may be unknown."""
        p = self.parts
        return f"tensor(size={p.size}, nnz={p.values.shape[0]}, layout={self.layout})"


def transposed(matrix: SparseMatrix) -> SparseMatrix:
    """The transposed matrix. In COO its indices are not sorted any more."""
    p = matrix.parts
    indices = (p.indices[0].flip(0),) if p.layout == COO else p.indices
    return SparseMatrix(Parts(indices, p.values, p.size[::-1], _FLIPPED[p.layout], False))


def coalesced(matrix: SparseMatrix) -> SparseMatrix:
    """The matrix with sorted indices, each of them once."""
    p = matrix.parts
    if p.layout != COO or p.is_coalesced:
        return matrix
    indices, values = _Coalesced.apply(p.indices[0], p.values, list(p.size))
    return SparseMatrix(Parts((indices,), values, p.size, COO, True))


class _Coalesced(torch.autograd.Function):
    """Sorts the indices. The gradient of a value is that of the sum which it is in."""

    @staticmethod
    def forward(ctx: Any, indices: Any, values: Any, size: list[int]) -> Any:
        made, sums = OPS.sparse_coalesce(indices, values, size)
        ctx.save_for_backward(indices, made)
        ctx.width = size[1]
        ctx.mark_non_differentiable(made)
        return made, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        before, after = (part[0] * ctx.width + part[1] for part in ctx.saved_tensors)
        places = torch.searchsorted(after, before)
        return None, gradients[1].index_select(0, places), None
