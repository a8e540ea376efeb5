"""A measured step, scaled to another GPU (Habitat, Yu et al., ATC 2021, section 3).

Ops whose kernels are the same on every GPU are scaled by their waves. Ops whose kernels vary
(matmuls, convolutions, recurrent layers, attention) take the measured time times the ratio
of two predictions. The predictor's error cancels as far as it is the same on both GPUs. Collectives
are scaled by the links of the machines in which both GPUs usually are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from wavecast import ops
from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import shipped, shipped_toml
from wavecast.hardware.devices import Device, Fact
from wavecast.ops import Kind
from wavecast.predictors.base import Estimate, Familiarity, Predictor, Scaler
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import CONTRACTIONS, WaveScaling
from wavecast.predictors.wave import SOURCE as BY_WAVES
from wavecast.traces.kernel_names import dtype_in, is_gemm_or_convolution, rounds_to_tf32
from wavecast.traces.step import Call, Op, Phase, TensorSpec

VARYING = CONTRACTIONS | {Kind.FUSED}
"""Ops whose kernels vary from GPU to GPU. A compiler generates kernels for the GPU at hand."""


@dataclass(frozen=True)
class Habitat(Scaler):
    """Scales calls by their waves, or by a ratio of predictions where kernels vary.

    Example:
        >>> v100, a100 = wavecast.device("v100-sxm-16gb"), wavecast.device("a100-sxm-80gb")
        >>> Habitat.shipped().scale_call(call, v100, a100).seconds
    """

    learned: Predictor
    """The predictor whose ratios are used: `Learned`, or `Mlp` as in the paper."""
    wave: WaveScaling = field(default_factory=WaveScaling)
    collectives: Collectives = field(default_factory=Collectives.shipped)
    spread: float = 1.0
    """The range of a ratio is the ratio divided and multiplied by 1 + spread. Of the ratios between
    five public GPUs, nine in ten were within such a factor (convolutions 1.55, matmuls 2.1)."""

    @classmethod
    @cache
    def shipped(cls) -> Habitat:
        """The scaler with the predictor that is the default without a measurement."""
        return cls(Learned.shipped())

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The time of a measured call on the target; None if nothing is known of its kernels."""
        return self.scale_all((call,), origin, target)[0]

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> list[Estimate | None]:
        """The time of each call on the target; all ratios are predicted at once."""
        if origin == target:
            return [_as_measured(call) for call in calls]
        by_waves = self.wave.scale_all(calls, origin, target)
        ratios = self.learned.ratios(tuple(call.op for call in calls), origin, target)
        rows = zip(calls, by_waves, ratios, strict=True)
        return [
            self._by_links(call, origin, target)
            if ops.kind(call.op) is Kind.COLLECTIVE
            else self._scaled(call, waved, ratio)
            for call, waved, ratio in rows
        ]

    def familiarity(self, device: Device) -> Familiarity | None:
        """As well as the predictor whose ratios are used."""
        return self.learned.familiarity(device)

    def _by_links(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """A collective, which takes as much longer as the links of the usual machines need."""
        ratio = self.collectives.ratio(call.op, origin, target)
        if ratio is None or not _measured_s(call):
            return None
        seconds, factor = ratio * _measured_s(call), 1 + self.spread
        return Estimate(seconds, seconds / factor, seconds * factor, "ratio of links")

    def _scaled(
        self, call: Call, by_waves: Estimate | None, ratio: float | None
    ) -> Estimate | None:
        kind = ops.kind(call.op)
        if not _measured_s(call):
            return None
        by_ratio = self._by_ratio(call, ratio if ops.has_shapes(call.op) else None)
        # Each may be unknown: waves need clocks and SMs of both GPUs, ratios need shapes.
        return by_ratio or by_waves if kind in VARYING else by_waves or by_ratio

    def _by_ratio(self, call: Call, ratio: float | None) -> Estimate | None:
        if ratio is None:
            return None
        seconds = ratio * _measured_s(call)
        factor = 1 + self.spread
        source = f"ratio of {type(self.learned).__name__.lower()}"
        return Estimate(seconds, seconds / factor, seconds * factor, source)


def _measured_s(call: Call) -> float:
    return sum(kernel.seconds for kernel in call.kernels)


def _as_measured(call: Call) -> Estimate | None:
    measured_s = _measured_s(call)
    return Estimate(measured_s, measured_s, measured_s, "measured") if measured_s else None


# A measured step, scaled to another precision.
#
# Daydream's rule (Zhu et al., ATC 2020): kernels of matmuls and convolutions run three times as
# fast in half precision, and all others, which move bytes, twice as fast. Weight updates stay in
# float32. The rule is used where only kernels are known. It is far off on today's GPUs.
#
# Where shapes are known, a matmul is scaled by the ratio of two predictions of the op, in the
# wanted and in the measured precision, which depend on the target's units. Autocast leaves norms,
# losses, reductions and similar ops in float32. Elementwise ops have some operands in half
# precision and some not: on an H200 they took 0.53 to 0.92 of their float32 time (six steps,
# measurements/h200), hence `ELEMENTWISE_SHARE`. The casts that autocast adds are not counted.
#
# From half precision to float32 or TF32, every op is scaled by the ratio of two predictions, and
# casts between floating-point types take no time, because such a step has none. In TF32 only
# matmuls and convolutions differ from float32. Where only kernels are known, they gain the root of
# what the rates of the target's units gain: 21 steps on an H200, whose TF32 rate is 7.4 times the
# float32 rate, gained 1.9 to 4.9 times there, 2.7 at the median.


DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
"""The element type of each precision."""
_HALVES = ("bfloat16", "float16")
_FLOATS = (*_HALVES, "float32")

CONTRACTION_SPEEDUP = 3.0
"""Speed-up of matmuls and convolutions (Daydream, section 5.1)."""
OTHER_SPEEDUP = 2.0
"""Speed-up of other kernels (Daydream, section 5.1)."""
GONE = 1e-6
"""The share of its time that a cast keeps that is not needed any more; times must be positive."""
TF32_POWER = 0.5
"""How the speed-up of matmuls in TF32 grows with the ratio of the GPU's rates."""
ELEMENTWISE_SHARE = 0.75
"""Time of an elementwise op under autocast, relative to float32."""
HALF_SPREAD = 1.3
"""The factor by which the range widens: steps on the H200 were off by 24% on average."""


@dataclass(frozen=True)
class MixedPrecision(Scaler):
    """Scales a measurement to another GPU, and to another precision there.

    Example:
        >>> v100, h100 = wavecast.device("v100-sxm-16gb"), wavecast.device("h100-sxm-80gb")
        >>> MixedPrecision.shipped("bf16").scale_call(call, v100, h100).seconds
    """

    base: Scaler
    """Scales to the other GPU in the precision of the measurement."""
    precision: str
    """"bf16", "fp16", "fp32" or "tf32"."""
    direct: Predictor | None = None
    """Predicts an op in both precisions; None to use Daydream's rule for everything."""

    @classmethod
    def shipped(cls, precision: str) -> MixedPrecision:
        """The scaler to one of `DTYPES` that is based on the shipped one and its predictor.

        Raises:
            InvalidInput: The precision is another one.
        """
        if precision not in DTYPES:
            precisions = ", ".join(DTYPES)
            raise InvalidInput(f"a measurement can be scaled to {precisions}, not to {precision!r}")
        habitat = Habitat.shipped()
        return cls(habitat, precision, habitat.learned)

    @classmethod
    def daydream(cls, precision: str, base: Scaler | None = None) -> MixedPrecision:
        """Daydream's rule alone, for every op, after scaling to the target in float32.

        Args:
            precision: "bf16" or "fp16".
            base: scales to the other GPU in float32. None for the shipped scaler.

        Raises:
            InvalidInput: The precision is another one.
        """
        if precision not in ("bf16", "fp16"):
            raise InvalidInput(
                f"Daydream's rule takes a step to bf16 or fp16, not to {precision!r}; leave "
                "--predictor and --setup out, and it is scaled by the op's own ratio"
            )
        shipped = cls.shipped(precision)
        return cls(base or shipped.base, precision)

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The time of a call on the target in the precision."""
        full = self.base.scale_call(call, origin, target)
        if full is None or not self._changes(call):
            return full
        factor = self._direct_factor(call.op, target)
        source = "its op"
        if factor is None:
            total = sum(kernel.seconds for kernel in call.kernels)
            changed = sum(
                kernel.seconds * self._share(call.op, kernel.name, target)
                for kernel in call.kernels
            )
            factor, source = (changed / total if total else 1.0), self._rule
        return Estimate(
            full.seconds * factor,
            full.low_s * factor / HALF_SPREAD,
            full.high_s * factor * HALF_SPREAD,
            f"{self.precision} by {source}",
        )

    @property
    def _is_half(self) -> bool:
        return DTYPES[self.precision] in _HALVES

    @property
    def _rule(self) -> str:
        return "Daydream's rule" if self._is_half else "its kernels"

    def _changes(self, call: Call) -> bool:
        """Whether a call may take another time in the precision."""
        if call.phase is Phase.OPTIMIZER:
            return False
        types = {t.dtype for t in call.op.inputs}
        if not types:
            return True
        if self._is_half:
            return "float32" in types
        return bool(types & {*_HALVES}) or ("float32" in types and _contracts(call.op))

    def _direct_factor(self, op: Op, target: Device) -> float | None:
        kind = ops.kind(op)
        if self.direct is None or kind is None or not ops.has_shapes(op):
            return None
        if self._is_half and kind not in CONTRACTIONS:
            return ELEMENTWISE_SHARE if kind is Kind.ELEMENTWISE else 1.0
        if not self._is_half and _casts(op):
            return GONE
        before = self.direct.predict(op, target)
        after = self.direct.predict(self._converted(op), target)
        return None if before is None or after is None else after.seconds / before.seconds

    def _converted(self, op: Op) -> Op:
        """The op in the precision."""
        attrs = tuple(pair for pair in op.attrs if pair[0] != "precision")
        if self.precision == "tf32" and _contracts(op):
            attrs = (*attrs, ("precision", "tf32"))
        return replace(
            op,
            inputs=tuple(map(self._in_type, op.inputs)),
            outputs=tuple(map(self._in_type, op.outputs)),
            attrs=attrs,
        )

    def _in_type(self, tensor: TensorSpec) -> TensorSpec:
        before = ("float32",) if self._is_half else _HALVES
        return replace(tensor, dtype=DTYPES[self.precision]) if tensor.dtype in before else tensor

    def _share(self, op: Op, name: str, target: Device) -> float:
        """The time of a kernel in the precision, relative to the measured one."""
        contracts = is_gemm_or_convolution(name)
        if self._is_half:
            has_cores = target.rate(f"{self.precision}_tensor") is not None
            faster = CONTRACTION_SPEEDUP if has_cores else 1.0
            return 1 / (faster if contracts else OTHER_SPEEDUP)
        types = {t.dtype for t in op.inputs} or {dtype_in([name]) or "float32"}
        in_half = bool(types & {*_HALVES})
        if not contracts:
            return OTHER_SPEEDUP if in_half else 1.0
        before = "bf16" if in_half else "tf32" if rounds_to_tf32(name) else "fp32"
        return _gain(before, target) / _gain(self.precision, target)


def _gain(precision: str, target: Device) -> float:
    """How much faster kernels of matmuls are on the target than in float32."""
    if precision == "bf16":
        return CONTRACTION_SPEEDUP
    tensor, plain = target.rate("tf32_tensor"), target.rate("fp32")
    if precision == "fp32" or tensor is None or not plain:
        return 1.0
    return max(float((tensor / plain) ** TF32_POWER), 1.0)


def _contracts(op: Op) -> bool:
    return ops.kind(op) in CONTRACTIONS


def _casts(op: Op) -> bool:
    """Whether an op only converts between floating-point types."""
    types = {t.dtype for t in (*op.inputs[:1], *op.outputs)}
    return op.base == "aten._to_copy" and len(types) > 1 and types <= {*_FLOATS}


# Setups of papers: the numbers of their GPUs, their networks and how they measured.
#
# A published setup serves to compare with its paper. The default knows more GPUs, and does better
# on those that the paper's networks have not seen.


SETUPS = ("habitat",)
"""The names of the setups."""
NETWORKED = frozenset((Kind.CONVOLUTION, Kind.MATMUL, Kind.RNN))
"""The ops that Habitat has networks for (section 3.2)."""


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """The numbers of a GPU that a paper used."""

    clock_hz: float
    """C, from specifications."""
    bytes_per_s: float
    """D, the measured memory bandwidth."""
    flops: float
    """P, the measured float32 rate."""


@dataclass(frozen=True)
class Setup:
    """The setup of a paper; `published_setup` gives it.

    Example:
        >>> habitat = published_setup("habitat")
        >>> wavecast.predict(trace, "v100-sxm-16gb", predictor=habitat.scaler()).seconds
    """

    name: str
    source: str
    gpus: Mapping[str, PublishedGpu]
    """The paper's GPUs, by the id of the device."""
    warm_up: int
    """How often an operation runs before it is timed."""
    repeats: int
    """How many runs are timed; their mean counts."""
    width: int
    """The neurons of each layer of its networks."""
    depth: int
    """The layers from width to width of its networks."""

    def gpu(self, device: Device) -> Device:
        """A GPU with the paper's clock, bandwidth and rate; itself if the paper did not use it.

        The boost clock is left out, so that a published clock is compared with base clocks only.
        """
        numbers = self.gpus.get(device.id)
        if numbers is None:
            return device
        measured = {
            "memory_bytes_per_s": Fact(numbers.bytes_per_s, self.source),
            "fp32_flops": Fact(numbers.flops, self.source),
        }
        return replace(
            device, base_clock_hz=numbers.clock_hz, boost_clock_hz=None, measured=measured
        )

    def scaler(self, networks: Predictor | None = None, *, whole_waves: bool = False) -> Scaler:
        """The paper's method: networks where kernels vary, waves elsewhere.

        Args:
            networks: the networks, such as your own (`Mlp.read`). None for `networks`.
            whole_waves: whether Eq. 1 is taken in place of Eq. 2.
        """
        waves = WaveScaling(counters_only=True, whole_waves=whole_waves)
        return PublishedScaler(self, Habitat(networks or self.networks(), waves))

    def networks(self) -> Mlp:
        """Networks of the published size. They answer for layers of any size, as the paper's do.

        Those of LSTMs have a width of 256: such layers were measured in variety on one GPU only,
        and a wider network says no more about them.
        """
        return _networks(self.name)


@dataclass(frozen=True)
class PublishedScaler(Scaler):
    """Scales between GPUs with the numbers that a paper used for them.

    A convolution, linear layer, batched matmul or LSTM without a network has no answer: the paper
    has networks for them because their kernels vary (section 3.2), so waves say nothing about them.
    """

    setup: Setup
    base: Scaler

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The time of a measured call on the target; None for a layer without a network."""
        return self.scale_all((call,), origin, target)[0]

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> Sequence[Estimate | None]:
        """The time of each call on the target; all ratios are predicted at once."""
        scaled = self.base.scale_all(calls, self.setup.gpu(origin), self.setup.gpu(target))
        return [
            None
            if by_rules and by_rules.source == BY_WAVES and ops.kind(call.op) in NETWORKED
            else by_rules
            for call, by_rules in zip(calls, scaled, strict=True)
        ]


@cache
def _networks(setup: str) -> Mlp:
    full = Mlp.read(sorted(shipped(f"setups/{setup}").glob("mlp-*.npz")))
    return Mlp({**Mlp.shipped().models, **full.models}, beyond=True)


@cache
def published_setup(name: str) -> Setup:
    """The setup of a paper by its name.

    Raises:
        UnknownName: there is no such setup.
    """
    if name not in SETUPS:
        listed = " or ".join(f'"{known}"' for known in SETUPS)
        raise UnknownName(f'unknown setup "{name}"; it is {listed}, or leave it out')
    table = shipped_toml(f"setups/{name}.toml")
    gpus = {gpu: PublishedGpu(**numbers) for gpu, numbers in table["gpus"].items()}
    return Setup(name, table["source"], gpus, **table["measurement"], **table["network"])
