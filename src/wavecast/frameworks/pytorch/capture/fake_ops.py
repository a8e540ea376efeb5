"""Fake versions of ops whose results on CUDA differ from those of torch's fake CPU tensors.

Each function returns empty tensors of the shapes, types and layouts that CUDA would return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.rnn import (
    flat_numel,
    flatten_weight,
    fused_gru_cell,
    fused_gru_cell_backward,
    parts_of,
)
from wavecast.frameworks.pytorch.capture.values.places import suggested
from wavecast.frameworks.pytorch.recording.user_lines import user_line

_aten = torch.ops.aten
_BAG_MAX = 2


def _native_batch_norm(
    source: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> Any:
    """Batch norm whose statistics of a half-precision batch are float32, as on CUDA."""
    count = source.shape[1] if training else 0
    dtype = torch.float32 if source.dtype in (torch.float16, torch.bfloat16) else source.dtype
    statistics = (source.new_empty(count, dtype=dtype) for _ in range(2))
    return torch.empty_like(source), *statistics


def _batch_norm_stats(source: Any, *_: Any) -> Any:
    """Mean and deviation of each channel, for SyncBatchNorm: float32 for half precision."""
    dtype = torch.float32 if source.dtype in (torch.float16, torch.bfloat16) else source.dtype
    return tuple(source.new_empty(source.shape[1], dtype=dtype) for _ in range(2))


def _batch_norm_backward_reduce(
    gradient: Any, source: Any, mean: Any, _: Any, weight: Any, *wanted: bool
) -> Any:
    """The sums of one rank for the backward pass of SyncBatchNorm."""
    sums = [torch.empty_like(mean) if is_wanted else None for is_wanted in (wanted[0],) * 2]
    like = mean if weight is None else weight
    return (*sums, *(torch.empty_like(like) if is_wanted else None for is_wanted in wanted[1:]))


def _ctc_loss(log_probs: Any, targets: Any, _lengths: Any, target_lengths: Any, *_: Any) -> Any:
    """CTC losses, and the table over all states of the longest target for the backward pass."""
    steps, batch = log_probs.shape[:2]
    states = 2 * max(target_lengths) + 1
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, states))


def _cudnn_batch_norm(
    source: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> Any:
    """Statistics in the weights' type, and no reserved memory (as on an H200 with cuDNN 9.19)."""
    count = source.shape[1] if training else 0
    statistics = (weight.new_empty(count) for _ in range(2))
    return torch.empty_like(source), *statistics, source.new_empty(0, dtype=torch.uint8)


def _convolution(source: Any, weight: Any, *args: Any) -> Any:
    """A convolution whose result is channels_last if either input is, as with cuDNN."""
    return in_layout(suggested(source, weight), _aten.convolution.default(source, weight, *args))


def _convolution_backward(gradient: Any, source: Any, weight: Any, *args: Any) -> Any:
    layout = suggested(source, weight)
    d_source, d_weight, d_bias = _aten.convolution_backward.default(gradient, source, weight, *args)
    return in_layout(layout, d_source), in_layout(layout, d_weight), d_bias


def in_layout(layout: Any, tensor: Any) -> Any:
    """A tensor of a memory format like this one; this one if it has it."""
    if tensor is None or suggested(tensor) == layout:
        return tensor
    return torch.empty_like(tensor, memory_format=layout)


def _embedding(weight: Any, indices: Any, *args: Any) -> Any:
    """A lookup. Its last argument is whether the gradient is sparse."""
    _refuse_sparse(weight, len(args) > 2 and args[2])
    return _aten.embedding.default(weight, indices, *args)


def _refuse_sparse(weight: Any, sparse: bool) -> None:
    if sparse and weight.requires_grad and torch.is_grad_enabled():
        raise CaptureError(
            f"the step looks up a table with sparse=True at {user_line()}; sparse gradients cannot "
            "be traced; use sparse=False and an optimizer for dense gradients, and note that the "
            "gradient is then as large as the table"
        )


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """An embedding bag that keeps positions of maxima only in mode "max" (EmbeddingBag.cu)."""
    _refuse_sparse(weight, sparse)
    bags, size = offsets.shape[0] - include_last_offset, weight.shape[1]
    return (
        weight.new_empty((bags, size)),
        torch.empty_like(indices),
        torch.empty_like(offsets),
        indices.new_empty((bags, size) if mode == _BAG_MAX else 0),
    )


def grouped_mm(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """One matmul per group of rows. Torch's fake version takes only bf16, CUDA's all floats."""
    shape: tuple[int, ...]
    if a.dim() == 2 and b.dim() == 2:
        shape = (offs.shape[0], a.shape[0], b.shape[1])
    elif a.dim() == 3 and b.dim() == 3:
        shape = (a.shape[0], a.shape[1], b.shape[2])
    else:
        shape = (a.shape[-2], b.shape[-1])
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


_RESERVED_PER_UNIT = {0: 1, 1: 1, 2: 5, 3: 6}
"""How many numbers cuDNN keeps per time step and hidden unit for the backward pass, by cell (0 and
1: plain RNN, 2: LSTM, 3: GRU). Derived from the sizes that it allocated on an H200."""


def _cudnn_rnn(
    source: Any,
    weights: Any,
    stride: int,
    buffer: Any,
    hidden: Any,
    cell: Any,
    mode: int,
    size: int,
    projected: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Any,
    noise: Any,
) -> Any:
    """The output, the states, the memory reserved for backward, and the weights in one tensor."""
    if buffer is None:
        buffer = weights[0].new_empty(flat_numel(weights, stride))
    directions = 2 if bidirectional else 1
    output = source.new_empty((*source.shape[:-1], (projected or size) * directions))
    positions = source.numel() // source.shape[-1]
    units = positions * size * directions
    numbers = units * (_RESERVED_PER_UNIT[mode] * layers + layers - 1)
    if projected:  # the output of each time step, before and after the projection
        numbers += positions * directions * layers * (size + projected)
    masks = units * (layers - 1) * directions // 8 if noise is not None else 0
    reserve = numbers * source.element_size() + masks + 256 if train else 0
    return (
        output,
        torch.empty_like(hidden),
        source.new_empty(0) if cell is None else torch.empty_like(cell),
        source.new_empty(reserve, dtype=torch.uint8),
        buffer,
    )


def _cudnn_rnn_backward(*args: Any) -> Any:
    """The gradients of input and states, and of the weights if they are needed."""
    source, weights, stride, buffer, hidden, cell = args[:6]
    gradients: list[Any] = []
    if args[-1][3]:
        # Without biases, cuDNN's layout differs from torch's, and torch makes copies.
        own = stride < 4
        gradients = (
            [torch.empty_like(w) for w in weights]
            if own
            else parts_of(torch.empty_like(buffer), weights)
        )
    return (
        torch.empty_like(source),
        torch.empty_like(hidden),
        None if cell is None else torch.empty_like(cell),
        gradients,
    )


FAKE_OPS: dict[Any, Callable[..., Any]] = {
    _aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
    _aten.native_batch_norm.default: _native_batch_norm,
    _aten.cudnn_batch_norm.default: _cudnn_batch_norm,
    _aten.batch_norm_stats.default: _batch_norm_stats,
    _aten.batch_norm_gather_stats_with_counts.default: _batch_norm_stats,
    _aten.batch_norm_elemt.default: lambda source, *_: torch.empty_like(source),
    _aten.batch_norm_backward_reduce.default: _batch_norm_backward_reduce,
    _aten.batch_norm_backward_elemt.default: lambda _, source, *__: torch.empty_like(source),
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.embedding.default: _embedding,
    _aten._embedding_bag.default: _embedding_bag,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten._cudnn_rnn.default: _cudnn_rnn,
    _aten._cudnn_rnn_flatten_weight.default: flatten_weight,
    _aten._thnn_fused_gru_cell.default: fused_gru_cell,
    _aten._thnn_fused_gru_cell_backward.default: fused_gru_cell_backward,
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss_backward.default: lambda _, log_probs, *__: torch.empty_like(log_probs),
    # The CPU's op uses the memory format of the input, CUDA's that of the gradient.
    _aten.hardswish_backward.default: lambda grad, _: torch.empty_like(grad),
    # The CPU's op refuses integers, CUDA's does not.
    _aten.histc.default: lambda tensor, bins=100, *_, **__: tensor.new_empty(bins),
}
"""The fake version of each op. The results depend on shapes alone, so none needs a note."""
