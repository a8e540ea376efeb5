"""LSTM, GRU and RNN layers as cuDNN runs them: one op forward and one op backward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.values.host_values import known_values
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.structure import key_of

_aten = torch.ops.aten

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
            self._dropout_state(source) if train and dropout > 0 else None,
        )
        return (output, hidden_n) if cell is None else (output, hidden_n, cell_n)

    def _dropout_state(self, source: Any) -> Any:
        """cuDNN's random state. It is made once and kept, so it is not recorded."""
        with self.recorder.silence():
            return torch.empty(0, dtype=torch.uint8, device=source.device)


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
    as_wanted = storage.nbytes() == flat_numel(weights, stride) * first.element_size() and all(
        key_of(weight) == key_of(first)
        and weight.is_contiguous()
        and weight.storage_offset() == offset
        for weight, offset in zip(weights, _offsets(weights), strict=True)
    )
    if not as_wanted:
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
