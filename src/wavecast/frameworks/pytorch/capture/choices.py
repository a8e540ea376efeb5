"""How many entries of a mask are set, where a step chose among classes.

A mixture of experts chooses experts for each token with `topk`, and finds the tokens of an expert
by `nonzero` of a mask: a row of `one_hot(chosen)`, or `chosen == expert`. The choice depends on
data, which fake tensors lack. Each class is assumed to be chosen as often as any other, which is
what the losses that balance experts aim at. So one in eight entries of a mask is set if the choice
was among eight experts. Tensors are marked with this share, and ops that only reshape, select or
convert a marked tensor pass the mark on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

import torch

_aten = torch.ops.aten
_CLASSES = "_wavecast_classes"
"""The mark of chosen indices: among how many classes they were chosen."""
_SHARE = "_wavecast_share"
"""The mark of a mask: which share of its entries is set."""


def expected_entries(mask: Any) -> int | None:
    """How many entries of a mask an even choice sets. None if the mask is of no choice."""
    share = getattr(mask, _SHARE, None)
    return None if share is None else ceil(mask.numel() * share)


def follow(func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Mark what an op returns, if it chooses among classes or handles what was chosen."""
    mark = _MARKING.get(func)
    if mark is not None:
        mark(args, out)


def _chosen(args: tuple[Any, ...], out: Any) -> None:
    """Indices of the largest values along a dimension."""
    of, axis = args[0], args[2] if len(args) > 2 else -1
    if of.dim():
        setattr(out[1], _CLASSES, of.shape[axis])


def _drawn(args: tuple[Any, ...], out: Any) -> None:
    """Indices that are drawn at random."""
    if args[0].dim():
        setattr(out, _CLASSES, args[0].shape[-1])


def _largest(args: tuple[Any, ...], out: Any) -> None:
    """The index of the largest value along a dimension."""
    if len(args) > 1 and args[1] is not None:
        setattr(out, _CLASSES, args[0].shape[args[1]])


def _compared(args: tuple[Any, ...], out: Any) -> None:
    """A mask of where an index is a given one."""
    for tensor in args[:2]:
        classes = getattr(tensor, _CLASSES, None)
        if classes:
            setattr(out, _SHARE, 1.0 / classes)


def _scattered(args: tuple[Any, ...], out: Any) -> None:
    """A mask with an entry for each chosen index."""
    of, axis, index = args[:3]
    if of.dim() and getattr(index, _CLASSES, None) == of.shape[axis]:
        setattr(out, _SHARE, index.numel() / of.numel())


def _kept(args: tuple[Any, ...], out: Any) -> None:
    """The same entries, or some of them, in another shape or dtype."""
    for mark in (_CLASSES, _SHARE):
        value = getattr(args[0], mark, None)
        if value is not None:
            for one in out if isinstance(out, list | tuple) else (out,):
                setattr(one, mark, value)


def _set(args: tuple[Any, ...], out: Any) -> None:
    """Where a mask is not zero."""
    share = getattr(args[0], _SHARE, None)
    if share is not None and args[1] == 0:
        setattr(out, _SHARE, share)


def _joined(args: tuple[Any, ...], out: Any) -> None:
    """A mask of the rows with a set entry; the choices of one token are of different classes."""
    share = getattr(args[0], _SHARE, None)
    if share is not None and out.numel():
        setattr(out, _SHARE, min(share * args[0].numel() / out.numel(), 1.0))


def _overloads(names: str) -> Iterator[Any]:
    for packet in (getattr(_aten, name) for name in names.split()):
        yield from (getattr(packet, overload) for overload in packet.overloads())


_MARKING: dict[Any, Callable[[tuple[Any, ...], Any], None]] = {
    **dict.fromkeys(
        _overloads(
            "view _unsafe_view permute transpose t select slice squeeze unsqueeze expand alias "
            "detach clone _to_copy unbind split"
        ),
        _kept,
    ),
    **dict.fromkeys((_aten.gt.Scalar, _aten.ne.Scalar), _set),
    **dict.fromkeys((_aten.any.dim, _aten.sum.dim_IntList), _joined),
    **dict.fromkeys((_aten.eq.Tensor, _aten.eq.Scalar), _compared),
    **dict.fromkeys((_aten.scatter.value, _aten.scatter_.value), _scattered),
    _aten.topk.default: _chosen,
    _aten.argmax.default: _largest,
    _aten.multinomial.default: _drawn,
}
