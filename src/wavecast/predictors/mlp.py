"""Habitat's MLPs as a predictor (Yu et al., ATC 2021, section 4.3).

The networks know no physics. Their answers are not below the physical bound, but a better GPU may
be predicted slower, and a larger layer faster. Outside of the layers, GPUs and times on which a
network was trained, it does not answer, unless it may go beyond its layers as the paper's do.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.errors import InvalidInput, UnknownName, prefixed
from wavecast.files import read_toml, refusing_unwritable, replacing, shipped, toml_text
from wavecast.hardware.devices import Device, available
from wavecast.ops import Unit
from wavecast.ops.registry import reading
from wavecast.predictors.attainable import bound
from wavecast.predictors.base import Estimate, Predictor
from wavecast.reading import read_bytes
from wavecast.traces.step import Op, TensorSpec

# The four layers whose kernels vary between GPUs (Habitat, section 3.2), and their measured times.
#
# Libraries choose different kernels for these on different GPUs, so their times are learned from
# measurements (section 4.3.1).


Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Sized:
    """Checks the sizes of a layer: integers of at least 1 (or 0 if the range begins there).

    Switches are 0 or 1. Sizes may exceed the range, which is only for sampling.
    """

    KIND: ClassVar[str]
    """The name of the kind of layer."""

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges().items():
            value = getattr(self, name)
            least, most = min(low, 1), 1 if (low, high) == (0, 1) else value
            if not least <= value <= most:
                raise InvalidInput(f"a {self.KIND} layer cannot have {name} = {value}")

    @classmethod
    def ranges(cls) -> Ranges:
        """The range from which each size is sampled, ends included (Habitat, section 4.3.1)."""
        return {field.name: field.metadata["range"] for field in fields(cls)}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the sizes, in the order of `features`."""
        return tuple(field.name for field in fields(cls))

    def features(self) -> tuple[int, ...]:
        """The sizes as integers, in the order of the fields; a switch is 0 or 1."""
        return tuple(int(getattr(self, name)) for name in self.names())


def _size(low: int, high: int) -> Any:
    return field(metadata={"range": (low, high)})


@dataclass(frozen=True, slots=True)
class Conv2d(_Sized):
    """A convolution of square images with square filters, in one group and without dilation."""

    KIND = "conv2d"

    bias: bool = _size(0, 1)
    batch: int = _size(1, 64)
    image: int = _size(1, 256)
    in_channels: int = _size(3, 2048)
    out_channels: int = _size(16, 2048)
    kernel: int = _size(1, 11)
    stride: int = _size(1, 4)
    padding: int = _size(0, 3)

    def __post_init__(self) -> None:
        # Explicit: super() without arguments does not work in a dataclass with slots.
        _Sized.__post_init__(self)
        if self.kernel > self.image + 2 * self.padding:
            raise InvalidInput(
                f"a filter of {self.kernel} does not fit an image of {self.image} "
                f"with a padding of {self.padding}"
            )

    @property
    def out_image(self) -> int:
        """The side of the output images."""
        return (self.image + 2 * self.padding - self.kernel) // self.stride + 1


@dataclass(frozen=True, slots=True)
class Lstm(_Sized):
    """An LSTM over whole sequences, in cuDNN's layout: sequence first."""

    KIND = "lstm"

    bias: bool = _size(0, 1)
    bidirectional: bool = _size(0, 1)
    batch: int = _size(1, 128)
    sequence: int = _size(1, 64)
    inputs: int = _size(1, 1280)
    hidden: int = _size(1, 1280)
    layers: int = _size(1, 6)


@dataclass(frozen=True, slots=True)
class Bmm(_Sized):
    """A batched matmul: `batch` times (left, middle) by (middle, right)."""

    KIND = "bmm"

    batch: int = _size(1, 128)
    left: int = _size(1, 1024)
    middle: int = _size(1, 1024)
    right: int = _size(1, 1024)


@dataclass(frozen=True, slots=True)
class Linear(_Sized):
    """A fully connected layer of `batch` rows."""

    KIND = "linear"

    bias: bool = _size(0, 1)
    batch: int = _size(1, 3500)
    in_features: int = _size(1, 32768)
    out_features: int = _size(1, 32768)


Layer = Conv2d | Lstm | Bmm | Linear
KINDS: Mapping[str, type[Layer]] = {cls.KIND: cls for cls in (Conv2d, Lstm, Bmm, Linear)}
"""The class of each kind of layer."""


def layer_type(kind: str) -> type[Layer]:
    """The class of a kind of layer.

    Raises:
        UnknownName: There is no such kind.
    """
    if kind not in KINDS:
        raise UnknownName(f'unknown kind of layer "{kind}"; the kinds are {", ".join(KINDS)}')
    return KINDS[kind]


def layer(kind: str, features: Sequence[float]) -> Layer:
    """The layer with these sizes, as `features()` returned them.

    Raises:
        InvalidInput: Their number is wrong, or a layer cannot have such sizes.
    """
    cls = layer_type(kind)
    names = cls.names()
    if len(features) != len(names):
        raise InvalidInput(f"a {kind} layer has {len(names)} features, not {len(features)}")
    switches = {name for name, ends in cls.ranges().items() if ends == (0, 1)}
    pairs = zip(names, features, strict=True)
    values: dict[str, Any] = {
        name: bool(value) if name in switches else int(value) for name, value in pairs
    }
    return cls(**values)


class LayerStatus(StrEnum):
    """How the measurement of a layer ended."""

    OK = "ok"
    OOM = "oom"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PassTimes:
    """The mean times of a layer's forward and backward pass; None if the status is not ok."""

    forward_s: float | None
    backward_s: float | None
    status: LayerStatus = LayerStatus.OK


# Random layers to measure: the same ones, from the same seed, on every GPU (Habitat, 4.3.1).


def sample(kind: str, seed: int) -> Iterator[Layer]:
    """Endless layers of a kind within their ranges, without duplicates.

    They are the same on every machine and Python version: only `random()` of `random.Random` is
    used, whose sequence Python guarantees, and the rest is exact arithmetic. The paper gives ranges
    but no distribution. Here each size is drawn from its whole range half of the time, and else
    from a range whose high end is halved 0, 1, 2, ... times. Uniform sizes alone would hardly ever
    give a layer as small as in real networks, and logarithmic ones hardly ever a large one.
    """
    cls = layer_type(kind)
    draw = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    while True:
        values = tuple(_drawn_size(draw, low, high) for low, high in cls.ranges().values())
        if values not in seen and _acceptable(kind, values):
            seen.add(values)
            yield layer(kind, values)


def small(kind: str, seed: int) -> Iterator[Layer]:
    """The layers of a sample that a CPU runs in milliseconds, for a trial without a GPU."""
    return (drawn for drawn in sample(kind, seed) if _products(drawn) <= _SMALL_PRODUCTS)


_SMALL_PRODUCTS = 10_000_000
"""The most multiplications in a forward pass of a small layer."""


def _products(sized: Layer) -> int:
    """How many multiplications a forward pass has, of weights or of two matrices."""
    match sized:
        case Bmm():
            return sized.batch * sized.left * sized.middle * sized.right
        case Linear():
            return sized.batch * sized.in_features * sized.out_features
        case Conv2d():
            weights = sized.in_channels * sized.out_channels * sized.kernel**2
            return sized.batch * sized.out_image**2 * weights
        case Lstm():
            directions = 1 + sized.bidirectional
            inner = directions * sized.hidden
            inputs = sized.inputs + (sized.layers - 1) * inner + sized.layers * sized.hidden
            return sized.batch * sized.sequence * directions * 4 * sized.hidden * inputs


def _whole(draw: random.Random, low: int, high: int) -> int:
    return low + int(draw.random() * (high - low + 1))


_WIDE = 32
"""Ranges at least this wide are of sizes; narrower ones are of strides, filters and switches."""


def _drawn_size(draw: random.Random, low: int, high: int) -> int:
    if high - low >= _WIDE and draw.random() < 0.5:
        halvings = _whole(draw, 0, (high // low).bit_length() - 1)
        high = max(low, high >> halvings)
    return _whole(draw, low, high)


def _acceptable(kind: str, values: tuple[int, ...]) -> bool:
    """Whether a drawn layer can exist and is not too large.

    Habitat's code rejects convolutions of image^1.15 * in * out * kernel > 3.5e7. Both sides are
    raised to the 20th power here, so that all numbers are integers, which no machine rounds.
    """
    if kind != Conv2d.KIND:
        return True
    _, _, image, inwards, out, kernel, _, padding = values
    if kernel > image + 2 * padding:
        return False
    return bool(image**23 * (inwards * out * kernel) ** 20 <= 35_000_000**20)


@dataclass(frozen=True, eq=False)
class Mlp(Predictor):
    """Predicts float32 layers (without TF32) of sizes on which its networks were trained.

    Example:
        >>> Mlp.shipped().predict(op, wavecast.device("v100-sxm-16gb"))
    """

    models: Mapping[tuple[str, str], MlpModel]
    """The networks, by kind of layer and pass ("forward", "backward" or "forward+backward")."""
    beyond: bool = False
    """Whether they also answer for layers beyond the sizes that they were trained on. The paper's
    do: its DCGAN has batches of 96 and 128, and its convolutions were sampled up to 64."""

    @classmethod
    @cache
    def shipped(cls) -> Mlp:
        """The shipped networks, which are narrower than published and stored in half precision."""
        return cls.of(map(read_model, sorted(shipped("models").glob("mlp-*.npz"))))

    @classmethod
    def of(cls, models: Iterable[MlpModel]) -> Mlp:
        """A predictor with these networks."""
        return cls({(model.kind, model.target): model for model in models})

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Mlp:
        """A predictor with the networks of these .npz files, each with its card beside it.

        Raises:
            InvalidInput: A file is missing, or is not a network.
        """
        models = []
        for path in paths:
            with prefixed(f"{path}: "):
                models.append(read_model(path))
        return cls.of(models)

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The network's time for the op's layer, at least the physical bound."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, given: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The time of each op; each network computes all its answers at once."""
        questions = [self._question(op, device, _pass(op)) for op in given]
        for model in self.models.values():
            model.seconds(
                [question[1] for question in questions if question and question[0] is model]
            )
        return [
            _estimate(op, device, *question) if question and computes_all(op) else None
            for op, question in zip(given, questions, strict=True)
        ]

    def ratios(self, ops: Sequence[Op], origin: Device, target: Device) -> Sequence[float | None]:
        """How many times as long the target takes for each op, by Habitat's rule (`ratio`)."""
        return [self.ratio(op, origin, target) for op in ops]

    def ratio(self, op: Op, origin: Device, destination: Device) -> float | None:
        """How many times as long an op takes on another GPU; None if the networks do not cover it.

        Habitat's code multiplies a measured time by this ratio of two raw answers. Forward and
        backward have the same ratio if only one of them was trained: the published network has one
        output for both.
        """
        for target in (_pass(op), "forward+backward", "forward"):
            here = self._question(op, origin, target)
            there = self._question(op, destination, target)
            if here is None or there is None:
                continue
            model = here[0]
            before, after = model.seconds([here[1], there[1]])
            if model.least_s < before < math.inf and model.least_s < after < math.inf:
                return after / before
        return None

    def _question(self, op: Op, device: Device, target: str) -> tuple[MlpModel, Features] | None:
        """The network for a pass of an op on a GPU, and its inputs; None if there is none."""
        layer = layer_of(op) if op.inputs and op.inputs[0].dtype == "float32" else None
        if layer is None or available(ops.unit(op), device) is not Unit.FP32:
            return None
        model = self.models.get((layer.KIND, target))
        numbers = device_features(device)
        if model is None or numbers is None or device.vendor not in model.vendors:
            return None
        features = features_of(layer, numbers)
        known = model.knows_gpu(features) if self.beyond else model.covers(features, device.id)
        return (model, features) if known else None


def _pass(op: Op) -> str:
    return "backward" if "backward" in op.base else "forward"


def _estimate(op: Op, device: Device, model: MlpModel, features: Features) -> Estimate | None:
    least = bound(op, device)
    if least is None or least.seconds <= 0:
        return None
    (answer_s,) = model.seconds([features])
    if not model.least_s < answer_s < math.inf:
        return None
    seconds = max(answer_s, least.seconds)
    return Estimate(
        seconds=seconds,
        low_s=max(seconds * model.low, least.seconds),
        high_s=seconds * model.high,
        source="mlp",
    )


# The networks as published: sizes of a layer and numbers of a GPU go in, milliseconds come out.
#
# Each has nine ReLU layers of one width (Habitat, section 4.3) and is trained by `lab/fit/mlp.py`.


Floats = NDArray[np.float64]

DEVICE_MARGIN = 2.0
"""A network answers for GPUs whose numbers lie within its training data, widened by this factor.
Every new GPU exceeds the training data in some number, but far beyond it an answer is arbitrary."""
LEAST_GPUS = 2
"""On how many GPUs such layers must have been measured before a network answers for another."""


@dataclass(frozen=True, eq=False)
class MlpNetwork:
    """The weights of a trained network, and how its inputs are standardised."""

    mean: Floats
    """The mean of each feature in the training data."""
    scale: Floats
    """The factor of each feature after its mean is subtracted; 0 if it never varied."""
    weights: tuple[tuple[NDArray[Any], NDArray[Any]], ...]
    """Matrix (out, in) and bias of each layer."""

    def milliseconds(self, features: Floats) -> Floats:
        """The output for each row of features, independent of the other rows."""
        # One matrix with one row for each: a matmul of all rows at once is rounded differently
        # depending on how many rows there are.
        # An answer that is not finite does not count (`predictor`), so an overflow is no warning.
        with np.errstate(over="ignore", invalid="ignore"):
            rows = ((features - self.mean) * self.scale).astype(np.float32)[:, None, :]
            last = len(self.weights) - 1
            for number, (matrix, bias) in enumerate(self.weights):
                rows = rows @ matrix.T + bias
                if number < last:
                    rows = np.maximum(rows, 0)
        outputs: Floats = rows[:, 0, 0].astype(np.float64)
        return outputs


@dataclass(frozen=True, eq=False)
class MlpModel:
    """A network with the facts of its card: what it predicts, and on what it was trained."""

    kind: str
    """The kind of layer, such as "conv2d"."""
    target: str
    """The pass it predicts: "forward", "backward" or "forward+backward"."""
    network: MlpNetwork
    low: float
    """On GPUs left out of the fit, most layers took `low` to `high` times the answer."""
    high: float
    ranges: Mapping[str, tuple[float, float]]
    """The range of each feature in the training data, in the order of the network's inputs."""
    least_s: float = 0.0
    """The shortest time in the training data. A shorter answer is discarded."""
    vendors: tuple[str, ...] = ("NVIDIA",)
    by_gpu: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    """The ranges of the layers that were measured on each GPU; empty if the card has none. A layer
    that was measured on one GPU only says nothing about the others."""
    _computed: dict[Features, float] = field(default_factory=dict, repr=False)

    def covers(self, features: Features, gpu: str = "") -> bool:
        """Whether the network was trained on such layers and such GPUs.

        Where the card has ranges by GPU, such layers must have been measured on this GPU, or on at
        least two others. Otherwise the network knows nothing of how they differ between GPUs.
        """
        named = [*zip(self.ranges, features, strict=True)]
        layer = {name: value for name, value in named if name not in DEVICE_FEATURES}
        if not (self.knows_gpu(features) and _within(layer, self.ranges)):
            return False
        if not self.by_gpu:
            return True
        measured = {name for name, ranges in self.by_gpu.items() if _within(dict(named), ranges)}
        return gpu in measured or len(measured) >= LEAST_GPUS

    def knows_gpu(self, features: Features) -> bool:
        """Whether the network was trained on such GPUs, whatever the layer."""
        numbers = dict(zip(self.ranges, features, strict=True))
        ranges = {
            name: (low / DEVICE_MARGIN, high * DEVICE_MARGIN)
            for name, (low, high) in self.ranges.items()
            if name in DEVICE_FEATURES
        }
        enough = not self.by_gpu or len(self.by_gpu) >= LEAST_GPUS
        return enough and _within(numbers, ranges)

    def seconds(self, rows: Sequence[Features]) -> list[float]:
        """The network's raw answers, which may even be negative. Each row is computed once."""
        new = [row for row in dict.fromkeys(rows) if row not in self._computed]
        if new:
            answers = self.network.milliseconds(np.array(new, dtype=np.float64)) * 1e-3
            self._computed.update(zip(new, answers.tolist(), strict=True))
        return [self._computed[row] for row in rows]


def _within(values: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]) -> bool:
    """Whether each value that has a range lies in it."""
    return all(
        low <= values[name] <= high for name, (low, high) in ranges.items() if name in values
    )


# The inputs of the networks: the layer that an op runs, its sizes, and numbers of the GPU.


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
    mask = op.attr("output_mask")
    if "backward" not in op.base or not isinstance(mask, tuple) or len(mask) < 2:
        return True
    weights = mask[1] if "convolution" in op.base else mask[-1]
    return bool(mask[0] and weights)


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


# The files of a network: an .npz file of arrays, and a card in TOML beside it.


LARGEST_ARRAYS_BYTES = 1 << 27
"""The most bytes of a network's arrays, packed and unpacked. The published ones have 40 MB."""

EIGHT_BITS = 127
"""The largest whole number of a weight that is stored in 8 bits."""

_MOST_ARRAYS = 1000
_COMMENT = "A network as in Habitat; `data` names what it was fitted on."


def read_model(path: Path) -> MlpModel:
    """The model in an .npz file, with the card beside it.

    Raises:
        InvalidInput: The two are not what `write_model` wrote; says why, but does not name them.
    """
    card = read_toml(path.with_suffix(".toml"))
    packed = read_bytes(path, LARGEST_ARRAYS_BYTES)
    try:
        network = _network(packed)
        model = _model(network, card)
    # numpy and zipfile raise nearly everything for a damaged file; a card may have any types.
    except Exception as error:
        raise InvalidInput(f"not a model written by wavecast: {str(error)[:200]}") from None
    if reason := _contradiction(model):
        raise InvalidInput(f"not a model written by wavecast: {reason}")
    return model


def _network(packed: bytes) -> MlpNetwork:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        sizes = [entry.file_size for entry in archive.infolist()]
    if sum(sizes) > LARGEST_ARRAYS_BYTES or len(sizes) > _MOST_ARRAYS:
        raise ValueError(f"its {len(sizes)} arrays have {sum(sizes)} bytes")
    with np.load(io.BytesIO(packed), allow_pickle=False) as stored:
        layers = range(sum(name.startswith("matrix") for name in stored.files))
        weights = tuple(_layer(stored, i) for i in layers)
        mean, scale = (stored[name].astype(np.float64) for name in ("mean", "scale"))
        return MlpNetwork(mean, scale, weights)


def _layer(stored: Mapping[str, Any], number: int) -> tuple[Any, Any]:
    matrix = stored[f"matrix{number}"].astype(np.float32)
    if f"step{number}" in stored:
        matrix *= stored[f"step{number}"].astype(np.float32)[:, None]
    return matrix, stored[f"bias{number}"].astype(np.float32)


def _model(network: MlpNetwork, card: Mapping[str, Any]) -> MlpModel:
    return MlpModel(
        kind=card["kind"],
        target=card["target"],
        network=network,
        low=min(float(card["low"]), 1.0),
        high=max(float(card["high"]), 1.0),
        ranges=_ends(card["ranges"]),
        least_s=float(card["least_s"]),
        vendors=tuple(card["vendors"]),
        by_gpu={gpu: _ends(ranges) for gpu, ranges in card.get("by_gpu", {}).items()},
    )


def _contradiction(model: MlpModel) -> str | None:
    """What cannot be in a model; None if nothing."""
    texts = (model.kind, model.target, *model.vendors)
    if not all(isinstance(text, str) for text in texts):
        return "its kind, target and vendors must be texts"
    tables = (model.ranges, *model.by_gpu.values())
    if any(name not in model.ranges for table in tables for name in table):
        return "its ranges by GPU must be of features that its ranges name"
    ends = [end for table in tables for pair in table.values() for end in pair]
    numbers = [model.low, model.high, model.least_s, *ends]
    if not np.isfinite(numbers).all() or model.low < 0 or model.least_s < 0:
        return "its low, high, least_s and ranges must be finite numbers"
    network = model.network
    widths = [len(model.ranges)]
    for matrix, bias in network.weights:
        if matrix.ndim != 2 or matrix.shape[1] != widths[-1] or bias.shape != matrix.shape[:1]:
            return "its arrays do not fit together"
        widths.append(matrix.shape[0])
    if any(array.shape != (widths[0],) for array in (network.mean, network.scale)):
        return "its card and its arrays have different numbers of features"
    if len(widths) < 2 or widths[-1] != 1:
        return "its last layer must have one output"
    arrays = (network.mean, network.scale, *(part for pair in network.weights for part in pair))
    return None if all(np.isfinite(part).all() for part in arrays) else "its arrays are not finite"


def _ends(table: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (float(low), float(high)) for name, (low, high) in table.items()}


def steps_of(matrix: NDArray[Any]) -> NDArray[np.float32]:
    """What one step of 8 bits is worth in each row of a matrix: a 127th of its largest weight."""
    largest = np.abs(matrix).max(axis=1)
    return np.where(largest > 0, largest / EIGHT_BITS, 1.0).astype(np.float32)


def rounded(network: MlpNetwork, bits: int = 16) -> MlpNetwork:
    """The network as it is after it was written with so many bits a weight, and read again."""
    weights = []
    for matrix, bias in network.weights:
        if bits == 16:
            kept = matrix.astype(np.float16).astype(np.float32)
        else:
            steps = steps_of(matrix)[:, None]
            kept = np.rint(matrix / steps).astype(np.int8).astype(np.float32) * steps
        weights.append((kept, bias.astype(np.float16).astype(np.float32)))
    return MlpNetwork(network.mean, network.scale, tuple(weights))


def write_model(path: Path, network: MlpNetwork, card: Mapping[str, Any], bits: int = 16) -> None:
    """Write `path` (.npz) and its card beside it (.toml)."""
    arrays: dict[str, Any] = {"mean": network.mean, "scale": network.scale}
    for number, (matrix, bias) in enumerate(network.weights):
        arrays[f"bias{number}"] = bias.astype(np.float16)
        if bits == 16:
            arrays[f"matrix{number}"] = matrix.astype(np.float16)
        else:
            arrays[f"step{number}"] = steps_of(matrix)
            whole = np.rint(matrix / arrays[f"step{number}"][:, None])
            arrays[f"matrix{number}"] = whole.astype(np.int8)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    weights = packed.getvalue()
    digest = hashlib.sha256(weights).hexdigest()
    beside = path.with_suffix(".toml")
    with (  # both or none: a card and weights of different fits would be refused
        refusing_unwritable(path),
        replacing(path) as draft,
        refusing_unwritable(beside),
        replacing(beside) as card_draft,
    ):
        draft.write_bytes(weights)
        card_draft.write_text(
            toml_text({**card, "weights_sha256": digest}, [_COMMENT]), encoding="utf-8"
        )
