"""How much slower are kernels that run beside a collective, and what does it change?

    python -m lab.score.overlap --data FOLDER

Writes two tables of docs/parallel.md. The first is from the torch.profiler file of a recommendation
model on two V100 in the public set kineto (docs/sources.md). Kernels are compared that have the
same name and grid and ran both beside collectives and alone. Small grids are left out: their work
varies with the data, and so does that of kernels whose times differ by more than a factor of two.
The second has predicted steps with other slowdowns than the shipped ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import wavecast
from lab import needs
from lab.places import DOCS
from lab.score import pages
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.devices import device
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.collectives import Collectives
from wavecast.steps.parallel_prediction import predict_parallel
from wavecast.steps.predicting import default_predictor
from wavecast.steps.rank_player import ClusterPredictor
from wavecast.suite.decoders import gpt

PAGE = DOCS / "parallel.md"
MARK = "begin: python -m lab.score.overlap"
PROFILE = "recsys_v100_16gb_rank1of2.trace_diff_test.json.gz"
FEWEST_BLOCKS = 512
"""A grid with fewer blocks is small. A V100 has 80 multiprocessors."""


@dataclass(frozen=True)
class TimedKernel:
    """A kernel of the profile, in microseconds."""

    name: str
    grid: tuple[int, ...]
    begin: float
    end: float

    @property
    def blocks(self) -> int:
        """The thread blocks of its grid."""
        return math.prod(self.grid)


def kernels_of(path: Path) -> list[TimedKernel]:
    """The kernels of a profile."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return [
        TimedKernel(
            event["name"],
            tuple(event["args"].get("grid", ())),
            float(event["ts"]),
            float(event["ts"]) + float(event["dur"]),
        )
        for event in events
        if str(event.get("cat")).lower() == "kernel"
    ]


def is_collective(kernel: TimedKernel) -> bool:
    """Whether NCCL launched it."""
    return kernel.name.startswith("nccl")


def shares(kernels: Sequence[TimedKernel]) -> Iterator[tuple[TimedKernel, float]]:
    """Each other kernel, and the share of its time in which a collective runs."""
    collectives = [kernel for kernel in kernels if is_collective(kernel)]
    for kernel in kernels:
        if is_collective(kernel) or kernel.end <= kernel.begin:
            continue
        beside = sum(
            max(min(kernel.end, other.end) - max(kernel.begin, other.begin), 0.0)
            for other in collectives
        )
        yield kernel, beside / (kernel.end - kernel.begin)


def slower_by(kernels: Sequence[TimedKernel]) -> list[float]:
    """How much slower each kind of kernel is beside a collective."""
    beside, alone = defaultdict(list), defaultdict(list)
    for kernel, share in shares(kernels):
        if kernel.blocks < FEWEST_BLOCKS:
            continue
        kind, time = (kernel.name, kernel.grid), kernel.end - kernel.begin
        if share > 0.9:
            beside[kind].append(time)
        elif share < 0.01:
            alone[kind].append(time)
    ratios = [median(beside[kind]) / median(alone[kind]) for kind in beside if kind in alone]
    return sorted(ratio - 1 for ratio in ratios if 0.5 < ratio < 2)


def table(kernels: Sequence[TimedKernel]) -> str:
    """The slowdown, and how many blocks the collectives took."""
    found = slower_by(kernels)
    blocks = median(kernel.blocks for kernel in kernels if is_collective(kernel))
    low, high = found[len(found) // 4], found[3 * len(found) // 4]
    return "\n".join(
        [
            "| kinds of kernels | blocks of a collective | slower by (median) | half are in |",
            "|---:|---:|---:|---:|",
            f"| {len(found)} | {blocks:.0f} | {median(found):.1%} | {low:.1%} to {high:.1%} |",
        ]
    )


EFFECTS = (
    ("h100-sxm-80gb", Parallel(data=8)),
    ("h100-sxm-80gb", Parallel(data=8, shard=3)),
    ("h100-sxm-80gb", Parallel(data=64, shard=3)),
    ("rtx-a6000", Parallel(data=4)),
)
ASSUMED = (0.0, 0.1, 0.5, 2.0)


class AssumedOverlap(ClusterPredictor):
    """A predictor with an assumed slowdown."""

    slowdown = 0.0


def effects() -> str:
    """Steps of a GPT with 1.3 billion parameters, by slowdown."""
    lines = [
        "| GPUs | strategy | " + " | ".join(f"{slowdown:.0%}" for slowdown in ASSUMED) + " |",
        f"|---|---|{'---:|' * len(ASSUMED)}",
    ]
    trace = wavecast.trace(lambda: gpt(1, "bf16"), samples=1)
    for name, strategy in EFFECTS:
        gpu = device(name)
        predictor = AssumedOverlap(
            default_predictor(), Collectives.shipped(), gpu, usual_cluster(gpu)
        )
        times = []
        for slowdown in ASSUMED:
            predictor.slowdown = slowdown
            step = predict_parallel(trace, strategy, predictor, REFERENCE_HOST)
            times.append(f"{1e3 * step.seconds:.0f} ms")
        how = "FSDP" if strategy.shard else "DDP"
        lines.append(f"| {strategy.gpus} x {name} | {how} | {' | '.join(times)} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Write the table, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, "kineto")
    args = parser.parse_args(given)
    tables = {"profile": table(kernels_of(args.data / "kineto" / PROFILE)), "effect": effects()}
    for name, shown in tables.items():
        pages.write(PAGE, f"{MARK} '{name}'", shown)
        print(f"{name}\n\n{shown}\n")


if __name__ == "__main__":
    main()
