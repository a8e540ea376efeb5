"""Which GPU should you rent? Habitat's first case study (Yu et al., ATC 2021), with today's GPUs.

GNMT was measured on one GPU at three batches. How fast are other GPUs, and what do they cost?

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
    """A GPU for rent: samples per second at each batch, and per dollar at the best batch."""

    gpu: str
    offer: wc.Price
    rates: list[float]
    per_usd: float


def main(paths: Sequence[str] = ()) -> None:
    """Predict the throughput on each GPU, and order GPUs by samples per dollar."""
    loaded = [wc.load_trace(path) for path in paths or OURS.glob("gnmt-b*.json.gz")]
    traces = sorted(loaded, key=lambda trace: trace.samples or 0)
    rows = [row for gpu in (*PAPERS_PRICES, *TODAYS) if (row := rented(gpu, traces))]
    rows.sort(key=lambda row: -row.per_usd)
    where = traces[0].measurement.gpu if traces[0].measurement else "no GPU"
    print(f"measured on {where}; samples per second at each batch, thousands per dollar at best\n")
    batches = "".join(f"{f'b={trace.samples}':>7}" for trace in traces)
    print(f"{'GPU':16}{batches}{'$/h':>7}{'GPUs':>6}{'k/$':>8}")
    for row in rows:
        rates = "".join(f"{rate:7.0f}" for rate in row.rates)
        money = f"{row.offer.usd_per_hour:7.2f}{row.offer.gpus:6}{row.per_usd / 1e3:8,.0f}"
        print(f"{row.gpu:16}{rates}{money}")
    print(f"\n$/h: cheapest on demand as of {max(row.offer.date for row in rows)}, for each GPU;")
    print("GPUs: how many come together at this price")
    bare = [row.gpu for row in rows if not row.offer.includes_host]
    if bare:
        print(f"the machine around it costs extra: {', '.join(bare)}")
    best = {row.gpu: max(row.rates) for row in rows}
    papers = {gpu: best[gpu] * 3.6 / usd for gpu, usd in PAPERS_PRICES.items()}
    ranked = sorted(papers, key=lambda gpu: -papers[gpu])
    print(f"at the paper's prices: {', '.join(f'{gpu} {papers[gpu]:.0f} k/$' for gpu in ranked)}")


def rented(gpu: str, traces: Sequence[wc.Trace]) -> Row | None:
    """The throughput and the price of a GPU; None if no offer is known."""
    offer = wc.price(gpu)
    if offer is None:
        return None
    predictions = [wc.predict(trace, gpu) for trace in traces]
    rates = [p.throughput or 0.0 for p in predictions]
    return Row(gpu, offer, rates, offer.per_usd(max(rates)))


if __name__ == "__main__":
    main(sys.argv[1:])
