"""Ops on sparse matrices, as torch's dispatcher sees them: indices and values are plain tensors.

Torch has no fake form of sparse tensors. So a sparse matrix is kept as its parts
(`sparse_tensors`), and these ops stand for those that CUDA runs on them. On the host they compute
the real result, with torch's own sparse tensors.

A layout is "coo", with one tensor of row and column numbers, or "csr" or "csc", with the limits of
each row (column) and the numbers of the columns (rows).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

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


def _mm(indices: Any, values: Any, size: Any, layout: str, dense: Any) -> Any:
    """The matmul of a sparse and a dense matrix."""
    return _plain["mm"](real_matrix(indices, values, size, layout), dense)


def _fake_mm(indices: Any, values: Any, size: Any, layout: str, dense: Any) -> Any:
    return values.new_empty((size[0], dense.shape[1]))


def _coalesce(indices: Any, values: Any, size: Any) -> Any:
    """Sorted indices, each of them once, and the sums of their values."""
    made = _make_coo(indices, values, tuple(size)).coalesce()
    return made.indices().clone(), made.values().clone()


def _fake_coalesce(indices: Any, values: Any, size: Any) -> Any:
    # How many are equal is unknown: none is assumed to be.
    return torch.empty_like(indices), torch.empty_like(values)


def _to_dense(indices: Any, values: Any, size: Any, layout: str) -> Any:
    """The matrix with its zeros."""
    return torch.Tensor.to_dense(real_matrix(indices, values, size, layout))


def _mask(indices: Any, values: Any, size: Any, layout: str, dense: Any) -> Any:
    """The elements of a dense matrix at the places of a sparse one."""
    rows, columns = _places(indices, values, size, layout)
    return dense[rows, columns]


def _sampled(indices: Any, values: Any, size: Any, layout: str, left: Any, right: Any) -> Any:
    """The elements of the matmul of two dense matrices at the places of a sparse one."""
    rows, columns = _places(indices, values, size, layout)
    return (left[rows] * right[:, columns].t()).sum(1)


def _places(indices: Any, values: Any, size: Any, layout: str) -> Any:
    """The row and the column of each value."""
    if layout == COO:
        return indices[0]
    limits, others = indices
    counts = limits[1:] - limits[:-1]
    own = torch.repeat_interleave(torch.arange(len(counts)), counts)
    return torch.stack((own, others) if layout == CSR else (others, own))


def _softmax(indices: Any, values: Any, size: Any, layout: str, dim: int, is_log: bool) -> Any:
    """The softmax over the values of each row or column; other elements do not count."""
    place = _places(indices, values, size, layout)[1 - dim % 2]
    maxima = values.new_full((size[1 - dim % 2],), -torch.inf)
    shifted = values - maxima.scatter_reduce(0, place, values, "amax")[place]
    sums = torch.zeros_like(maxima).index_add(0, place, shifted.exp())[place]
    return shifted - sums.log() if is_log else shifted.exp() / sums


def _softmax_backward(
    indices: Any, values: Any, size: Any, layout: str, gradient: Any, dim: int, is_log: bool
) -> Any:
    """The gradient of `values`, of which the softmax was taken, from that of the result."""
    place = _places(indices, values, size, layout)[1 - dim % 2]
    weighted = gradient if is_log else gradient * values
    sums = values.new_zeros(size[1 - dim % 2]).index_add(0, place, weighted)[place]
    return gradient - values.exp() * sums if is_log else weighted - values * sums


def _compress(indices: Any, values: Any, size: Any) -> Any:
    """The limits of rows, and the numbers of columns, of a matrix in COO with sorted indices."""
    made = _plain["to_sparse_csr"](_make_coo(indices, values, tuple(size), is_coalesced=True))
    return made.crow_indices().clone(), made.col_indices().clone()


def _fake_compress(indices: Any, values: Any, size: Any) -> Any:
    return indices.new_empty(size[0] + 1), indices.new_empty(indices.shape[1])


def _fake_places(indices: Any, values: Any, size: Any, layout: str) -> Any:
    return indices[-1].new_empty((2, values.shape[0]))


def _like_values(_: Any, values: Any, *__: Any) -> Any:
    return torch.empty_like(values)


_OPS: dict[str, tuple[str, Any, Any]] = {
    "sparse_mm": (f"({_MATRIX}, Tensor dense) -> Tensor", _mm, _fake_mm),
    "sparse_coalesce": (
        "(Tensor indices, Tensor values, int[] size) -> (Tensor, Tensor)",
        _coalesce,
        _fake_coalesce,
    ),
    "sparse_to_dense": (
        f"({_MATRIX}) -> Tensor",
        _to_dense,
        lambda indices, values, size, layout: values.new_empty(tuple(size)),
    ),
    "sparse_mask": (f"({_MATRIX}, Tensor dense) -> Tensor", _mask, _like_values),
    "sparse_sampled_mm": (
        f"({_MATRIX}, Tensor left, Tensor right) -> Tensor",
        _sampled,
        _like_values,
    ),
    "sparse_softmax": (f"({_MATRIX}, int dim, bool is_log) -> Tensor", _softmax, _like_values),
    "sparse_softmax_backward": (
        f"({_MATRIX}, Tensor gradient, int dim, bool is_log) -> Tensor",
        _softmax_backward,
        _like_values,
    ),
    "sparse_compress": (
        "(Tensor indices, Tensor values, int[] size) -> (Tensor, Tensor)",
        _compress,
        _fake_compress,
    ),
    "sparse_places": (f"({_MATRIX}) -> Tensor", _places, _fake_places),
}

for _name, (_schema, _real, _fake) in _OPS.items():
    _library.define(_name + _schema)
    _library.impl(_name, _quietly(_real), "CPU")
    torch.library.register_fake(f"wavecast::{_name}", _fake, lib=_library)

OPS = torch.ops.wavecast
"""The ops, by name."""
