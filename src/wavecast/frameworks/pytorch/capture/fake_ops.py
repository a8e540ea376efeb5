"""Fake versions of ops whose results on CUDA differ from those of torch's fake CPU tensors.

Each function returns empty tensors of the shapes, types and layouts that CUDA would return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.values.host_values import known_values
from wavecast.frameworks.pytorch.capture.values.places import suggested
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.structure import key_of
from wavecast.frameworks.pytorch.recording.user_lines import user_line

# LSTM, GRU and RNN layers as cuDNN runs them: one op forward and one op backward.


_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class RecurrentLayer:
    """A cuDNN recurrent layer of one cell type (aten/native/cudnn/RNN.cpp)."""

    cell: str
    recorder: OpRecorder

    def run_padded(
        self,
        source: Any,
        states: Any,
        weights: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        """The layer over a padded batch: `aten::lstm.input` and its siblings."""
        settings = (num_layers, dropout, train, bidirectional)
        return self._run(source, states, weights, has_biases, settings, batch_first, [])

    def run_packed(
        self,
        source: Any,
        batch_sizes: Any,
        states: Any,
        weights: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        """The layer over a packed sequence: `aten::lstm.data` and its siblings."""
        settings = (num_layers, dropout, train, bidirectional)
        sizes = known_values(batch_sizes).tolist()
        return self._run(source, states, weights, has_biases, settings, False, sizes)

    def _run(
        self,
        source: Any,
        states: Any,
        weights: list[Any],
        has_biases: bool,
        settings: tuple[int, float, bool, bool],
        batch_first: bool,
        batch_sizes: list[int],
    ) -> Any:
        num_layers, dropout, train, bidirectional = settings
        hidden, cell = states if self.cell == "lstm" else (states, None)
        size = weights[0].shape[0] // _GATES[self.cell]
        per_layer = len(weights) // (num_layers * (2 if bidirectional else 1))
        projected = hidden.shape[2] if per_layer == (5 if has_biases else 3) else 0
        buffer = flat_weights(weights, per_layer)
        if torch.is_autocast_enabled("cuda"):
            # `_cudnn_rnn_cast_reflatten` always casts to float16, whatever autocast's type is.
            buffer, weights = _flat_copies(weights, torch.float16)
            hidden, cell, source = (
                None if t is None else t.to(torch.float16) for t in (hidden, cell, source)
            )
        noise = None
        if train and dropout > 0:
            with self.recorder.silence():  # cuDNN's random state is made once and kept
                noise = torch.empty(0, dtype=torch.uint8, device=source.device)
        output, hidden_n, cell_n, _, _ = _aten._cudnn_rnn(
            source,
            weights,
            per_layer,
            buffer,
            hidden,
            cell,
            CUDNN_MODES[self.cell],
            size,
            projected,
            num_layers,
            batch_first,
            dropout,
            train,
            bidirectional,
            batch_sizes,
            noise,
        )
        return (output, hidden_n) if cell is None else (output, hidden_n, cell_n)


def lstm_cell(
    source: Any, states: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """One time step of an LSTM: two matmuls and a fused kernel (`LSTMCell`, native/RNN.cpp)."""
    hidden, cell = states
    gates = torch.mm(source, w_ih.t()), torch.mm(hidden, w_hh.t())
    return _aten._thnn_fused_lstm_cell(*gates, cell, b_ih, b_hh)[:2]


def gru_cell(
    source: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """One time step of a GRU: two matmuls and a fused kernel."""
    gates = torch.mm(source, w_ih.t()), torch.mm(hidden, w_hh.t())
    return _aten._thnn_fused_gru_cell(*gates, hidden, b_ih, b_hh)[0]


def fused_gru_cell(input_gates: Any, hidden_gates: Any, hidden: Any, *_biases: Any) -> Any:
    """The results of `_thnn_fused_gru_cell`: the new state, and a workspace for backward."""
    batch, size = hidden.shape
    return torch.empty_like(hidden), hidden.new_empty(batch, 5 * size)


def fused_gru_cell_backward(gradient: Any, _workspace: Any, has_bias: bool) -> Any:
    """The results of its backward: the gradients of both gates, the state and the biases."""
    batch, size = gradient.shape
    gates = [gradient.new_empty(batch, 3 * size) for _ in range(2)]
    biases = [gradient.new_empty(3 * size) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(gradient), *biases)


def _flat_copies(weights: list[Any], dtype: Any) -> tuple[Any, list[Any]]:
    """All weights cast into one new buffer, as under autocast: matrices first, then biases."""
    place = {"dtype": dtype, "device": weights[0].device}
    buffer = torch.zeros(sum(w.numel() for w in weights), **place)
    offset, offsets = 0, {}
    for index in sorted(range(len(weights)), key=lambda i: weights[i].dim() == 1):
        offsets[index] = offset
        offset += weights[index].numel()
    parts = []
    for index, weight in enumerate(weights):
        part = torch.empty(0, **place)
        with torch.no_grad():
            part.set_(buffer.untyped_storage(), offsets[index], (weight.numel(), 1))
        parts.append(part)
    return buffer, [p.copy_(w.view(p.shape)) for p, w in zip(parts, weights, strict=True)]


# The weights of a recurrent layer in one tensor, as cuDNN needs them.


CUDNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_FLATTENED = (torch.float16, torch.float32, torch.float64)
"""`torch.backends.cudnn.CUDNN_TENSOR_DTYPES`."""
_WITH_BIASES = 4
"""The fewest weights of a layer with biases, in one direction: two matrices and two biases."""


def flatten_parameters(layer: Any) -> None:
    """`torch.nn.RNNBase.flatten_parameters` without memory addresses, which fake tensors lack."""
    weights, names = layer._flat_weights, layer._flat_weights_names
    if len(weights) != len(names) or not all(isinstance(w, torch.Tensor) for w in weights):
        return
    dtype = weights[0].dtype
    if dtype not in _FLATTENED or not all(w.is_cuda and w.dtype is dtype for w in weights):
        return
    if len({(key_of(w), w.storage_offset()) for w in weights}) < len(weights):
        return  # some weights are tied
    with torch.no_grad():
        torch._cudnn_rnn_flatten_weight(
            weights,
            (4 if layer.bias else 2) + (layer.proj_size > 0),
            layer.input_size,
            CUDNN_MODES[layer.mode.lower()],
            layer.hidden_size,
            layer.proj_size,
            layer.num_layers,
            layer.batch_first,
            bool(layer.bidirectional),
        )


def flatten_weight(weights: list[Any], stride: int, *_: Any) -> Any:
    """`_cudnn_rnn_flatten_weight`: make all weights views of one new tensor, and return it."""
    flat = weights[0].new_empty(flat_numel(weights, stride))
    for weight, part in zip(weights, parts_of(flat, weights), strict=True):
        # As with `set_data` in C++, tensors that autograd has saved do not count as changed.
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
            weight.set_(flat.untyped_storage(), part.storage_offset(), part.shape, part.stride())
    return flat


def flat_weights(weights: list[Any], stride: int) -> Any:
    """The flat tensor that holds all weights in cuDNN's order (`try_get_weight_buf`).

    `flatten_parameters` makes it. None if there is none, as in a copy of the layer.
    """
    first, storage = weights[0], weights[0].untyped_storage()
    in_one_buffer = storage.nbytes() == flat_numel(weights, stride) * first.element_size() and all(
        key_of(weight) == key_of(first)
        and weight.is_contiguous()
        and weight.storage_offset() == offset
        for weight, offset in zip(weights, _offsets(weights), strict=True)
    )
    if not in_one_buffer:
        return None
    with torch.no_grad():
        return torch.empty(0, dtype=first.dtype, device=first.device).set_(storage)


def flat_numel(weights: list[Any], stride: int) -> int:
    """The elements of the flat tensor. It has room for biases even if the layer has none."""
    biases = 0 if stride >= _WITH_BIASES else len(weights) // stride * 2 * weights[0].shape[0]
    return int(sum(weight.numel() for weight in weights) + biases)


def parts_of(flat: Any, weights: list[Any]) -> list[Any]:
    """Views of the flat tensor, one for each weight."""
    return [
        flat.as_strided(weight.shape, weight.stride(), offset)
        for weight, offset in zip(weights, _offsets(weights), strict=True)
    ]


def _offsets(weights: list[Any]) -> list[int]:
    """The offset of each weight: matrices come first, then biases."""
    order = sorted(range(len(weights)), key=lambda index: weights[index].dim() == 1)
    ends = accumulate(weights[index].numel() for index in order)
    begins = {index: end - weights[index].numel() for index, end in zip(order, ends, strict=True)}
    return [begins[index] for index in range(len(weights))]


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
    gradient: Any, source: Any, mean: Any, _: Any, weight: Any, *needed: bool
) -> Any:
    """The sums of one rank for the backward pass of SyncBatchNorm."""
    sums = [torch.empty_like(mean) if is_needed else None for is_needed in (needed[0],) * 2]
    like = mean if weight is None else weight
    return (*sums, *(torch.empty_like(like) if is_needed else None for is_needed in needed[1:]))


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
