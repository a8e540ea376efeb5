"""How well is a float32 step taken to bf16, by Daydream's rule alone and by the op's own ratio?

    python -m lab score half_precision

Each step that was measured on our H200 in both precisions is converted on the same GPU; only the
GPU's time counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from lab import needs
from lab.measured import campaigns
from wavecast import Scaler, Trace, device, predict
from wavecast.predictors.mixed_precision import MixedPrecision

FULL, HALF = "fp32", "bf16"
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


def main(given: Sequence[str] = ()) -> None:
    """Print the errors of both, and those of each step."""
    needs.parser(__doc__).parse_args(given)
    traces = campaigns.traces("measured")
    for title, make in CONTENDERS.items():
        found = errors(traces, make(HALF))
        sizes = [abs(error) for error in found.values()]
        print(f"{title}: {len(sizes)} steps, {statistics.mean(sizes):.0%}, worst {max(sizes):.0%}")
        for name, error in found.items():
            print(f"    {name}: {error:+.0%}")
