"""The weights of a recurrent layer in one tensor, as cuDNN needs them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from wavecast.frameworks.pytorch.recording.structure import key_of

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
