"""`flex_attention`, taken as the one fused kernel that torch.compile makes of it.

Torch has no fake version of it with a backward pass. While tracing, the operator behind
`torch.nn.attention.flex_attention` is replaced by one that records the op and returns empty
results. Kernels skip blocks that the mask leaves empty; these are counted with the user's own mask
function (`flex_masks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.flex_masks import OpenBlocks, open_blocks
from wavecast.frameworks.pytorch.capture.host_values import known_values
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
        learned = list(_learned_tensors(score_mod))
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
        listed = min(most, _listed_at_most(block_mask))
        if fewest < listed:
            assumptions.note(
                f"the mask of flex_attention at {user_line()} depends on data: between "
                f"{fewest / all_blocks:.1%} and {listed / all_blocks:.1%} of its blocks are "
                "computed; the most were assumed"
            )
    most_pairs, least_pairs = (
        int(min(blocks * q_block * k_block, queries * keys)) for blocks in (listed, fewest)
    )
    possible = [(LEAST_ATTENDED, least_pairs)] if least_pairs < most_pairs else []
    return [(ATTENDED, most_pairs), *possible]


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


def _listed_at_most(block_mask: tuple[Any, ...]) -> int:
    """How many blocks of keys a mask has room for."""
    indices = [listed for listed in (block_mask[3], block_mask[5]) if listed is not None]
    return sum(math.prod(listed.shape[-2:]) for listed in indices)


def _learned_tensors(function: Any) -> Iterator[Any]:
    """The tensors inside a function that get gradients, such as a learned bias of the scores."""
    return (tensor for tensor in _tensors_of(function) if tensor.requires_grad)


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
