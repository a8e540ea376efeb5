"""Prices in tables and in words: what an hour costs, who sells it, and how old the price is."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from wavecast.planning.prices import STALE_DAYS, Price, today
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
