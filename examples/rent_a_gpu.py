"""Which GPU to rent? Habitat's first case study (Yu et al., ATC 2021), with today's GPUs as well.

You have one GPU and measured GNMT on it at three batches. What would others do, for how much?

python examples/rent_a_gpu.py [TRACE...]    traces of `wavecast measure`; ours if none is given
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import wavecast as wc

OURS = Path(__file__).parent / "traces"
PAPERS_PRICES = {"p100-pcie-16gb": 1.46, "v100-sxm-16gb": 2.48, "t4": 0.35}
TODAYS = ("l4", "rtx-4090", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm")


class Row(NamedTuple):
    """A GPU that is for rent: samples per second by batch; at the best, samples per dollar."""

    gpu: str
    offer: wc.Price
    rates: list[float]
    per_usd: float
    low: float
    high: float


def main(paths: Sequence[str] = ()) -> None:
    """Predict throughput on each GPU, and order them by what a dollar buys."""
    found = [wc.load_trace(path) for path in paths or OURS.glob("gnmt-b*.json.gz")]
    traces = sorted(found, key=lambda trace: trace.samples or 0)
    rows = [row for gpu in (*PAPERS_PRICES, *TODAYS) if (row := rented(gpu, traces))]
    rows.sort(key=lambda row: -row.per_usd)
    where = traces[0].measurement.gpu if traces[0].measurement else "no GPU"
    print(f"measured on {where}; samples per second at each batch, thousands per dollar at best\n")
    batches = "".join(f"{f'b={trace.samples}':>7}" for trace in traces)
    print(f"{'GPU':16}{batches}{'$/h':>7}{'GPUs':>6}{'k/$':>8}   range")
    for row in rows:
        rates = "".join(f"{rate:7.0f}" for rate in row.rates)
        money = f"{row.offer.usd_per_hour:7.2f}{row.offer.gpus:6}{row.per_usd / 1e3:8,.0f}"
        print(f"{row.gpu:16}{rates}{money}   {row.low / 1e3:,.0f} - {row.high / 1e3:,.0f}")
    print(f"\n$/h: cheapest on demand as of {max(row.offer.date for row in rows)}, for each GPU;")
    print("GPUs: how many come together at this price")
    bare = [row.gpu for row in rows if not row.offer.includes_host]
    if bare:
        print(f"the machine around it costs extra: {', '.join(bare)}")
    best = {row.gpu: max(row.rates) for row in rows}
    then = sorted((-best[gpu] * 3.6 / usd, gpu) for gpu, usd in PAPERS_PRICES.items())
    print(f"at the paper's prices: {', '.join(f'{gpu} {-rate:.0f} k/$' for rate, gpu in then)}")


def rented(gpu: str, traces: Sequence[wc.Trace]) -> Row | None:
    """What a GPU does and costs; None if nobody is known to rent it out."""
    offer = wc.price(gpu)
    if offer is None:
        return None
    found = [wc.predict(trace, gpu) for trace in traces]
    best = max(found, key=lambda p: p.throughput or 0.0)
    samples = best.trace.samples or 0
    ends = [offer.per_usd(samples / s) for s in (best.seconds, best.high_s, best.low_s)]
    return Row(gpu, offer, [p.throughput or 0.0 for p in found], *ends)


if __name__ == "__main__":
    main(sys.argv[1:])
