"""What torch's functions do with the sparse matrices of a traced step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.sparse_ops import COO, CSC, CSR, OPS
from wavecast.frameworks.pytorch.capture.sparse_tensors import (
    FUNCTIONS,
    Parts,
    SparseMatrix,
    coalesced,
    transposed,
)

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
    made = _mm(left, right)
    if made is NotImplemented:
        return made
    return torch.add(added if beta == 1 else beta * added, made, alpha=alpha)


@_function("linear")
def _linear(source: Any, weight: Any, bias: Any = None) -> Any:
    if isinstance(weight, SparseMatrix):
        made = _product(weight, source.t()).t()
    else:
        made = _product(source, weight.t())
    return made if bias is None else made + bias


@_function("softmax", "log_softmax")
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


@_function("mul", "div", "true_divide", "rmul")
def _scaled(left: Any, right: Any) -> Any:
    """A matrix times a number; times a dense matrix, whose elements are then picked."""
    matrix, other = (left, right) if isinstance(left, SparseMatrix) else (right, left)
    if isinstance(other, SparseMatrix):
        return NotImplemented
    if isinstance(other, torch.Tensor) and other.dim():
        rows, columns = _places(matrix)
        other = other.expand(matrix.parts.size)[rows, columns]
    return matrix.with_values(matrix.parts.values * other)


def _divided(matrix: Any, number: Any, **_: Any) -> Any:
    if isinstance(number, torch.Tensor) and number.dim():
        return NotImplemented
    return matrix.with_values(matrix.parts.values / number)


FUNCTIONS.update(dict.fromkeys(("div", "true_divide"), _divided))


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
    made = _ToDense.apply(matrix.parts, matrix.parts.values)
    return made if dtype is None else made.to(dtype)


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
        made = method(*args, **kwargs) if method else getattr(torch, name)(values)
        return matrix.with_values(made) if isinstance(made, torch.Tensor) else made

    return run


for _name in _ON_VALUES:
    FUNCTIONS[_name] = _on_values(_name)
