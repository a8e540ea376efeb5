"""A float32 measurement, scaled to mixed precision (Daydream, Zhu et al., ATC 2020).

Daydream's rule: kernels of matmuls and convolutions run three times as fast in half
precision, and all others, which move bytes, twice as fast. Weight updates stay in float32. The rule
is used where only kernels are known. It is far off on today's GPUs.

Where shapes are known, a matmul is scaled by the ratio of two predictions of the op, in half and
in full precision, which depend on the target's units. Autocast leaves norms, losses, reductions and
similar ops in float32. Elementwise ops have some operands in half precision and some not: on an
H200 they took 0.53 to 0.92 of their float32 time (six steps, measurements/h200), hence
`ELEMENTWISE_SHARE`. The casts that autocast adds are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.ops import Kind
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.predictors.habitat import Habitat
from wavecast.predictors.wave.kernel import CONTRACTIONS
from wavecast.traces.kernel_names import is_gemm_or_convolution
from wavecast.traces.step import Call, Op, Phase, TensorSpec

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
"""The element type of each precision."""

CONTRACTION_SPEEDUP = 3.0
"""Speed-up of matmuls and convolutions (Daydream, section 5.1)."""
OTHER_SPEEDUP = 2.0
"""Speed-up of other kernels (Daydream, section 5.1)."""
ELEMENTWISE_SHARE = 0.75
"""Time of an elementwise op under autocast, relative to float32."""
HALF_SPREAD = 1.3
"""The factor by which the range widens: steps on the H200 were off by 24% on average."""


@dataclass(frozen=True)
class MixedPrecision(Scaler):
    """Scales a float32 measurement to another GPU, and to half precision there.

    Example:
        >>> v100, h100 = wavecast.device("v100-sxm-16gb"), wavecast.device("h100-sxm-80gb")
        >>> MixedPrecision.shipped("bf16").scale_call(call, v100, h100).seconds
    """

    base: Scaler
    """Scales to the other GPU in float32."""
    precision: str
    """"bf16" or "fp16"."""
    direct: Predictor | None = None
    """Predicts an op in both precisions; None to use Daydream's rule for everything."""

    @classmethod
    def shipped(cls, precision: str) -> MixedPrecision:
        """The scaler to "bf16" or "fp16" that is based on the shipped one and its predictor.

        Raises:
            InvalidInput: The precision is another one.
        """
        if precision not in DTYPES:
            precisions = " or ".join(DTYPES)
            raise InvalidInput(f"a measurement can be scaled to {precisions}, not {precision!r}")
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
        shipped = cls.shipped(precision)
        return cls(base or shipped.base, precision)

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The time of a call on the target under autocast."""
        full = self.base.scale_call(call, origin, target)
        if full is None or not self._becomes_half(call):
            return full
        factor = self._direct_factor(call.op, target)
        source = "its op"
        if factor is None:
            factor, source = self._daydream_factor(call, target), "Daydream's rule"
        return Estimate(
            full.seconds * factor,
            full.low_s * factor / HALF_SPREAD,
            full.high_s * factor * HALF_SPREAD,
            f"{self.precision} by {source}",
        )

    def _becomes_half(self, call: Call) -> bool:
        if call.phase is Phase.OPTIMIZER:
            return False
        return not call.op.inputs or any(t.dtype == "float32" for t in call.op.inputs)

    def _direct_factor(self, op: Op, target: Device) -> float | None:
        kind = ops.kind(op)
        if self.direct is None or kind is None or not ops.has_shapes(op):
            return None
        if kind not in CONTRACTIONS:
            return ELEMENTWISE_SHARE if kind is Kind.ELEMENTWISE else 1.0
        half = replace(
            op,
            inputs=tuple(map(self._half, op.inputs)),
            outputs=tuple(map(self._half, op.outputs)),
            attrs=tuple(pair for pair in op.attrs if pair[0] != "precision"),
        )
        in_full, in_half = self.direct.predict(op, target), self.direct.predict(half, target)
        return None if in_full is None or in_half is None else in_half.seconds / in_full.seconds

    def _half(self, tensor: TensorSpec) -> TensorSpec:
        return replace(tensor, dtype=DTYPES[self.precision]) if _is_full(tensor) else tensor

    def _daydream_factor(self, call: Call, target: Device) -> float:
        tensor_cores = target.rate(f"{self.precision}_tensor") is not None
        faster = CONTRACTION_SPEEDUP if tensor_cores else 1.0
        total = sum(kernel.seconds for kernel in call.kernels)
        reduced = sum(
            kernel.seconds / (faster if is_gemm_or_convolution(kernel.name) else OTHER_SPEEDUP)
            for kernel in call.kernels
        )
        return reduced / total if total else 1.0


def _is_full(tensor: TensorSpec) -> bool:
    return tensor.dtype == "float32"
