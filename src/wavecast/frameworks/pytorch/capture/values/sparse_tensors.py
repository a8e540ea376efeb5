"""Sparse matrices while tracing: the class that torch's functions make instead of its own.

Code sees a tensor with the shape, type, device and layout of a sparse one. Inside are its indices
and values, which are plain or fake tensors as all others, and functions of torch that get the
matrix run the ops of `sparse_ops` on them. What CUDA does besides is done here, too: it sorts the
indices of a matrix in COO that is not known to be sorted, for each matmul, and so it does with
every transposed matrix of a backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import user_line

# Ops on sparse matrices, as torch's dispatcher sees them: indices and values are plain tensors.
#
# Torch has no fake form of sparse tensors. So a sparse matrix is kept as its parts
# (`sparse_tensors`), and these ops stand for those that CUDA runs on them. On the host they
# compute the real result, with torch's own sparse tensors.
#
# A layout is "coo", with one tensor of row and column numbers, or "csr" or "csc", with the limits
# of each row (column) and the numbers of the columns (rows).


COO, CSR, CSC = "coo", "csr", "csc"
_library = torch.library.Library("wavecast", "DEF")
_make_coo = torch.sparse_coo_tensor
_make_compressed = {CSR: torch.sparse_csr_tensor, CSC: torch.sparse_csc_tensor}
_plain = {
    "to_sparse_csr": torch.Tensor.to_sparse_csr,
    "to_sparse_coo": torch.Tensor.to_sparse_coo,
    "mm": torch.mm,
}
_MATRIX = "Tensor[] indices, Tensor values, int[] size, str layout"


def real_matrix(indices: Sequence[Any], values: Any, size: Sequence[int], layout: str) -> Any:
    """Torch's own sparse tensor of these parts, which have values on the host."""
    if layout == COO:
        return _make_coo(indices[0], values, tuple(size), is_coalesced=False)
    return _make_compressed[layout](*indices, values, tuple(size))


def _quietly(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function without torch's warnings that compressed tensors are in beta state."""

    @wraps(run)
    def quiet(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(*args)

    return quiet


def _mm_kernel(indices: Any, values: Any, size: Any, layout: str, dense: Any) -> Any:
    """The matmul of a sparse and a dense matrix."""
    return _plain["mm"](real_matrix(indices, values, size, layout), dense)


def _coalesce(indices: Any, values: Any, size: Any) -> Any:
    """Sorted indices, each of them once, and the sums of their values."""
    matrix = _make_coo(indices, values, tuple(size)).coalesce()
    return matrix.indices().clone(), matrix.values().clone()


def _to_dense_kernel(indices: Any, values: Any, size: Any, layout: str) -> Any:
    """The matrix with its zeros."""
    return torch.Tensor.to_dense(real_matrix(indices, values, size, layout))


def _mask(indices: Any, values: Any, size: Any, layout: str, dense: Any) -> Any:
    """The elements of a dense matrix at the places of a sparse one."""
    rows, columns = _places_kernel(indices, values, size, layout)
    return dense[rows, columns]


def _sampled(indices: Any, values: Any, size: Any, layout: str, left: Any, right: Any) -> Any:
    """The elements of the matmul of two dense matrices at the places of a sparse one."""
    rows, columns = _places_kernel(indices, values, size, layout)
    return (left[rows] * right[:, columns].t()).sum(1)


def _places_kernel(indices: Any, values: Any, size: Any, layout: str) -> Any:
    """The row and the column of each value."""
    if layout == COO:
        return indices[0]
    limits, others = indices
    counts = limits[1:] - limits[:-1]
    own = torch.repeat_interleave(torch.arange(len(counts)), counts)
    return torch.stack((own, others) if layout == CSR else (others, own))


def _softmax_kernel(
    indices: Any, values: Any, size: Any, layout: str, dim: int, is_log: bool
) -> Any:
    """The softmax over the values of each row or column; other elements do not count."""
    place = _places_kernel(indices, values, size, layout)[1 - dim % 2]
    maxima = values.new_full((size[1 - dim % 2],), -torch.inf)
    shifted = values - maxima.scatter_reduce(0, place, values, "amax")[place]
    sums = torch.zeros_like(maxima).index_add(0, place, shifted.exp())[place]
    return shifted - sums.log() if is_log else shifted.exp() / sums


def _softmax_backward(
    indices: Any, values: Any, size: Any, layout: str, gradient: Any, dim: int, is_log: bool
) -> Any:
    """The gradient of `values`, of which the softmax was taken, from that of the result."""
    place = _places_kernel(indices, values, size, layout)[1 - dim % 2]
    weighted = gradient if is_log else gradient * values
    sums = values.new_zeros(size[1 - dim % 2]).index_add(0, place, weighted)[place]
    return gradient - values.exp() * sums if is_log else weighted - values * sums


def _compress(indices: Any, values: Any, size: Any) -> Any:
    """The limits of rows, and the numbers of columns, of a matrix in COO with sorted indices."""
    matrix = _plain["to_sparse_csr"](_make_coo(indices, values, tuple(size), is_coalesced=True))
    return matrix.crow_indices().clone(), matrix.col_indices().clone()


def _like_values(_: Any, values: Any, *__: Any) -> Any:
    return torch.empty_like(values)


_OPS: dict[str, tuple[str, Any, Any]] = {
    "sparse_mm": (
        f"({_MATRIX}, Tensor dense) -> Tensor",
        _mm_kernel,
        lambda _, values, size, __, dense: values.new_empty((size[0], dense.shape[1])),
    ),
    "sparse_coalesce": (
        "(Tensor indices, Tensor values, int[] size) -> (Tensor, Tensor)",
        _coalesce,
        # How many are equal is unknown: none is assumed to be.
        lambda indices, values, _: (torch.empty_like(indices), torch.empty_like(values)),
    ),
    "sparse_to_dense": (
        f"({_MATRIX}) -> Tensor",
        _to_dense_kernel,
        lambda indices, values, size, layout: values.new_empty(tuple(size)),
    ),
    "sparse_mask": (f"({_MATRIX}, Tensor dense) -> Tensor", _mask, _like_values),
    "sparse_sampled_mm": (
        f"({_MATRIX}, Tensor left, Tensor right) -> Tensor",
        _sampled,
        _like_values,
    ),
    "sparse_softmax": (
        f"({_MATRIX}, int dim, bool is_log) -> Tensor",
        _softmax_kernel,
        _like_values,
    ),
    "sparse_softmax_backward": (
        f"({_MATRIX}, Tensor gradient, int dim, bool is_log) -> Tensor",
        _softmax_backward,
        _like_values,
    ),
    "sparse_compress": (
        "(Tensor indices, Tensor values, int[] size) -> (Tensor, Tensor)",
        _compress,
        lambda indices, _, size: (
            indices.new_empty(size[0] + 1),
            indices.new_empty(indices.shape[1]),
        ),
    ),
    "sparse_places": (
        f"({_MATRIX}) -> Tensor",
        _places_kernel,
        lambda indices, values, *_: indices[-1].new_empty((2, values.shape[0])),
    ),
}

for _kernel_name, (_schema, _real, _fake) in _OPS.items():
    _library.define(_kernel_name + _schema)
    _library.impl(_kernel_name, _quietly(_real), "CPU")
    torch.library.register_fake(f"wavecast::{_kernel_name}", _fake, lib=_library)

OPS = torch.ops.wavecast
"""The ops, by name."""


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
        matrix = torch.Tensor._make_wrapper_subclass(
            cls, parts.size, dtype=parts.values.dtype, device="cpu"
        )
        matrix.parts = parts
        return matrix  # type: ignore[no-any-return]

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
        return SparseMatrix(replace(self.parts, values=values))

    def mapped(self, change: Callable[[Any], Any]) -> SparseMatrix:
        """A matrix with indices and values changed in the same way, as when moved."""
        p = self.parts
        indices = tuple(change(part) for part in p.indices)
        return SparseMatrix(replace(p, indices=indices, values=change(p.values)))

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
        places, sums = OPS.sparse_coalesce(indices, values, size)
        ctx.save_for_backward(indices, places)
        ctx.width = size[1]
        ctx.mark_non_differentiable(places)
        return places, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        before, after = (part[0] * ctx.width + part[1] for part in ctx.saved_tensors)
        places = torch.searchsorted(after, before)
        return None, gradients[1].index_select(0, places), None


# How the sparse matrices of a traced step are made, by functions that replace those of torch.


_CONVERTED = ("to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc")


def sparse_functions() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each module or class with functions that make sparse tensors, and their replacements."""
    yield torch, _MAKERS
    yield torch.Tensor, {name: _from_dense(FUNCTIONS[name]) for name in _CONVERTED}
    known = {f"{n}Tensor": d for n, d in _LEGACY.items() if hasattr(torch.sparse, f"{n}Tensor")}
    yield torch.sparse, {name: _legacy(dtype) for name, dtype in known.items()}


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
    matrix = SparseMatrix(Parts((indices,), values, tuple(size), COO, bool(is_coalesced)))
    return matrix.requires_grad_() if requires_grad else matrix


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
        matrix = SparseMatrix(Parts(indices, values, tuple(size), layout, True))
        return matrix.requires_grad_() if requires_grad else matrix

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


# What torch's functions do with the sparse matrices of a traced step.


_ON_VALUES = (
    *("abs", "sqrt", "neg", "relu", "tanh", "sin", "square", "expm1", "log1p", "sign", "pow"),
    *("nan_to_num", "isnan", "isinf", "float", "half", "double", "bfloat16", "type", "clone"),
    *("detach", "zeros_like", "contiguous", "type_as"),
)


def _function(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


class _Matmul(torch.autograd.Function):
    """The matmul of a sparse and a dense matrix, with the gradients of both."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, values: Any, dense: Any) -> Any:
        ctx.parts = parts
        ctx.save_for_backward(dense)
        return OPS.sparse_mm(*parts.arguments, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (dense,), parts = gradients, ctx.saved_tensors, ctx.parts
        d_values = d_dense = None
        if ctx.needs_input_grad[1]:
            if parts.layout == COO:
                # Torch computes the gradient of all elements, and then picks those it needs.
                whole = gradient.mm(dense.t())
                d_values = OPS.sparse_mask(*parts.arguments, whole)
            else:
                d_values = OPS.sparse_sampled_mm(*parts.arguments, gradient, dense.t())
        if ctx.needs_input_grad[2]:
            flipped = coalesced(transposed(SparseMatrix(parts).data))
            d_dense = OPS.sparse_mm(*flipped.parts.arguments, gradient)
        return None, d_values, d_dense


class _Softmax(torch.autograd.Function):
    """The softmax of the values of each row or column."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, values: Any, dim: int, is_log: bool) -> Any:
        out = OPS.sparse_softmax(*parts.arguments, dim, is_log)
        ctx.parts, ctx.rest = parts, (dim, is_log)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        softmax = SparseMatrix(ctx.parts).with_values(ctx.saved_tensors[0])
        done = OPS.sparse_softmax_backward(*softmax.parts.arguments, gradients[0], *ctx.rest)
        return None, done, None, None


class _ToDense(torch.autograd.Function):
    """The matrix with its zeros."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, values: Any) -> Any:
        ctx.parts = parts
        return OPS.sparse_to_dense(*parts.arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, OPS.sparse_mask(*ctx.parts.arguments, gradients[0])


def _product(matrix: SparseMatrix, dense: Any) -> Any:
    if dense.dim() == 1:
        return _product(matrix, dense.unsqueeze(1)).squeeze(1)
    if dense.dim() != 2 or matrix.shape[1] != dense.shape[0]:
        raise RuntimeError(
            f"a sparse matrix of shape {tuple(matrix.shape)} cannot be multiplied with a tensor of "
            f"shape {tuple(dense.shape)}"
        )
    ready = coalesced(matrix)
    return _Matmul.apply(ready.parts, ready.parts.values, dense)


@_function("mm", "matmul", "spmm", "mv", "smm", "dsmm", "rmatmul")
def _mm(left: Any, right: Any, *_: Any) -> Any:
    if isinstance(left, SparseMatrix) and isinstance(right, SparseMatrix):
        return NotImplemented  # how many elements the result has is not known
    if isinstance(left, SparseMatrix):
        return _product(left, right)
    return _product(transposed(right), left.t()).t()


@_function("addmm")
def _addmm(added: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if isinstance(added, SparseMatrix):
        return NotImplemented
    product = _mm(left, right)
    if product is NotImplemented:
        return product
    return torch.add(added if beta == 1 else beta * added, product, alpha=alpha)


@_function("linear")
def _linear(source: Any, weight: Any, bias: Any = None) -> Any:
    if isinstance(weight, SparseMatrix):
        product = _product(weight, source.t()).t()
    else:
        product = _product(source, weight.t())
    return product if bias is None else product + bias


@_function("softmax")
def _softmax(matrix: SparseMatrix, dim: int, *_: Any, is_log: bool = False, **__: Any) -> Any:
    ready = coalesced(matrix)
    return ready.with_values(_Softmax.apply(ready.parts, ready.parts.values, dim % 2, is_log))


FUNCTIONS["log_softmax"] = lambda matrix, dim, *_, **__: _softmax(matrix, dim, is_log=True)


@_function("sum")
def _sum(matrix: SparseMatrix, dim: Any = None, *_: Any, **__: Any) -> Any:
    """The sum of all values, or the sums of rows or columns (which torch gives in sparse form)."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if len(dims) != 1:
        return matrix.parts.values.sum()
    kept = 1 - dims[0] % 2
    zeros = matrix.parts.values.new_zeros(matrix.parts.size[kept])
    return _Vector(zeros.index_add(0, _places(matrix)[kept], matrix.parts.values))


class _Vector:
    """The sums of rows or columns: a sparse vector, of which code asks for the dense form."""

    def __init__(self, dense: Any) -> None:
        self._dense = dense

    def to_dense(self) -> Any:
        """The sums as a plain tensor."""
        return self._dense

    def values(self) -> Any:
        """The sums. That a row has no element is not considered."""
        return self._dense

    coalesce = lambda self: self  # noqa: E731


def _places(matrix: SparseMatrix) -> Any:
    if matrix.parts.layout == COO:
        return matrix.parts.indices[0]
    return OPS.sparse_places(*matrix.parts.arguments)


@_function("mul", "rmul")
def _scaled(left: Any, right: Any) -> Any:
    """A matrix times a number; times a dense matrix, whose elements are then picked."""
    matrix, other = (left, right) if isinstance(left, SparseMatrix) else (right, left)
    if isinstance(other, SparseMatrix):
        return NotImplemented
    if isinstance(other, torch.Tensor) and other.dim():
        rows, columns = _places(matrix)
        other = other.expand(matrix.parts.size)[rows, columns]
    return matrix.with_values(matrix.parts.values * other)


@_function("div", "true_divide")
def _divided(matrix: Any, number: Any, **_: Any) -> Any:
    if isinstance(number, torch.Tensor) and number.dim():
        return NotImplemented
    return matrix.with_values(matrix.parts.values / number)


@_function("add", "sub")
def _added(left: Any, right: Any, **_: Any) -> Any:
    """A dense matrix plus a sparse one. Two sparse ones are both sets of elements, one list."""
    if isinstance(left, SparseMatrix) and isinstance(right, SparseMatrix):
        a, b = left.parts, right.parts
        if a.layout != COO or b.layout != COO:
            return NotImplemented
        indices = (torch.cat((a.indices[0], b.indices[0]), 1),)
        return SparseMatrix(Parts(indices, torch.cat((a.values, b.values)), a.size, COO, False))
    dense, matrix = (right, left) if isinstance(left, SparseMatrix) else (left, right)
    return dense + _to_dense(matrix) if isinstance(dense, torch.Tensor) else NotImplemented


@_function("to_dense")
def _to_dense(matrix: SparseMatrix, dtype: Any = None, **_: Any) -> Any:
    dense = _ToDense.apply(matrix.parts, matrix.parts.values)
    return dense if dtype is None else dense.to(dtype)


@_function("to_sparse", "to_sparse_coo")
def _to_coo(matrix: SparseMatrix, *_: Any, layout: Any = None, **__: Any) -> Any:
    if layout is torch.sparse_csr:
        return _to_csr(matrix)
    p = matrix.parts
    is_sorted = p.is_coalesced if p.layout == COO else p.layout == CSR
    return SparseMatrix(Parts((_places(matrix),), p.values, p.size, COO, is_sorted))


@_function("to_sparse_csr")
def _to_csr(matrix: SparseMatrix, **_: Any) -> Any:
    if matrix.parts.layout == CSR:
        return matrix
    p = coalesced(_to_coo(matrix)).parts
    limits, columns = OPS.sparse_compress(p.indices[0], p.values.detach(), list(p.size))
    return SparseMatrix(Parts((limits, columns), p.values, p.size, CSR, True))


@_function("to_sparse_csc")
def _to_csc(matrix: SparseMatrix, **_: Any) -> Any:
    return transposed(_to_csr(transposed(matrix)))


@_function("transpose")
def _transpose(matrix: SparseMatrix, first: int, second: int) -> Any:
    return matrix if first % 2 == second % 2 else transposed(matrix)


def _size(matrix: SparseMatrix, dim: int | None = None) -> Any:
    return torch.Size(matrix.parts.size) if dim is None else matrix.parts.size[dim]


def _part(index: int, *layouts: str) -> Callable[[SparseMatrix], Any]:
    def part(matrix: SparseMatrix) -> Any:
        return matrix.parts.indices[index] if matrix.parts.layout in layouts else NotImplemented

    return part


FUNCTIONS |= {
    "t": transposed,
    "coalesce": coalesced,
    "is_coalesced": lambda matrix: matrix.parts.is_coalesced,
    "indices": _part(0, COO),
    "crow_indices": _part(0, CSR),
    "ccol_indices": _part(0, CSC),
    "col_indices": _part(1, CSR),
    "row_indices": _part(1, CSC),
    "values": lambda matrix: matrix.parts.values,
    "nnz": lambda matrix: matrix.parts.values.shape[0],
    "sparse_dim": lambda matrix: 2,
    "dense_dim": lambda matrix: 0,
    "dim": lambda matrix: 2,
    "ndimension": lambda matrix: 2,
    "size": _size,
    "numel": lambda matrix: matrix.parts.size[0] * matrix.parts.size[1],
    "len": lambda matrix: matrix.parts.size[0],
    "is_floating_point": lambda matrix: matrix.parts.values.is_floating_point(),
    "is_complex": lambda matrix: False,
    "element_size": lambda matrix: matrix.parts.values.element_size(),
    "is_pinned": lambda matrix, *_: False,
    "hash": id,
}


def _on_values(name: str) -> Callable[..., Any]:
    def run(matrix: SparseMatrix, *args: Any, **kwargs: Any) -> Any:
        values = matrix.parts.values
        method = getattr(values, name, None)
        result = method(*args, **kwargs) if method else getattr(torch, name)(values)
        return matrix.with_values(result) if isinstance(result, torch.Tensor) else result

    return run


for _name in _ON_VALUES:
    FUNCTIONS[_name] = _on_values(_name)
