"""Make the table of prices that ships: src/wavecast/data/prices.toml.

    python -m lab collect prices --data FOLDER

Reads the public set prices (docs/sources.md). Of each GPU, number of GPUs in a machine (1, 2, 4 or
8) and way to pay, it keeps the three cheapest offers that are fresh, and those of the large clouds,
each in its cheapest region. `wavecast.planning.prices` says which rows
are offers of which GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab import needs
from lab.places import ROOT
from wavecast.planning.prices import Price, PriceBook, read_catalogue, write_prices

OUT = ROOT / "src" / "wavecast" / "data" / "prices.toml"
SIZES = (1, 2, 4, 8)
LARGE_CLOUDS = ("aws", "azure", "gcp", "oci")
"""Providers with whom many have a contract already: their offers are kept, old ones too."""
CHEAPEST = 3
"""How many offers of other providers are kept."""
COMMIT = "f2624ac056eee0df80c03f2e757c5d9dbf4623ed"
SOURCE = f"github.com/skypilot-org/skypilot-catalog, commit {COMMIT}"
ABOUT = """\
Prices of an hour of GPUs in clouds: a small snapshot. Prices change, so each has its own date.
Written by lab/collect/prices.py.

One offer in each line: of each GPU and number of GPUs in a machine, the three cheapest fresh offers
and those of aws, azure, gcp and oci, each in its cheapest region. USD per GPU and hour (the
machine's price divided by its GPUs), without storage, traffic, discounts or tax.
Left out: auction floors (mithril), which are no quotes; hosts whose name shows less than 16 GB of
memory per GPU; offers that do not say which variant of the GPU they are (an "H100" may be PCIe, SXM
or NVL); slices of a GPU; spot prices that repeat the on-demand price.
includes_host = false: the machine around the GPU costs extra.
"""


def snapshot(folder: Path) -> PriceBook:
    """The offers that ship."""
    book = read_catalogue(folder / "prices" / "gpu_prices.csv")
    groups: dict[tuple[str, int, bool], list[Price]] = {}
    for offer in sorted(book.offers, key=lambda offer: offer.usd_per_hour):
        if offer.gpus in SIZES:
            groups.setdefault((offer.device_id, offer.gpus, offer.is_spot), []).append(offer)
    kept: list[Price] = []
    for offers in groups.values():
        large = [offer for offer in offers if offer.provider in LARGE_CLOUDS]
        fresh = [o for o in offers if o not in large and not o.is_stale(book.date)]
        kept += [*large, *fresh[:CHEAPEST]]
    return PriceBook(tuple(kept), book.date, SOURCE)


def main(given: Sequence[str] = ()) -> None:
    """Write the table, and print how many offers it has."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, "prices")
    book = snapshot(parser.parse_args(given).data)
    write_prices(OUT, book, ABOUT.splitlines())
    gpus = {offer.device_id for offer in book.offers}
    print(f"{len(book.offers)} offers of {len(gpus)} GPUs, {len(book.providers())} providers")
