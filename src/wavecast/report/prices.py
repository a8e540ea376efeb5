"""Prices in tables and in words: what an hour costs, who sells it, and how old the price is."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType

from wavecast.planning.prices import STALE_DAYS, Price, PriceBook, today
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.tables import shown
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


def seller(offer: Price) -> str:
    """Who sells what: `lambda gpu_1x_a10, europe-central-1`; `spot` where it is so."""
    who = " ".join(filter(None, (offer.provider, offer.instance)))
    return ", ".join(filter(None, (who, offer.region, "spot" if offer.is_spot else "")))


def machine(offer: Price) -> str:
    """What is rented, without the seller: `gpu_1x_a10, europe-central-1`."""
    return seller(replace(offer, provider=""))


def offer_text(offer: Price) -> str:
    """An offer in one line: `1.29 $/h (lambda gpu_1x_a10, europe-central-1, 2026-07-23)`."""
    where = f"{seller(offer).removesuffix(', spot')}, {seen(offer)}"
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
    return [*lines, *_old(known)]


def _old(offers: Sequence[Price]) -> list[str]:
    is_old = any(offer.is_stale(today()) for offer in offers)
    return [f"(old): the price is older than {STALE_DAYS} days"] if is_old else []


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


describe(
    Price,
    Field("device_id", title="GPU"),
    Field("gpus", title="GPUs", text=str),
    Field("usd_per_hour", title="$/h per GPU", text="{:.3f}".format),
    Field("", "machine_usd_per_hour", title="$/h", rank=2, text="{:.2f}".format),
    Field("", lambda offer: "spot" if offer.is_spot else "on demand", title="", rank=3),
    Field("provider", title="provider"),
    Field("", lambda o: o.instance if o.includes_host else "costs extra", title="machine", rank=5),
    Field("region", title="region", rank=6),
    Field("", seen, title="price of", rank=1, left=False),
    *map(Field, ("instance", "date", "includes_host", "is_spot")),
)


OFFERS = output(
    "The offers of a table of prices.",
    Field("date", kind=datetime.date, meaning="The date of the newest price."),
    Field("source", kind=str, meaning="Where the prices are from."),
    Field("offers", kind=Sequence[Price], meaning="The offers, in USD for an hour of one GPU."),
)


def offers(
    given: Sequence[Price], book: PriceBook, width: int, *, is_summary: bool
) -> RenderableType:
    """One row for each offer."""
    lines = [f"prices of {book.date} or older, from {book.source or 'your table'}"]
    if is_summary:
        lines.append('all offers of a GPU: "wavecast prices --gpu NAME"')
    return Group(*shown(columns(given), width, [*lines, *_old(given)]))
