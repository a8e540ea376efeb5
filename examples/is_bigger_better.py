"""Is the bigger GPU always better? Habitat's second case study (Yu et al., ATC 2021).

Is a V100 worth its price over a 2080 Ti, for DCGAN? And how much faster are newer GPUs?

python examples/is_bigger_better.py [TRACE...]    traces of `wavecast measure`; ours if none
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import wavecast as wc

OURS = Path(__file__).parent / "traces"
FIRST = "rtx-2080-ti"
OTHERS = ("v100-sxm-16gb", "rtx-4090", "a100-sxm-80gb", "h100-sxm-80gb")


def main(paths: Sequence[str] = ()) -> None:
    """Print a table for each trace."""
    traces = [wc.load_trace(p) for p in paths or (OURS / f"dcgan-b{b}.json.gz" for b in (64, 128))]
    for trace in sorted(traces, key=lambda trace: trace.samples or 0):
        compare(trace)
    offers = [offer for gpu in OTHERS if (offer := wc.price(gpu))]
    print(f"$/h: cheapest on demand as of {max(offer.date for offer in offers)}; ?: no offer known")
    print("host: its time to issue the step, as a share of it; at 100% a faster GPU waits")


def compare(trace: wc.Trace) -> None:
    """Print the time of a step on each GPU, its speed-up over the first GPU, and its price."""
    predictions = [wc.predict(trace, gpu) for gpu in (FIRST, *OTHERS)]
    where = trace.measurement.gpu if trace.measurement else "no GPU"
    print(f"batch {trace.samples}, measured on {where}\n")
    print(f"{'GPU':16}{'step':>9}{'speed-up':>10}{'GPU only':>10}{'host':>7}{'$/h':>7}{'k/$':>9}")
    for p in predictions:
        speedup = predictions[0].seconds / p.seconds
        gpu_only = predictions[0].gpu_s / p.gpu_s
        step, host = f"{1e3 * p.seconds:.1f} ms", f"{p.host_s / p.seconds:.0%}"
        print(f"{p.device.id:16}{step:>9}{speedup:9.2f}x{gpu_only:9.2f}x{host:>7}{cost(p)}")
    print()


def cost(p: wc.Prediction) -> str:
    """The price of an hour, and thousands of samples per dollar."""
    offer = wc.price(p.device)
    if offer is None or p.throughput is None:
        return f"{'?':>7}{'?':>9}"
    return f"{offer.usd_per_hour:7.2f}{offer.per_usd(p.throughput) / 1e3:9,.0f}"


if __name__ == "__main__":
    main(sys.argv[1:])
