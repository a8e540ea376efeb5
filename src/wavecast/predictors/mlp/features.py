"""The inputs of the networks: the layer that an op runs, its sizes, and numbers of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.ops.reading import reading
from wavecast.predictors.mlp.layers import Bmm, Conv2d, Layer, Linear, Lstm
from wavecast.traces.step import Op, TensorSpec

DEVICE_FEATURES = ("memory_bytes", "memory_bytes_per_s", "sm_count", "fp32_flops")
"""The fields of a device that are inputs, after those of the layer."""

Features = tuple[float, ...]


def device_features(device: Device) -> Features | None:
    """The numbers of a GPU that are inputs; None if one is not known."""
    values = [getattr(device, name) for name in DEVICE_FEATURES]
    return None if None in values else tuple(float(value) for value in values)


def features_of(layer: Layer, numbers: Features) -> Features:
    """All inputs: the sizes of the layer, then the numbers of the GPU."""
    return (*map(float, layer.features()), *numbers)


def layer_of(op: Op) -> Layer | None:
    """The layer that an op runs, forward or backward; None if it is none of the four kinds.

    A matmul counts as a linear layer with as many rows. So does each of the two matmuls of
    a linear layer's backward pass.
    """
    maker = _LAYERS.get(op.base)
    if maker is None or not ops.launches(op):
        return None
    try:
        return reading(maker, None, op) if ops.has_shapes(op) else None
    except InvalidInput:  # a size of 0, or a filter larger than the image: nothing to run
        return None


def computes_all(op: Op) -> bool:
    """Whether an op computes all that was measured: backward, gradients of input and weights."""
    wanted = op.attr("output_mask")
    if "backward" not in op.base or not isinstance(wanted, tuple) or len(wanted) < 2:
        return True
    weights = wanted[1] if "convolution" in op.base else wanted[-1]
    return bool(wanted[0] and weights)


def _linear(op: Op, first: int = 0) -> Layer | None:
    a, b = op.inputs[first : first + 2]
    if first and (len(op.inputs[0].shape) > 1 or not op.attr("beta", 1)):
        return None  # a whole matrix is added, which no layer does
    return Linear(bool(first), a.shape[0], a.shape[1], b.shape[1])


def _bmm(op: Op, first: int = 0) -> Layer | None:
    a, b = op.inputs[first : first + 2]
    return Bmm(a.shape[0], a.shape[1], a.shape[2], b.shape[2])


def _conv2d(op: Op) -> Layer | None:
    backward = "backward" in op.base
    if len(op.inputs) < (3 if backward else 2):
        return None
    image, weight = op.inputs[1:3] if backward else op.inputs[:2]
    out = op.inputs[0] if backward else op.outputs[0]
    mask = op.attr("output_mask")
    bias = mask[-1] if backward and isinstance(mask, tuple) else len(op.inputs) > 2
    plain = op.attr("groups", 1) == 1 and not op.attr("transposed", False)
    sides = [_side(image), _side(weight), _side(out)]
    options = [_both(op, "stride", 1), _both(op, "padding", 0), _both(op, "dilation", 1)]
    if not plain or None in sides or None in options or options[2] != 1:
        return None
    channels = weight.shape[1], weight.shape[0]
    sizes = (sides[0], *channels, sides[1], options[0], options[1])
    layer = Conv2d(bool(bias), image.shape[0], *(int(size or 0) for size in sizes))
    return layer if layer.out_image == sides[2] else None


def _side(tensor: TensorSpec) -> int | None:
    """The side of square images or filters; None if they are not square."""
    shape = tensor.shape
    return shape[2] if len(shape) == 4 and shape[2] == shape[3] else None


def _both(op: Op, name: str, default: int) -> int | None:
    """The value of an option that is the same for height and width; None if they differ."""
    value = op.attr(name, (default,))
    return int(value[0]) if isinstance(value, tuple) and len(set(value)) == 1 else None


def _lstm(op: Op) -> Layer | None:
    sequences = op.inputs[0].shape
    if op.attr("mode") != _LSTM_MODE or op.attr("proj_size", 0) or len(sequences) != 3:
        return None
    batch, length = sequences[:2] if op.attr("batch_first", False) else sequences[1::-1]
    return Lstm(
        bias=_number(op, "weight_stride0", 4) >= 4,
        bidirectional=bool(op.attr("bidirectional", False)),
        batch=batch,
        sequence=length,
        inputs=sequences[2],
        hidden=_number(op, "hidden_size", 0),
        layers=_number(op, "num_layers", 1),
    )


def _number(op: Op, name: str, default: int) -> int:
    value = op.attr(name, default)
    return value if isinstance(value, int) else default


_LSTM_MODE = 2  # cuDNN's number for an LSTM
_LAYERS: Mapping[str, Callable[[Op], Layer | None]] = {
    "aten.mm": _linear,
    "aten.addmm": lambda op: _linear(op, 1),
    "aten.bmm": _bmm,
    "aten.baddbmm": lambda op: _bmm(op, 1),
    "aten.convolution": _conv2d,
    "aten._convolution": _conv2d,
    "aten.cudnn_convolution": _conv2d,
    "aten.convolution_backward": _conv2d,
    "aten._cudnn_rnn": _lstm,
    "aten._cudnn_rnn_backward": _lstm,
}
