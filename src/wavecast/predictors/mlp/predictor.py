"""Habitat's MLPs (Yu et al., 2021, section 4.3): one network for each kind of layer.

A layer's dimensions and four numbers of the GPU go in, milliseconds come out: nine ReLU layers
of one width, trained by `lab/fit/mlp.py` on layers measured on several GPUs. It is a network as
published: it knows no physics. Its answers are held at the physical bound from below, but a
better GPU or a larger layer is not promised to be faster or slower than another. Outside of
what it was trained on, by layer, GPU and time, it does not answer.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.files import shipped
from wavecast.hardware.device import Device
from wavecast.hardware.rates import available
from wavecast.ops import Unit
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.mlp.layers import Bmm, Conv2d, Layer, Linear, Lstm
from wavecast.predictors.roofline import bound
from wavecast.traces.step import Op, TensorSpec

DEVICE_FEATURES = ("memory_bytes", "memory_bytes_per_s", "sm_count", "fp32_flops")
DEVICE_MARGIN = 2.0
"""How far beyond the numbers of the GPUs it was trained on a network is asked: every new GPU is
beyond them in something, while at several times them a network's answer is arbitrary."""

Floats = NDArray[np.float64]
Features = tuple[float, ...]


def parameters(features: int, width: int = 1024, depth: int = 8) -> int:
    """How many numbers a network is made of: features to width, `depth` times width to width."""
    return (features + 1) * width + depth * (width + 1) * width + width + 1


def device_features(device: Device) -> Features | None:
    """The numbers of a GPU that go in after a layer's; None where one is not known."""
    values = [getattr(device, name) for name in DEVICE_FEATURES]
    return None if None in values else tuple(float(value) for value in values)


@dataclass(frozen=True, eq=False)
class MlpNetwork:
    """The numbers of a trained MLP."""

    mean: Floats
    scale: Floats
    """What standardises a feature after its mean is taken off; 0 for one that says nothing."""
    weights: tuple[tuple[NDArray[Any], NDArray[Any]], ...]
    """Matrix (out, in) and bias of each layer."""

    def milliseconds(self, features: Floats) -> Floats:
        """What comes out for each row, whichever other rows there are."""
        # A matrix with one row each: a product of all rows at once rounds by how many there are.
        rows = ((features - self.mean) * self.scale).astype(np.float32)[:, None, :]
        last = len(self.weights) - 1
        for number, (matrix, bias) in enumerate(self.weights):
            rows = rows @ matrix.T + bias
            if number < last:
                rows = np.maximum(rows, 0)
        told: Floats = rows[:, 0, 0].astype(np.float64)
        return told


@dataclass(frozen=True, eq=False)
class MlpModel:
    """A network and what its card says of it."""

    kind: str
    target: str
    """What its milliseconds are of: "forward", "backward" or "forward+backward"."""
    network: MlpNetwork
    low: float
    """On GPUs left out of the fit layers took mostly `low` to `high` times the answer."""
    high: float
    ranges: Mapping[str, tuple[float, float]]
    """Of each feature in what it was trained on, in the order in which they go in."""
    least_s: float = 0.0
    """The shortest it was trained on; an answer below is none."""
    vendors: tuple[str, ...] = ("NVIDIA",)
    _known: dict[Features, float] = field(default_factory=dict, repr=False)

    def covers(self, features: Features) -> bool:
        """Whether it was trained on such layers and on such GPUs."""
        for value, (name, (low, high)) in zip(features, self.ranges.items(), strict=True):
            margin = DEVICE_MARGIN if name in DEVICE_FEATURES else 1.0
            if not low / margin <= value <= high * margin:
                return False
        return True

    def seconds(self, rows: Sequence[Features]) -> list[float]:
        """What the network says, each question asked once. May be anything, even negative."""
        new = [row for row in dict.fromkeys(rows) if row not in self._known]
        if new:
            answers = self.network.milliseconds(np.array(new, dtype=np.float64)) * 1e-3
            self._known.update(zip(new, answers.tolist(), strict=True))
        return [self._known[row] for row in rows]


@dataclass(frozen=True, eq=False)
class Mlp(Predictor):
    """Answers for float32 layers (no TF32) within what its networks were trained on."""

    models: Mapping[tuple[str, str], MlpModel]
    """By kind of layer and target."""

    @classmethod
    def shipped(cls) -> Mlp:
        """The networks that come with the package: narrower than published, in half precision."""
        return _shipped()

    @classmethod
    def of(cls, models: Iterable[MlpModel]) -> Mlp:
        """The predictor that has these networks."""
        return cls({(model.kind, model.target): model for model in models})

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Mlp:
        """The predictor that has the networks of these .npz files, each with its card beside it."""
        models = []
        for path in paths:
            try:
                with path.open("rb") as arrays:
                    models.append(read_model(arrays, path.with_suffix(".toml").read_text("utf-8")))
            except OSError as error:
                raise InvalidInput(f"cannot read the model {path}: {error}") from error
            except InvalidInput as error:
                raise InvalidInput(f"{path}: {error}") from error
        return cls.of(models)

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The network's time for the op's layer, but no less than the physical bound."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, asked: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The answers for many ops, each network asked once."""
        questions = [self._question(op, device, _target(op)) for op in asked]
        for model in self.models.values():
            model.seconds([found[1] for found in questions if found and found[0] is model])
        return [
            _estimate(op, device, *found) if found and _whole(op) else None
            for op, found in zip(asked, questions, strict=True)
        ]

    def ratios(self, ops: Sequence[Op], origin: Device, target: Device) -> Sequence[float | None]:
        """How many times as long the target takes for each op, by Habitat's own rule."""
        return [self.ratio(op, origin, target) for op in ops]

    def ratio(self, op: Op, origin: Device, destination: Device) -> float | None:
        """How many times as long an op takes on another GPU, or None where it cannot say.

        By this Habitat's code scales a time measured on the origin. Forward and backward are
        scaled alike where only one of them was trained: the published network has one output.
        """
        for target in (_target(op), "forward+backward", "forward"):
            found = [self._question(op, device, target) for device in (origin, destination)]
            if found[0] is None or found[1] is None:
                continue
            model = found[0][0]
            before, after = model.seconds([found[0][1], found[1][1]])
            if before > model.least_s and after > model.least_s:
                return after / before
        return None

    def _question(self, op: Op, device: Device, target: str) -> tuple[MlpModel, Features] | None:
        layer = layer_of(op) if op.inputs and op.inputs[0].dtype == "float32" else None
        if layer is None or available(ops.unit(op), device) is not Unit.FP32:
            return None
        model = self.models.get((layer.KIND, target))
        numbers = device_features(device)
        if model is None or numbers is None or device.vendor not in model.vendors:
            return None
        features = features_of(layer, numbers)
        return (model, features) if model.covers(features) else None


def features_of(layer: Layer, numbers: Features) -> Features:
    """What goes in: the layer's dimensions, then the GPU's numbers."""
    return (*map(float, layer.features()), *numbers)


def _target(op: Op) -> str:
    return "backward" if "backward" in op.base else "forward"


def _estimate(op: Op, device: Device, model: MlpModel, features: Features) -> Estimate | None:
    least = bound(op, device)
    if least is None or least.seconds <= 0:
        return None
    (told,) = model.seconds([features])
    if told <= model.least_s:
        return None
    seconds = max(told, least.seconds)
    return Estimate(
        seconds=seconds,
        low_s=max(seconds * model.low, least.seconds),
        high_s=seconds * model.high,
        source="mlp",
    )


# Layers of ops.


def layer_of(op: Op) -> Layer | None:
    """The layer that an op runs, forwards or backwards; None if it is of none of the four kinds.

    A matrix product is a linear layer of as many rows, also where a backward pass makes two.
    """
    maker = _LAYERS.get(op.base)
    if maker is None or not ops.launches(op):
        return None
    try:
        return maker(op)
    except InvalidInput:  # sizes of 0, filters larger than images: nothing to run
        return None


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
    square = [_side(image), _side(weight), _side(out)]
    switches = [_both(op, "stride", 1), _both(op, "padding", 0), _both(op, "dilation", 1)]
    if not plain or None in square or None in switches or switches[2] != 1:
        return None
    channels = weight.shape[1], weight.shape[0]
    sizes = (square[0], *channels, square[1], switches[0], switches[1])
    layer = Conv2d(bool(bias), image.shape[0], *(int(size or 0) for size in sizes))
    return layer if layer.out_image == square[2] else None


def _side(tensor: TensorSpec) -> int | None:
    """The side of square images or filters."""
    shape = tensor.shape
    return shape[2] if len(shape) == 4 and shape[2] == shape[3] else None


def _both(op: Op, name: str, default: int) -> int | None:
    """What holds for height and width alike."""
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


_LSTM_MODE = 2  # cuDNN's number for it
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


def _whole(op: Op) -> bool:
    """Whether an op gives all that was measured: backwards, the gradients of input and weights."""
    wanted = op.attr("output_mask")
    if "backward" not in op.base or not isinstance(wanted, tuple):
        return True
    weights = wanted[1] if "convolution" in op.base else wanted[-1]
    return bool(wanted[0] and weights)


# The files: an .npz of arrays, and a card in TOML beside it.


_UNREADABLE = (ValueError, OSError, EOFError, zipfile.BadZipFile)


def read_model(arrays: IO[bytes], card: str) -> MlpModel:
    """The model of an .npz file and the text of its card.

    Raises:
        InvalidInput: the two are not what `write_model` wrote.
    """
    try:
        table = tomllib.loads(card)
        with np.load(arrays, allow_pickle=False) as stored:
            layers = range(sum(name.startswith("matrix") for name in stored.files))
            pairs = [(stored[f"matrix{i}"], stored[f"bias{i}"]) for i in layers]
            weights = tuple((m.astype(np.float32), b.astype(np.float32)) for m, b in pairs)
            network = MlpNetwork(stored["mean"], stored["scale"], weights)
        return MlpModel(
            kind=table["kind"],
            target=table["target"],
            network=network,
            low=min(float(table["low"]), 1.0),
            high=max(float(table["high"]), 1.0),
            ranges={name: (ends[0], ends[1]) for name, ends in table["ranges"].items()},
            least_s=float(table["least_s"]),
            vendors=tuple(table["vendors"]),
        )
    except (*_UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a model written by wavecast: {error}") from None


def write_model(path: Path, network: MlpNetwork, card: Mapping[str, Any]) -> None:
    """Write `path` (.npz, weights in half precision) and its card beside it (.toml)."""
    arrays: dict[str, Any] = {"mean": network.mean, "scale": network.scale}
    for number, (matrix, bias) in enumerate(network.weights):
        arrays[f"matrix{number}"] = matrix.astype(np.float16)
        arrays[f"bias{number}"] = bias.astype(np.float16)
    np.savez_compressed(path, **arrays)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".toml").write_text(_toml({**card, "weights_sha256": digest}), "utf-8")


def _toml(card: Mapping[str, Any]) -> str:
    """The card: values first, then tables of values. JSON's texts, numbers and lists are TOML's."""
    values = [(key, value) for key, value in card.items() if not isinstance(value, Mapping)]
    lines = ["# A network of Habitat's kind; data says what it was fitted on."]
    lines += [f"{key} = {json.dumps(value)}" for key, value in values]
    for key, table in card.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{key}]"]
            lines += [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


@cache
def _shipped() -> Mlp:
    models = []
    for path in sorted(shipped("models").glob("mlp-*.npz")):
        with path.open("rb") as arrays:
            models.append(read_model(arrays, path.with_suffix(".toml").read_text("utf-8")))
    return Mlp.of(models)
