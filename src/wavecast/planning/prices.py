"""Prices of GPU hours: offers of clouds, your own prices, and which offer is the cheapest."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from wavecast.files import config_folder, shipped
from wavecast.hardware.devices import Device
from wavecast.hardware.devices import device as device_of_name
from wavecast.reading import Key, any_text, expected, is_number
from wavecast.results import Shown

STALE_DAYS = 180
"""A price that is older than this is marked as old, and is not taken for the cheapest."""


def is_money(value: object) -> bool:
    """Whether a value can be the price of an hour in USD."""
    return isinstance(value, int | float) and is_number(value) and 1e-6 <= value <= 1e6


_money = expected(is_money, "a positive number of USD that can be a price")
_gpus = expected(lambda count: type(count) is int and 0 < count <= 10**6, "a whole number of GPUs")


@dataclass(frozen=True, slots=True)
class Price(Shown):
    """One offer, in USD per GPU and hour, on a date.

    >>> offer = price("h100-sxm-80gb")
    >>> offer is not None and offer.per_usd(1000.0) > 0  # samples per dollar at 1000 samples/s
    True
    """

    device_id: Annotated[str, Key("gpu")]
    """The id of the GPU."""
    usd_per_hour: Annotated[float, _money]
    """The price of the machine divided by its number of GPUs."""
    provider: Annotated[str, any_text]
    """Who sells it: a cloud, "yours" for a price of your own, "bought"."""
    instance: Annotated[str, any_text]
    """The provider's name for the machine; empty if GPUs are rented singly."""
    date: datetime.date
    """The date on which the price was first seen; prices change."""
    region: Annotated[str, any_text] = ""
    """The provider's region; empty if the price does not depend on it."""
    gpus: Annotated[int, _gpus] = 1
    """The number of GPUs of the machine. Fewer cannot be rented at this price."""
    includes_host: bool = True
    """False if the machine around the GPU costs extra."""
    is_spot: Annotated[bool, Key("spot")] = False
    """Whether the provider may take the machine away at any time."""

    @property
    def machine_usd_per_hour(self) -> float:
        """The price of the whole machine, in USD per hour."""
        return self.usd_per_hour * self.gpus

    def machines_for(self, gpus: int) -> int:
        """The number of machines that hold so many GPUs."""
        return math.ceil(gpus / self.gpus)

    def usd_per_hour_of(self, gpus: int) -> float:
        """What must be rented to get so many GPUs, in USD per hour: whole machines."""
        return self.machines_for(gpus) * self.machine_usd_per_hour

    def age_days(self, on: datetime.date) -> int:
        """How many days old the price is on a date."""
        return (on - self.date).days

    def is_stale(self, on: datetime.date) -> bool:
        """Whether the price is older than `STALE_DAYS` on a date."""
        return self.age_days(on) > STALE_DAYS

    def per_usd(self, per_s: float) -> float:
        """Samples (or other units) per dollar, from samples per second.

        This is Habitat's cost-normalised throughput (section 5.3).
        """
        return per_s * 3600 / self.usd_per_hour


@dataclass(frozen=True)
class PriceFilter:
    """Which offers are considered."""

    providers: tuple[str, ...] = ()
    """The names of the providers. Empty for all."""
    spot: bool = False
    """Whether machines that may be taken away are considered, too."""
    stale: bool = False
    """Whether offers that were old when the table was made are considered, too."""

    def admits(self, offer: Price, on: datetime.date) -> bool:
        """Whether an offer in a table of a date is considered."""
        return (
            (not self.providers or offer.provider.lower() in self.providers)
            and (self.spot or not offer.is_spot)
            and (self.stale or not offer.is_stale(on))
        )


ON_DEMAND = PriceFilter()
"""Offers on demand of all providers that were fresh when the table was made."""


@dataclass(frozen=True)
class PriceBook:
    """A table of offers.

    ```python
    book = price_book()
    book.of("l4")                      # all offers of a GPU, cheapest first
    book.cheapest("h100-sxm-80gb", 8)  # the cheapest way to rent eight of them
    ```
    """

    offers: tuple[Price, ...]
    date: datetime.date
    """The date of the table; single offers may be older."""
    source: str = ""
    which: PriceFilter = ON_DEMAND
    """The offers that are considered."""

    def looking_at(self, which: PriceFilter) -> PriceBook:
        """The same table with other offers considered."""
        return replace(self, which=which)

    def seen(self) -> tuple[Price, ...]:
        """All offers that are considered."""
        return tuple(offer for offer in self.offers if self.which.admits(offer, self.date))

    def of(self, device_id: str) -> tuple[Price, ...]:
        """The considered offers of a GPU, cheapest per GPU first."""
        found = [offer for offer in self.seen() if offer.device_id == device_id]
        return tuple(sorted(found, key=lambda offer: (offer.usd_per_hour, offer.gpus)))

    def cheapest(
        self, device_id: str, gpus: int = 1, *, together: int = 1, besides: str | None = None
    ) -> Price | None:
        """The offer at which so many GPUs cost least; whole machines are paid. None if unknown.

        Offers of a GPU without the machine around it, and offers that are old today, count only if
        there are no others.

        Args:
            device_id: the GPU.
            gpus: how many of them.
            together: how many of them must be in one machine.
            besides: a provider whose offers do not count.
        """
        suiting = (offer for offer in self.of(device_id) if offer.gpus >= together)
        return min(
            (offer for offer in suiting if offer.provider != besides),
            key=lambda offer: (
                not offer.includes_host,
                not self.which.stale and offer.is_stale(max(self.date, today())),
                offer.usd_per_hour_of(gpus),
                offer.gpus,
            ),
            default=None,
        )

    def providers(self) -> tuple[str, ...]:
        """The names of all providers in the table."""
        return tuple(sorted({offer.provider for offer in self.offers}))

    def with_offers(self, own: Iterable[Price]) -> PriceBook:
        """The table in which offers of your own replace all offers of the same GPUs."""
        added = tuple(own)
        gpus = {offer.device_id for offer in added}
        kept = (offer for offer in self.offers if offer.device_id not in gpus)
        return replace(self, offers=(*kept, *added))

    def renewed(self, newer: PriceBook) -> PriceBook:
        """The table in which the providers of a newer one have their newer offers only."""
        names = {offer.provider for offer in newer.offers}
        kept = (offer for offer in self.offers if offer.provider not in names)
        sources = "; ".join(dict.fromkeys(filter(None, (newer.source, self.source))))
        date = max(newer.date, self.date)
        return replace(self, offers=(*kept, *newer.offers), date=date, source=sources)


def price(device: Device | str, setup: str | None = None) -> Price | None:
    """The cheapest known offer on demand for one GPU. None when unknown; nothing is guessed.

    A machine with several GPUs is an offer only for GPUs that are not rented singly; its price is
    then that of each of them.

    Args:
        device: the GPU, or its name.
        setup: "habitat" for the prices of Habitat's paper (table 2); None for today's.

    Raises:
        UnknownName: the name fits no device, or several; or there is no such setup.
        InvalidInput: the user's own table of prices is damaged.
    """
    gpu = device_of_name(device) if isinstance(device, str) else device
    return price_book(setup).cheapest(gpu.id)


def price_book(setup: str | None = None) -> PriceBook:
    """The user's table of prices if there is one, else the shipped one; or that of a paper.

    Args:
        setup: "habitat" for the prices of Habitat's paper; None for today's.

    Raises:
        InvalidInput: the user's own table is damaged.
    """
    from wavecast.planning.price_files import read_prices

    if setup is not None:
        # Imported only here: it needs numpy, and today's prices do not.
        from wavecast.predictors.published import published_setup

        return read_prices(shipped(f"setups/{published_setup(setup).name}-prices.toml"))
    own = user_prices()
    return read_prices(own if own.is_file() else shipped("prices.toml"))


def user_prices() -> Path:
    """The path of the user's table, which `wavecast prices update` writes. It need not exist."""
    return config_folder() / "prices.toml"


def today() -> datetime.date:
    """The date of today, or of $SOURCE_DATE_EPOCH, which makes output the same on all days."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    if fixed.isascii() and fixed.isdigit() and len(fixed) < 12:
        return datetime.datetime.fromtimestamp(int(fixed), datetime.UTC).date()
    return datetime.datetime.now(datetime.UTC).date()
