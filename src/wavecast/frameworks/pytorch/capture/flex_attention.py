"""`flex_attention`, taken as the one fused kernel that torch.compile makes of it.

Torch has no fake version of it with a backward pass. While tracing, the operator behind
`torch.nn.attention.flex_attention` is replaced by one that records the op and returns empty
results. Kernels skip blocks that the mask leaves empty; these are counted with the user's own mask
function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.traces.step import Scalar

_MOST_PAIRS = 1 << 24
"""With more pairs of a query and a key, only some rows of each block of the mask are computed."""
_NO_BLOCKS = 1 << 30
"""The block size with which torch says that there is no mask."""


def flex_attention(recorder: OpRecorder, assumptions: Assumptions) -> Callable[..., Any]:
    """The replacement of torch's operator."""

    def attend(
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        *_: Any,
        **__: Any,
    ) -> Any:
        pairs = _attended_pairs(block_mask, query, key, assumptions)
        learned = list(_learned_tensors(score_mod))
        return _FlexAttention.apply(recorder, pairs, query, key, value, *learned)

    return attend


class _FlexAttention(torch.autograd.Function):
    """The forward and backward kernels, each as one recorded op."""

    @staticmethod
    def forward(
        ctx: Any, recorder: OpRecorder, pairs: int, query: Any, key: Any, value: Any, *learned: Any
    ) -> Any:
        same_width = query.shape[-1] == value.shape[-1]
        shape = (*query.shape[:-1], value.shape[-1])
        # The output has the layout of the query.
        out = torch.empty_like(query) if same_width else query.new_empty(shape)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        maxima = query.new_empty(0, dtype=torch.float32)
        attributes: list[tuple[str, Scalar]] = [("attended_pairs", pairs)]
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


def _attended_pairs(
    block_mask: tuple[Any, ...], query: Any, key: Any, assumptions: Assumptions
) -> int:
    """How many pairs of a query and a key, of one sequence and head, the kernel computes."""
    queries, keys = query.shape[-2], key.shape[-2]
    *_, q_block, k_block, mask = block_mask
    if q_block >= _NO_BLOCKS:
        return int(queries * keys)
    if any(True for _ in _tensors_of(mask)):
        assumptions.note(
            f"the mask of flex_attention at {user_line()} depends on data; no block of it was "
            "assumed to be empty"
        )
        return int(queries * keys)
    # In compiled code, the user's function would be compiled, too.
    count = torch.compiler.disable(_pairs_in_blocks)
    with no_dispatch(), torch.no_grad():
        return int(count(mask, queries, keys, q_block, k_block))


def _pairs_in_blocks(mask: Any, queries: int, keys: int, q_block: int, k_block: int) -> int:
    """The pairs in all blocks of the mask that are not empty, in the first sequence and head."""
    rows = _rows(queries, keys, q_block)
    zero = torch.zeros((), dtype=torch.int64)
    allowed = mask(zero, zero, rows[:, None], torch.arange(keys)[None, :])
    allowed = torch.as_tensor(allowed).expand(len(rows), keys)
    padding = -keys % k_block
    padded = torch.nn.functional.pad(allowed, (0, padding))
    used = padded.view(len(rows), -1, k_block).any(-1).to(torch.int64)
    blocks = torch.zeros(math.ceil(queries / q_block), used.shape[1], dtype=torch.int64)
    blocks.index_add_(0, rows // q_block, used)
    count = int((blocks > 0).sum())
    return min(count * q_block * k_block, queries * keys)


def _rows(queries: int, keys: int, block: int) -> Any:
    """The queries whose rows of the mask are computed: all, or some of each block and its last."""
    rows = torch.arange(queries)
    if queries * keys <= _MOST_PAIRS:
        return rows
    apart = max(1, block // max(1, _MOST_PAIRS // (keys * math.ceil(queries / block))))
    inside = rows % block
    return rows[(inside % apart == 0) | (inside == block - 1) | (rows == queries - 1)]


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
