"""How well are real steps of 1, 2 and 4 processes with gloo predicted, from their calibration?

    python -m lab.score.gloo

Reads measurements/cpu/gloo_ranks.json (lab.collect.gloo_ranks) and writes the tables of
docs/parallel.md. The processor is a device with the FLOP/s and bytes/s that a process attained
while the others ran, the links attain what all-reduces did, and kernels beside an all-reduce are as
much slower as products were. With more processes than cores, no core is free for an all-reduce
while kernels run, so both take turns. The host takes no time of its own: it is what computes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import wavecast
from lab.places import DOCS, MEASUREMENTS
from lab.score import pages
from lab.score.overlap import AssumedOverlap
from lab.steps.wide_layers import training_step, wide_layers
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.device import Device
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.hardware.links import LinkKind, NodeLinks
from wavecast.parallel.gradients import buckets, gradients
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.collectives.constants import LinkConstants
from wavecast.predictors.roofline import Roofline
from wavecast.steps.parallel_prediction import ParallelPrediction, predict_parallel
from wavecast.traces.step import Phase, Trace

PAGE = DOCS / "parallel.md"
MARK = "begin: python -m lab.score.gloo"
MEASURED = MEASUREMENTS / "cpu" / "gloo_ranks.json"
NO_HOST = REFERENCE_HOST.scaled(1e-6)
NEVER = 1e3
"""The slowdown of kernels that do not run beside an all-reduce at all."""


@dataclass(frozen=True)
class GlooRun:
    """One run of some processes."""

    processes: int
    cores: int
    load: float
    seconds: float
    """The median step of the slowest process."""
    ranks: tuple[dict[str, Any], ...]

    def middle(self, *keys: str) -> float:
        """The median of a calibrated value over processes, before and after the steps."""
        values = []
        for rank in self.ranks:
            for when in ("before", "after"):
                value = rank[when]
                for key in keys:
                    value = value[key]
                values.append(float(value))
        return median(values)


def read_gloo_runs(path: Path = MEASURED) -> list[GlooRun]:
    """The runs of a file."""
    runs = []
    measured = json.loads(path.read_text(encoding="utf-8"))
    for run in measured["runs"]:
        ranks = tuple(run["ranks"])
        slowest = max(median(rank["steps_s"]) for rank in ranks)
        facts = (ranks[0]["processes"], measured["cores"], run["load"])
        runs.append(GlooRun(*facts, slowest, ranks))
    return runs


def processor(run: GlooRun) -> Device:
    """What a process attains of the processor, as a device."""
    return Device(
        id="this-processor",
        name="one process of this machine",
        vendor="unknown",
        architecture="unknown",
        memory_bytes=1 << 33,
        memory_bytes_per_s=run.middle("memory_bytes_per_s"),
        fp32_flops=run.middle("flops"),
    )


def links(run: GlooRun) -> tuple[Cluster, LinkConstants]:
    """What gloo attains between the processes: a line through the all-reduces of two sizes."""
    sizes = sorted(int(size) for size in run.ranks[0]["before"]["all_reduce_s"])
    short, long = sizes[0], sizes[-1]
    low_s, high_s = (run.middle("all_reduce_s", str(size)) for size in (short, long))
    slope = (high_s - low_s) / (long - short)
    sent = 2 * (run.processes - 1) / run.processes
    node = NodeLinks(run.processes, LinkKind.PCIE, sent / slope)
    constants = LinkConstants(
        launch_s=max(low_s - slope * short, 1e-6),
        pcie_hop_s=0.0,
        pcie_efficiency=1.0,
        own_share=0.0,
        fill_s=0.0,
        ll_share=1e-6,
        ll128_share=1e-6,
    )
    return Cluster("this-machine", "this machine", node, gpu="this-processor"), constants


def slowdown(run: GlooRun) -> float:
    """How much longer products take beside an all-reduce, from the loss when both run at once.

    Processes choose their own number of products, so that each experiment is taken by itself.
    """
    lost = median(
        _lost_share(**rank[when]["beside"]) for rank in run.ranks for when in ("before", "after")
    )
    return min(lost / (1 - lost), NEVER) if lost < 1 else NEVER


def _lost_share(alone_s: float, reduction_s: float, both_s: float) -> float:
    """The share of the shorter work's time by which both at once take longer than the longer."""
    shorter_s, longer_s = sorted((alone_s, reduction_s))
    return max(both_s - longer_s, 0.0) / shorter_s


def overlap(run: GlooRun) -> float:
    """The slowdown that is predicted with. More processes than cores take turns with all work."""
    if run.processes == 1:
        return 0.0
    return NEVER if run.processes > run.cores else slowdown(run)


def wide_trace() -> Trace:
    """The step on one process."""
    return wavecast.trace(lambda: training_step(*wide_layers("cuda")))


def predicted(run: GlooRun, trace: Trace) -> ParallelPrediction:
    """The prediction of a run from its calibration."""
    device = processor(run)
    single = Cluster("this-machine", "this machine", NodeLinks(1, LinkKind.PCIE, 1e9))
    place, constants = (single, LinkConstants()) if run.processes == 1 else links(run)
    predictor = AssumedOverlap(Roofline(), Collectives(constants), device, place)
    predictor.slowdown = overlap(run)
    return predict_parallel(trace, Parallel(data=run.processes), predictor, NO_HOST)


def sent_buckets(trace: Trace) -> list[int]:
    """The bytes of DDP's buckets in the order in which we say that they are sent."""
    return [sum(g.nbytes for g in some) for some in buckets(gradients(trace), 25 << 20)]


def beside_backward(step: ParallelPrediction) -> int:
    """How many buckets are sent before the last kernel of the backward pass has ended."""
    part = step.step.groups[0].parts[0]
    last = max(
        index
        for index, call in enumerate(part.last.calls)
        if call.phase is Phase.BACKWARD and call.op.name.startswith("aten.mm")
    )
    sent = [i for i, call in enumerate(part.last.calls) if call.op.name == "nccl.all_reduce"]
    return sum(index < last for index in sent)


def observed_beside(run: GlooRun) -> float:
    """How many buckets torch sent before the last one was filled, in the median process."""
    counts = []
    for rank in run.ranks:
        sent = [bucket["sent_s"] for bucket in rank["buckets"]]
        counts.append(float(sum(one < max(sent) for one in sent)))
    return float(median(counts))


def table(runs: Sequence[GlooRun], trace: Trace) -> str:
    """Measured and predicted steps, by the number of processes: medians over rounds."""
    lines = [
        "| processes | rounds | load | measured | in the rounds | predicted | error "
        "| measured slowdown |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for processes in sorted({run.processes for run in runs}):
        some = [run for run in runs if run.processes == processes]
        times = [run.seconds for run in some]
        found = median(predicted(run, trace).seconds for run in some)
        slow = "" if processes == 1 else f"{median(slowdown(run) for run in some):.1f}"
        slow += ", take turns" if processes > some[0].cores else ""
        error = found / median(times) - 1
        lines.append(
            f"| {processes} | {len(some)} | {median(run.load for run in some):.0f} "
            f"| {1e3 * median(times):.0f} ms | {1e3 * min(times):.0f} to {1e3 * max(times):.0f} ms "
            f"| {1e3 * found:.0f} ms | {error:+.0%} | {slow} |"
        )
    return "\n".join(lines)


def bucket_table(runs: Sequence[GlooRun], trace: Trace) -> str:
    """The buckets that torch's reducer sent, and ours."""
    run = next(run for run in runs if run.processes == 2)
    seen, ours = run.ranks[0]["buckets"], sent_buckets(trace)
    lines = [
        "| bucket | torch: parameters | bytes | ours: bytes | sent | ended | backward pass ended |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for bucket, size in zip(seen, ours, strict=True):
        times = " | ".join(
            f"{1e3 * bucket[key]:.0f} ms" for key in ("sent_s", "ended_s", "backward_s")
        )
        names = ", ".join(map(str, bucket["parameters"]))
        lines.append(f"| {bucket['index']} | {names} | {bucket['bytes']:,} | {size:,} | {times} |")
    return "\n".join(lines)


def main() -> None:
    """Write the tables, and print them."""
    runs, trace = read_gloo_runs(), wide_trace()
    for name, make in {"steps": table, "buckets": bucket_table}.items():
        shown = make(runs, trace)
        pages.write(PAGE, f"{MARK} '{name}'", shown)
        print(f"{name}\n\n{shown}\n")


if __name__ == "__main__":
    main()
