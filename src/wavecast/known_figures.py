"""Figures that are known from elsewhere, computed again: can the numbers of this machine be right?

Each has a source: a formula of a textbook or a paper, or a number that others published. If one is
off, a file of the installation is damaged, or a library computes something else than it did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from wavecast.errors import needing_extra
from wavecast.footprint.memory import memory
from wavecast.hardware.clusters import cluster
from wavecast.hardware.devices import device
from wavecast.ops.costs import cost_of
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.wave.equations import Waves, gamma, wave_ratio
from wavecast.steps.request import predict
from wavecast.traces.step import Op, Phase, TensorSpec


@dataclass(frozen=True)
class KnownFigure:
    """A figure as it is known, and as it comes out here."""

    what: str
    low: float
    high: float
    """The figure lies between these; they are equal for one that is exact."""
    found: float
    source: str

    @property
    def holds(self) -> bool:
        """Whether what comes out here is what is known."""
        slack = 1e-9 * max(abs(self.low), abs(self.high))
        return self.low - slack <= self.found <= self.high + slack

    @property
    def known(self) -> str:
        """What is known, in words."""
        low, high = f"{self.low:.6g}", f"{self.high:.6g}"
        return low if low == high else f"{low} to {high}"


def _exact(what: str, known: float, found: float, source: str) -> KnownFigure:
    return KnownFigure(what, known, known, found, source)


def known_figures() -> Iterator[KnownFigure]:
    """All figures, the quick ones first.

    Raises:
        MissingExtra: torch is not installed; figures of ops and links came before.
    """
    for figures in (_ops, _equations, _links, _models):
        yield from figures()


def _ops() -> Iterator[KnownFigure]:
    rows, inner, columns = 512, 1024, 4096
    yield _exact(
        "FLOPs of a matmul",
        2 * rows * inner * columns,
        _flops("aten.mm", (rows, inner), (inner, columns), out=(rows, columns)),
        "2 m n k",
    )
    yield _exact(
        "FLOPs of a convolution",
        2 * 8 * 64 * 56 * 56 * 32 * 3 * 3,
        _flops(
            "aten.convolution",
            *((8, 32, 56, 56), (64, 32, 3, 3)),
            out=(8, 64, 56, 56),
            attrs=(("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("groups", 1)),
        ),
        "2 N K P Q C R S",
    )
    heads, tokens, width = 16, 1024, 64
    yield _exact(
        "FLOPs of attention",
        4 * 2 * heads * tokens**2 * width,
        _flops(
            "aten._scaled_dot_product_flash_attention",
            *((2, heads, tokens, width),) * 3,
            out=(2, heads, tokens, width),
        ),
        "4 b h s s d, two matmuls",
    )


def _flops(
    name: str,
    *inputs: tuple[int, ...],
    out: tuple[int, ...],
    attrs: tuple[tuple[str, object], ...] = (),
) -> float:
    specs = tuple(TensorSpec(shape, "float16") for shape in inputs)
    cost = cost_of(Op(name, specs, (TensorSpec(out, "float16"),), attrs))  # type: ignore[arg-type]
    return math.nan if cost is None else cost.flops


def _equations() -> Iterator[KnownFigure]:
    # Half of the bandwidth and a quarter of the wave, gamma one half: sqrt(2 * 4).
    origin, target = Waves(400, 800e9, 1e9), Waves(100, 400e9, 1e9)
    ratio = wave_ratio(origin, target, 0.5)
    yield _exact("wave scaling", math.sqrt(8), ratio, "Habitat, Eq. 2")
    yield _exact("gamma at the ridge", 0.5, gamma(10.0, 10.0), "Habitat, Eq. 3")


def _links() -> Iterator[KnownFigure]:
    ranks, size = 8, 1 << 30
    spec = TensorSpec((size // 4,), "float32")
    op = Op("nccl.all_reduce", (spec,), (spec,), (("ranks", ranks), ("stride", 1)))
    estimate = Collectives.shipped().predict(op, cluster("dgx-h100"), device("h100-sxm-80gb"))
    found = math.nan if estimate is None else estimate.seconds
    # On such a machine nccl-tests show a bus bandwidth of 370 GB/s with rings, 480 with NVLS.
    moved = 2 * (ranks - 1) / ranks * size
    yield KnownFigure(
        "all-reduce of 1 GiB on 8 H100s, s", moved / 500e9, moved / 300e9, found, "nccl-tests"
    )


def _models() -> Iterator[KnownFigure]:
    batch = 64
    with needing_extra("tracing the model of a known figure"):
        from wavecast.frameworks.tracing import trace
        from wavecast.suite import benchmark

        step = trace(lambda: benchmark("resnet50").make_step(batch, "bf16"))
    kinds = memory(step, "a100-pcie-40gb").by_kind
    momentum = kinds["optimizer state"] or math.nan
    yield _exact("ResNet-50's parameters", 25_557_032, momentum / 4, "torchvision's ResNet-50")
    costs = (cost_of(call.op) for call in step.calls if call.phase is Phase.FORWARD)
    flops = sum(cost.flops for cost in costs if cost is not None) / batch
    yield KnownFigure(
        "ResNet-50's forward FLOPs",
        *(2 * 4.09e9, 2 * 4.20e9),
        flops,
        "torchvision: 4.09 G multiply-adds",
    )
    yield KnownFigure(
        "its weights and buffers, bytes",
        4 * 25_557_032,
        4 * 25_557_032 * 1.01,
        kinds["weights"] or math.nan,
        "4 bytes for each",
    )
    published = 1116.84
    yield KnownFigure(
        "its images/s on an A100",
        *(published / 1.3, published * 1.3),
        batch / predict(step, "a100-pcie-40gb", host="reference").seconds,
        "Lambda's 1,117 with AMP, within 30%",
    )
