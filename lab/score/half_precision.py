"""How well is a measured step taken to another precision?

    python -m lab score half_precision

Each step that was measured on our H200 in two precisions is converted on the same GPU; only the
GPU's time counts. Writes the table of docs/appendix/accuracy-scaling.md, which is the only page
with these figures beside docs/papers.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from itertools import permutations

from lab import pages
from lab.measured import campaigns
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast import Scaler, Trace, device, predict
from wavecast.predictors.habitat import MixedPrecision

MARK = "begin: python -m lab score half_precision"
PAGE = pages.APPENDIX / "accuracy-scaling.md"
PRECISIONS = ("bf16", "fp32", "tf32")


def errors(
    traces: Mapping[str, Trace], scaler: Scaler, before: str = "fp32", after: str = "bf16"
) -> dict[str, float]:
    """The error of the GPU's time of each step that was measured in both precisions."""
    by_name = {}
    for name, measured in traces.items():
        target = traces.get(name.replace(before, after))
        if before not in name or target is None or measured.measurement is None:
            continue
        measured_s = sum(kernel.seconds for call in target for kernel in call.kernels)
        by_name[name] = (
            predict(measured, device("h200-sxm"), predictor=scaler).gpu_s / measured_s - 1
        )
    return by_name


def contenders() -> Iterator[tuple[str, str, str, Scaler]]:
    """Titles, the two precisions, and the scaler from one to the other."""
    yield "Daydream's rule alone", "fp32", "bf16", MixedPrecision.daydream("bf16")
    for before, after in permutations(PRECISIONS, 2):
        yield "with the op's own ratio", before, after, MixedPrecision.shipped(after)


def table() -> str:
    """The mean and the worst error of each way, and its error on ResNet-50."""
    lines = [*heading("way | from | to | steps | mean error | worst | ResNet-50, batch 32", "lll")]
    traces = dict(campaigns.traces("measured"))  # each is decoded once, not for every way
    for title, before, after, scaler in contenders():
        by_name = errors(traces, scaler, before, after)
        sizes = [abs(error) for error in by_name.values()]
        cells = f"{len(sizes)} | {statistics.mean(sizes):.0%} | {max(sizes):.0%}"
        resnet = f"{by_name[f'resnet50_b32-{before}']:+.0%}"
        lines.append(f"| {title} | {before} | {after} | {cells} | {resnet} |")
    return "\n".join(lines)


def tables() -> Iterator[ScoreTable]:
    """The table of the page."""
    yield ScoreTable(table(), PAGE, MARK)
