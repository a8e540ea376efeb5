"""`flex_attention`, taken as the one fused kernel that torch.compile makes of it.

Torch has no fake version of it with a backward pass. While tracing, the operator behind
`torch.nn.attention.flex_attention` is replaced by one that records the op and returns empty
results. Kernels skip blocks that the mask leaves empty; these are counted with the user's own mask
function, called with positions. Tensors that it reads and whose values nobody knows, such as the
documents of tokens, are followed through its ops: a result is unsure where it depends on them, but
what is closed by a causal condition is closed whatever they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import flex_attention as flex
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.host_values import known_values
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.ops.attention import ATTENDED, LEAST_ATTENDED
from wavecast.traces.step import Scalar

Attributes = list[tuple[str, Scalar]]
_OPEN = "_wavecast_open_blocks"
"""The attribute of a mask's counts of blocks that keeps what its function leaves open."""
_NO_BLOCKS = 1 << 30
"""The block size with which torch says that there is no mask."""


def flex_attention(recorder: OpRecorder, assumptions: Assumptions) -> dict[str, Any]:
    """The replacements in torch's module, by name: the operator, and how eager code calls it."""

    def attend(
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        *_: Any,
        **__: Any,
    ) -> Any:
        attributes = _attended(block_mask, query, key, assumptions)
        # Such as a learned bias of the scores.
        learned = [tensor for tensor in _tensors_of(score_mod) if tensor.requires_grad]
        return _FlexAttention.apply(recorder, attributes, query, key, value, *learned)

    @contextmanager
    def uncompiled() -> Iterator[str]:
        if not assumptions.compiled:
            assumptions.note(
                f"flex_attention at {user_line()} runs outside of compiled code, where torch "
                "computes all scores; the fused kernel of compiled code was assumed"
            )
        yield "eager"

    direct = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "setup_compilation_env": uncompiled}
    known = {name: value for name, value in direct.items() if hasattr(flex, name)}
    return {"flex_attention_hop": attend, **known}


class _FlexAttention(torch.autograd.Function):
    """The forward and backward kernels, each as one recorded op."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: OpRecorder,
        attributes: Attributes,
        query: Any,
        key: Any,
        value: Any,
        *learned: Any,
    ) -> Any:
        same_width = query.shape[-1] == value.shape[-1]
        shape = (*query.shape[:-1], value.shape[-1])
        # The output has the layout of the query.
        out = torch.empty_like(query) if same_width else query.new_empty(shape)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        maxima = query.new_empty(0, dtype=torch.float32)
        recorder.record("flex_attention", [query, key, value, *learned], [out, sums], attributes)
        ctx.save_for_backward(query, key, value, out, sums, *learned)
        ctx.recorder, ctx.attributes = recorder, attributes
        ctx.mark_non_differentiable(maxima)
        ctx.set_materialize_grads(False)
        return out, sums, maxima

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, out, sums, *learned = ctx.saved_tensors
        results = [torch.empty_like(tensor) for tensor in (query, key, value, *learned)]
        given = [gradient for gradient in gradients[:2] if gradient is not None]
        inputs = [query, key, value, out, sums, *given, *learned]
        ctx.recorder.record("flex_attention_backward", inputs, results, ctx.attributes)
        return None, None, *results


def _attended(
    block_mask: tuple[Any, ...], query: Any, key: Any, assumptions: Assumptions
) -> Attributes:
    """How many pairs of a query and a key, of one sequence and head, the kernel computes.

    Where data decide, the most are assumed, and the fewest are said as well.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    *_, q_block, k_block, _mask = block_mask
    if q_block >= _NO_BLOCKS:
        return [(ATTENDED, int(queries * keys))]
    all_blocks = math.ceil(queries / q_block) * math.ceil(keys / k_block)
    listed = fewest = _listed_blocks(block_mask)
    if listed is None or fewest is None:
        most, fewest = _open_blocks(block_mask, queries, keys)
        indices = (part for part in (block_mask[3], block_mask[5]) if part is not None)
        room = sum(math.prod(part.shape[-2:]) for part in indices)
        listed = min(most, room)
        if fewest < listed:
            assumptions.note(
                f"the mask of flex_attention at {user_line()} depends on data: between "
                f"{fewest / all_blocks:.1%} and {listed / all_blocks:.1%} of its blocks are "
                "computed; the most were assumed"
            )
    most_pairs, least_pairs = (
        int(min(blocks * q_block * k_block, queries * keys)) for blocks in (listed, fewest)
    )
    attributes: Attributes = [(ATTENDED, most_pairs)]
    if least_pairs < most_pairs:
        attributes.append((LEAST_ATTENDED, least_pairs))
    return attributes


def _open_blocks(block_mask: tuple[Any, ...], queries: int, keys: int) -> OpenBlocks:
    """The open blocks of a mask, computed once: layers share it."""
    *_, q_block, k_block, mask = block_mask
    counts = block_mask[2]
    if not hasattr(counts, _OPEN):
        # In compiled code, the user's function would be compiled, too.
        count = torch.compiler.disable(open_blocks)
        setattr(counts, _OPEN, count(mask, queries, keys, q_block, k_block))
    known: OpenBlocks = getattr(counts, _OPEN)
    return known


def _listed_blocks(block_mask: tuple[Any, ...]) -> int | None:
    """How many blocks of keys a mask lists for one sequence and head; None if it is not known."""
    lists = [
        known_values(counts) for counts in (block_mask[2], block_mask[4]) if counts is not None
    ]
    if any(counts is None for counts in lists):
        return None
    return sum(math.ceil(int(n.sum()) / int(math.prod(n.shape[:-1]))) for n in lists)


def _tensors_of(function: Any, depth: int = 4) -> Iterator[Any]:
    """The tensors that a function holds: in its closure, or in the functions that it calls."""
    for cell in getattr(function, "__closure__", None) or ():
        inside = cell.cell_contents
        if isinstance(inside, torch.Tensor):
            yield inside
        elif isinstance(inside, torch.nn.Module):
            yield from inside.parameters()
        elif callable(inside) and depth:
            yield from _tensors_of(inside, depth - 1)
        elif isinstance(inside, list | tuple):
            for item in inside:
                if callable(item) and depth:
                    yield from _tensors_of(item, depth - 1)


# The blocks that a mask leaves open.

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
