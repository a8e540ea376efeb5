"""Prices in tables and in words: what an hour costs, who sells it, and how old the price is."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType

from wavecast.planning.prices import STALE_DAYS, Price, PriceBook, today
from wavecast.report.tables import Column, fitting, remarks, table
from wavecast.report.units import UNKNOWN


def hourly(offer: Price | None) -> str:
    """The price of a GPU in USD per hour, or `?`; `0.79 (of 8)` if others come with it."""
    if offer is None:
        return UNKNOWN
    alone = "" if offer.gpus == 1 else f" (of {offer.gpus})"
    return f"{offer.usd_per_hour:.2f}{alone}"


def seen(offer: Price | None, on: datetime.date | None = None) -> str:
    """The date of a price, or `?`; an old one is marked."""
    if offer is None:
        return UNKNOWN
    return f"{offer.date}{' (old)' if offer.is_stale(on or today()) else ''}"


def offer_text(offer: Price) -> str:
    """An offer in one line: `1.29 $/h (lambda gpu_1x_a10, europe-central-1, 2026-07-23)`."""
    seller = " ".join(filter(None, (offer.provider, offer.instance)))
    where = ", ".join(filter(None, (seller, offer.region, seen(offer))))
    host = "" if offer.includes_host else ", the machine around it not included"
    spot = " spot" if offer.is_spot else ""
    return f"{hourly(offer)} $/h{spot}{host} ({where})"


def price_lines(offers: Sequence[Price | None], setup: str | None = None) -> list[str]:
    """The lines under a table about the prices in it."""
    known = [offer for offer in offers if offer is not None]
    if not known:
        return []
    if setup is not None:
        return [f"$/h: USD per GPU ({known[0].provider})"]
    first, last = min(o.date for o in known), max(o.date for o in known)
    dates = f"of {first}" if first == last else f"of {first} to {last}"
    lines = [f"$/h: cheapest offer on demand of one GPU in USD, prices {dates} (wavecast prices)"]
    if any(offer.gpus > 1 for offer in known):
        lines.append("(of 8): rented only in machines of so many GPUs; the price is that of one")
    if any(not offer.includes_host for offer in known):
        bare = [offer.device_id for offer in known if not offer.includes_host]
        lines.append(f"the machine around it costs extra: {', '.join(dict.fromkeys(bare))}")
    if any(offer.is_stale(today()) for offer in known):
        lines.append(f"(old): the price is older than {STALE_DAYS} days")
    return lines


ORDERS: dict[str, Callable[[Price], tuple[Any, ...]]] = {
    "price": lambda offer: (offer.usd_per_hour, offer.device_id, offer.gpus),
    "gpu": lambda offer: (offer.device_id, offer.usd_per_hour, offer.gpus),
    "provider": lambda offer: (offer.provider, offer.device_id, offer.gpus),
    "date": lambda offer: (-offer.date.toordinal(), offer.usd_per_hour),
}
"""What offers are sorted by, by the name of the order."""


def cheapest_of_each(given: Sequence[Price]) -> list[Price]:
    """Of each GPU the cheapest offer: of one GPU with its machine, where there is such an offer."""
    best: dict[str, Price] = {}
    for offer in sorted(given, key=lambda o: (not o.includes_host, o.usd_per_hour_of(1), o.gpus)):
        best.setdefault(offer.device_id, offer)
    return list(best.values())


def offers(
    given: Sequence[Price], book: PriceBook, width: int, *, is_summary: bool
) -> RenderableType:
    """One row for each offer."""
    columns = [
        Column("GPU", [offer.device_id for offer in given], left=True),
        Column("GPUs", [str(offer.gpus) for offer in given]),
        Column("$/h per GPU", [f"{offer.usd_per_hour:.3f}" for offer in given]),
        Column("$/h", [f"{offer.machine_usd_per_hour:.2f}" for offer in given], 2),
        Column("", ["spot" if offer.is_spot else "on demand" for offer in given], 3, left=True),
        Column("provider", [offer.provider for offer in given], left=True),
        Column("machine", [_machine(offer) for offer in given], 5, left=True),
        Column("region", [offer.region for offer in given], 6, left=True),
        Column("price of", [seen(offer) for offer in given], 1),
    ]
    kept = fitting(columns, width)
    lines = [f"prices of {book.date} or older, from {book.source or 'your table'}"]
    if is_summary:
        lines.append('all offers of a GPU: "wavecast prices --gpu NAME"')
    if any(offer.is_stale(today()) for offer in given):
        lines.append(f"(old): the price is older than {STALE_DAYS} days")
    return Group(table(kept), "", *remarks(lines))


def _machine(offer: Price) -> str:
    return offer.instance if offer.includes_host else "costs extra"
