"""How well is a measured step taken to another precision?

    python -m lab score half_precision

Each step that was measured on our H200 in two precisions is converted on the same GPU; only the
GPU's time counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from lab import needs
from lab.measured import campaigns
from wavecast import Scaler, Trace, device, predict
from wavecast.predictors.mixed_precision import MixedPrecision

PRECISIONS = ("bf16", "fp32", "tf32")


def errors(
    traces: Mapping[str, Trace], scaler: Scaler, before: str = "fp32", after: str = "bf16"
) -> dict[str, float]:
    """The error of the GPU's time of each step that was measured in both precisions."""
    found = {}
    for name, measured in traces.items():
        wanted = traces.get(name.replace(before, after))
        if before not in name or wanted is None or measured.measurement is None:
            continue
        measured_s = sum(kernel.seconds for call in wanted for kernel in call.kernels)
        found[name] = predict(measured, device("h200-sxm"), predictor=scaler).gpu_s / measured_s - 1
    return found


def contenders() -> Iterator[tuple[str, str, str, Scaler]]:
    """Titles, the two precisions, and the scaler from one to the other."""
    yield "Daydream's rule alone", "fp32", "bf16", MixedPrecision.daydream("bf16")
    for before, after in permutations(PRECISIONS, 2):
        yield "with the op's own ratio", before, after, MixedPrecision.shipped(after)


def main(given: Sequence[str] = ()) -> None:
    """Print the errors of both, and those of each step."""
    needs.parser(__doc__).parse_args(given)
    traces = campaigns.traces("measured")
    for title, before, after, scaler in contenders():
        found = errors(traces, scaler, before, after)
        sizes = [abs(error) for error in found.values()]
        print(
            f"{before} to {after}, {title}: {len(sizes)} steps, {statistics.mean(sizes):.0%}, "
            f"worst {max(sizes):.0%}"
        )
        for name, error in found.items():
            print(f"    {name}: {error:+.0%}")
