"""How well is a float32 step taken to bf16, by Daydream's rule alone and by the op's own ratio?

    python -m lab score half_precision

Each step that was measured on our H200 in both precisions is converted on the same GPU; only the
GPU's time counts. Writes the table of docs/appendix/accuracy-scaling.md, which is the only page
with these figures beside docs/papers.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from lab import needs
from lab.markdown import heading
from lab.measured import campaigns
from lab.score import pages
from wavecast import Scaler, Trace, device, predict
from wavecast.predictors.mixed_precision import MixedPrecision

MARK = "begin: python -m lab score half_precision"
PAGE = pages.APPENDIX / "accuracy-scaling.md"
FULL, HALF = "fp32", "bf16"
CAMPAIGN = "measured"
CONTENDERS = {
    "Daydream's rule alone": MixedPrecision.daydream,
    "with the op's own ratio": MixedPrecision.shipped,
}


def errors(traces: Mapping[str, Trace], scaler: Scaler) -> dict[str, float]:
    """The error of the GPU's time of each step that was measured in both precisions."""
    found = {}
    for name, full in traces.items():
        half = traces.get(name.replace(FULL, HALF))
        if FULL not in name or half is None or full.measurement is None:
            continue
        measured_s = sum(kernel.seconds for call in half for kernel in call.kernels)
        found[name] = predict(full, device("h200-sxm"), predictor=scaler).gpu_s / measured_s - 1
    return found


def table() -> str:
    """The mean and the worst error of each way, and its error on ResNet-50."""
    lines = [*heading("way | steps | mean error | worst | ResNet-50, batch 32")]
    traces = campaigns.traces(CAMPAIGN)
    for title, make in CONTENDERS.items():
        found = errors(traces, make(HALF))
        sizes = [abs(error) for error in found.values()]
        cells = f"{len(sizes)} | {statistics.mean(sizes):.0%} | {max(sizes):.0%}"
        lines.append(f"| {title} | {cells} | {found['resnet50_b32-fp32']:+.0%} |")
    return "\n".join(lines)


def main(given: Sequence[str] = ()) -> None:
    """Write the table, and print it."""
    needs.parser(__doc__).parse_args(given)
    shown = table()
    print(shown)
    pages.write(PAGE, MARK, shown)
