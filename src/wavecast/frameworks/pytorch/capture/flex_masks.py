"""The blocks of a mask of flex_attention: which are open, which are closed, and which data decide.

The user's mask function is called with positions. Tensors that it reads and whose values nobody
knows, such as the documents of tokens, are followed through its ops: a result is unsure where it
depends on them, but what is closed by a causal condition is closed whatever they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from wavecast.frameworks.pytorch.capture.values.host_values import known_values

_MOST_PAIRS = 1 << 22
"""With more pairs of a query and a key, only some positions of each block are computed."""
_UNSURE, _TABLE = "_wavecast_unsure", "_wavecast_table"
"""The attributes of a tensor that say where its values are unknown, and the tensor of which its
values are positions, since theirs are unknown."""
_aten = torch.ops.aten
_ANDS = {_aten.bitwise_and.Tensor, _aten.logical_and.default, _aten.mul.Tensor}
_ORS = {_aten.bitwise_or.Tensor, _aten.logical_or.default}


class OpenBlocks(NamedTuple):
    """How many blocks of a mask a kernel computes, for one sequence and head."""

    most: int
    fewest: int
    """Those that are open whatever the data say."""


def open_blocks(
    mask: Callable[..., Any], queries: int, keys: int, q_block: int, k_block: int
) -> OpenBlocks:
    """The blocks of the first sequence and head that a mask leaves open."""
    shape = math.ceil(queries / q_block), math.ceil(keys / k_block)
    apart = math.ceil(math.sqrt(queries * keys / _MOST_PAIRS))
    try:
        with _disable_current_modes(), torch.no_grad(), _FollowingUnknowns():
            zero = torch.zeros((), dtype=torch.int64)
            rows, columns = _positions(queries, q_block, apart), _positions(keys, k_block, apart)
            allowed = torch.as_tensor(mask(zero, zero, rows[:, None], columns[None, :]))
            allowed = allowed.expand(len(rows), len(columns))
            unsure = _unsure(allowed)
    except _Undecided:
        return OpenBlocks(math.prod(shape), 0)
    with no_dispatch():
        places = (rows // q_block)[:, None], (columns // k_block)[None, :]
        counts = (
            torch.zeros(shape).index_put_(places, is_open.float(), accumulate=True)
            for is_open in (allowed | unsure, allowed & ~unsure)
        )
        return OpenBlocks(*(int(count.count_nonzero()) for count in counts))


def _positions(length: int, block: int, apart: int) -> Any:
    """The positions at which a mask is computed: all, or some of each block and its last."""
    positions = torch.arange(length)
    inside = positions % block
    is_last = (inside == block - 1) | (positions == length - 1)
    return positions[(inside % apart == 0) | is_last]


class _Undecided(Exception):
    """The mask function reads a value that nobody knows, or an op on one has several results."""


class _FollowingUnknowns(TorchDispatchMode):
    """Computes with tensors some of whose values are unknown, and follows where results are."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = _pytree.tree_map_only(FakeTensor, _plain, (args, kwargs or {}))
        if isinstance(kwargs.get("device"), torch.device):
            kwargs["device"] = torch.device("cpu")
        out = func(*args, **kwargs)
        tensors = list(_tensors(args))
        if func.namespace == "prim" or not any(hasattr(t, _UNSURE) for t in tensors):
            return out
        if not isinstance(out, torch.Tensor):
            raise _Undecided
        setattr(out, _UNSURE, _where_unsure(func, args, tensors, out))
        if func is _aten.index.Tensor and not any(hasattr(t, _UNSURE) for t in tensors[1:]):
            setattr(out, _TABLE, getattr(tensors[0], _TABLE, None))
        return out


def _plain(fake: Any) -> Any:
    """A plain tensor with the values of a fake one; with positions, if they are unknown."""
    real = known_values(fake)
    if real is not None:
        return real
    is_whole = not (fake.dtype.is_floating_point or fake.dtype is torch.bool)
    make = torch.arange if is_whole else torch.zeros
    plain = make(fake.numel(), dtype=torch.int64 if is_whole else fake.dtype).view(fake.shape)
    setattr(plain, _UNSURE, torch.ones((), dtype=torch.bool).expand(plain.shape))
    setattr(plain, _TABLE, id(fake) if is_whole else None)
    return plain


def _where_unsure(func: Any, args: tuple[Any, ...], tensors: list[Any], out: Any) -> Any:
    """Where the values of a result are unknown, though some conditions decide alone."""
    unsure = [_unsure(tensor) for tensor in tensors]
    if func.is_view or func is _aten._to_copy.default:
        return func(unsure[0], *args[1:]) if func.is_view else unsure[0]
    if func is _aten.where.self:
        return unsure[0] | torch.where(tensors[0], unsure[1], unsure[2])
    if torch.Tag.pointwise not in func.tags:
        return torch.ones((), dtype=torch.bool).expand(out.shape)
    either = torch.zeros((), dtype=torch.bool)
    for part in unsure:
        either = either | part
    either = either.expand(out.shape)
    if func in _ANDS | _ORS and [tensor.dtype for tensor in tensors] == [torch.bool] * 2:
        decides = tuple(~t if func in _ANDS else t for t in tensors)
        return either & ~(decides[0] & ~unsure[0] | decides[1] & ~unsure[1])
    tables = {getattr(tensor, _TABLE, None) for tensor in tensors}
    if func is _aten.eq.Tensor and len(tables) == 1 and None not in tables:
        return either & ~out  # the same element of the same tensor
    return either


def _unsure(tensor: Any) -> Any:
    return getattr(tensor, _UNSURE, torch.zeros((), dtype=torch.bool)).expand(tensor.shape)


def _tensors(value: Any) -> Iterator[Any]:
    return (leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
