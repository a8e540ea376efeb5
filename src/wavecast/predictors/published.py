"""Setups of papers: the numbers of their GPUs, their networks and how they measured.

A published setup serves to compare with its paper. The default knows more GPUs, and does better on
those that the paper's networks have not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from wavecast import ops
from wavecast.errors import UnknownName
from wavecast.files import shipped, shipped_toml
from wavecast.hardware.devices import Device, Fact
from wavecast.ops import Kind
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.predictors.habitat import Habitat
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import SOURCE as BY_WAVES
from wavecast.predictors.wave import WaveScaling
from wavecast.traces.step import Call

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
