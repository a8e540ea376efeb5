"""Prices of GPU hours: offers of clouds, your own prices, and which offer is the cheapest."""

from __future__ import annotations

import csv
import datetime
import fnmatch
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

from wavecast.errors import InvalidInput, prefixed
from wavecast.files import config_folder, read_toml, shipped, shipped_toml, toml_text, write_whole
from wavecast.hardware.devices import Device
from wavecast.hardware.devices import device as device_of_name
from wavecast.reading import (
    Key,
    any_text,
    day,
    expected,
    is_number,
    read_record,
    read_text,
    refuse_unknown,
)
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
        offers = [offer for offer in self.seen() if offer.device_id == device_id]
        return tuple(sorted(offers, key=lambda offer: (offer.usd_per_hour, offer.gpus)))

    def cheapest(
        self, device_id: str, gpus: int = 1, *, together: int = 1, besides: str | None = None
    ) -> Price | None:
        """The offer at which so many GPUs cost least; whole machines are paid. None if unknown.

        Offers of a GPU without the machine around it, and offers that are old today, count only if
        there are no others.

        Args:
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

    if setup is not None:
        # Imported only here: it needs numpy, and today's prices do not.
        from wavecast.predictors.habitat import published_setup

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


def read_prices(path: str | os.PathLike[str]) -> PriceBook:
    """The offers of a TOML file.

    An offer is a table `[prices.<device id>]`, or a line of the list `offers`, which may have
    several for a GPU.

    Raises:
        InvalidInput: the file cannot be read or is not a price file; says which key and why.
    """
    file = Path(path)
    try:
        written = file.stat().st_mtime_ns
    except (OSError, ValueError):
        written = 0  # reading it says what is wrong
    with prefixed(f"{path}: "):
        return _read(file, written)


@lru_cache(maxsize=8)
def _read(path: Path, _written: int) -> PriceBook:
    """The offers of a file; cached until the file changes."""
    table = read_toml(path)
    refuse_unknown(
        table, ("source", "snapshot", "currency", "prices", "offers"), "a file of prices"
    )
    currency = table.get("currency", "USD")
    if currency != "USD":
        raise InvalidInput(f'currency must be "USD", not {currency!r}')
    offers = tuple(_offers(table))
    if not offers:
        raise InvalidInput(_NO_PRICES)
    newest = max(offer.date for offer in offers)
    snapshot = day(table.get("snapshot", newest), "snapshot")
    return PriceBook(offers, snapshot, str(table.get("source", "")))


_NO_PRICES = "has no prices; write one as [prices.<device id>]"


def _offers(table: Mapping[str, Any]) -> Iterator[Price]:
    single, several = table.get("prices", {}), table.get("offers", [])
    if not isinstance(single, dict):
        raise InvalidInput(_NO_PRICES)
    for gpu, offer in single.items():
        where = f"prices.{gpu}"
        yield read_record(Price, offer, "an offer", f"{where}.", device_id=gpu)
    if not isinstance(several, list):
        raise InvalidInput("offers must be a list of tables")
    for position, offer in enumerate(several, start=1):
        where = f"offers[{position}]"
        if not isinstance(offer, dict) or not isinstance(offer.get("gpu"), str):
            raise InvalidInput(f"{where} must be a table with the key gpu, the id of a device")
        yield read_record(Price, offer, "an offer", f"{where}.")


def write_prices(path: Path, book: PriceBook, comment: Iterable[str] = ()) -> None:
    """Write a table of prices.

    Raises:
        InvalidInput: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, prices_toml(book, comment))


def prices_toml(book: PriceBook, comment: Iterable[str] = ()) -> str:
    """A table of prices as TOML."""
    order = sorted(
        book.offers,
        key=lambda o: (o.device_id, o.provider, o.is_spot, o.gpus, o.usd_per_hour, o.region),
    )
    return toml_text(
        {
            "source": book.source,
            "snapshot": book.date,
            "currency": "USD",
            "offers": [_offer(offer) for offer in order],
        },
        comment,
    )


def _offer(offer: Price) -> dict[str, Any]:
    return {
        "gpu": offer.device_id,
        "usd_per_hour": offer.usd_per_hour,
        **({} if offer.gpus == 1 else {"gpus": offer.gpus}),
        "provider": offer.provider,
        "instance": offer.instance,
        **({"region": offer.region} if offer.region else {}),
        "date": offer.date,
        **({"spot": True} if offer.is_spot else {}),
        **({} if offer.includes_host else {"includes_host": False}),
    }


# Catalogues of cloud prices, read as offers of GPUs that we know.
#
# A catalogue is a CSV file of SkyPilot's price catalogue, one for each provider
# (`catalogs/v8/<provider>/vms.csv`), or the table that docs/sources.md describes, which has the
# cheapest region of many providers.


SKYPILOT = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8"
"""Where the catalogue of each provider is, in a folder of its name."""
SKYPILOT_PROVIDERS = (
    *("aws", "azure", "gcp", "lambda", "nebius", "oci", "runpod", "seeweb", "shadeform"),
    *("cudo", "hyperstack", "vast", "verda"),
)
AUCTIONS = ("mithril",)
"""Providers whose prices are starting bids of auctions, and no offers."""
_LEAST_HOST_GB = 16
"""A machine with less host memory for each GPU is not considered."""
_HOST_GB = re.compile(r"_(\d+)x\d+v(\d+)gb$")
_SKYPILOT_COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
_TABLE_COLUMNS = ("provider", "accelerator", "count", "on_demand_usd_per_gpu_hour", "data_date")


@dataclass(frozen=True)
class CatalogueName:
    """The GPU that a catalogue's name of an accelerator means, by provider and type of machine."""

    accelerator: str
    gpu: str
    """The id of the device; empty if such offers do not say which variant they have."""
    provider: str = "*"
    instance: str = "*"

    def matches(self, offer: Price) -> bool:
        """Whether an offer, whose `device_id` is still the catalogue's name, has this name."""
        pairs = (
            (offer.device_id, self.accelerator),
            (offer.provider, self.provider),
            (offer.instance, self.instance),
        )
        return all(fnmatch.fnmatchcase(text.lower(), form.lower()) for text, form in pairs)


@cache
def catalogue_names() -> tuple[CatalogueName, ...]:
    """The shipped names of accelerators (data/price_names.toml)."""
    return tuple(CatalogueName(**line) for line in shipped_toml("price_names.toml")["names"])


def read_catalogue(
    path: Path, provider: str | None = None, date: datetime.date | None = None
) -> PriceBook:
    """The offers of a catalogue in which we know the GPU.

    Args:
        provider: the provider of a file of SkyPilot's, which does not name it. None for the name of
            its folder.
        date: the date of its prices. None for the day on which the file was written.

    Raises:
        InvalidInput: the file cannot be read, or is no catalogue, or has no GPU that we know.
    """
    try:
        written = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"{path}: cannot be read: {reason}") from None
    with prefixed(f"{path}: "):
        text = read_text(path)
        return catalogue_of(text, provider or path.absolute().parent.name, date or written)


def catalogue_of(text: str, provider: str, date: datetime.date) -> PriceBook:
    """The offers in the text of a catalogue.

    Raises:
        InvalidInput: it is no catalogue, or has no GPU that we know. The caller adds its name.
    """
    reader = csv.DictReader(io.StringIO(text))
    try:
        columns = tuple(reader.fieldnames or ())
        if set(_TABLE_COLUMNS) <= set(columns):
            rows = list(_of_table(reader))
        elif set(_SKYPILOT_COLUMNS) <= set(columns):
            rows = list(_with_hosts(list(_of_skypilot(reader, provider.lower(), date))))
        else:
            raise InvalidInput(
                f"is no price catalogue: its columns are {', '.join(columns[:6]) or 'missing'}, "
                f"and not {', '.join(_SKYPILOT_COLUMNS)}"
            )
    except csv.Error as error:
        raise InvalidInput(f"is not CSV: {error}") from None
    offers = cheapest_regions(named(rows))
    if not offers:
        raise InvalidInput("has no offer of a GPU that we know")
    newest = max(offer.date for offer in offers)
    return PriceBook(offers, newest, "skypilot-org/skypilot-catalog")


def named(rows: Iterable[Price]) -> Iterator[Price]:
    """The offers whose GPU we know, with its id; `device_id` was the catalogue's name for it."""
    for row in rows:
        line = next((name for name in catalogue_names() if name.matches(row)), None)
        if line is not None and line.gpu and row.provider not in AUCTIONS and _is_usable(row):
            yield replace(row, device_id=line.gpu)


def _is_usable(row: Price) -> bool:
    """Whether the machine has enough host memory, as far as its name says."""
    memory = _HOST_GB.search(row.instance)
    return memory is None or int(memory[2]) >= _LEAST_HOST_GB * int(memory[1])


def cheapest_regions(offers: Iterable[Price]) -> tuple[Price, ...]:
    """Of each GPU, provider, size of machine and way to pay, the offer in the cheapest region."""
    best: dict[tuple[str, str, int, bool, bool], Price] = {}
    for offer in offers:
        key = offer.device_id, offer.provider, offer.gpus, offer.is_spot, offer.includes_host
        if key not in best or offer.usd_per_hour < best[key].usd_per_hour:
            best[key] = offer
    return tuple(best.values())


def _of_skypilot(
    rows: Iterable[Mapping[str, str]], provider: str, date: datetime.date
) -> Iterator[Price]:
    """The rows of a provider's catalogue; `usd_per_hour` is still that of the machine."""
    for row in rows:
        count = _number(row.get("AcceleratorCount"))
        if count is None or count < 1 or count != int(count) or not row.get("AcceleratorName"):
            continue
        prices = {False: _number(row.get("Price")), True: _number(row.get("SpotPrice"))}
        for is_spot, usd in prices.items():
            if usd is None or not is_money(usd) or (is_spot and usd == prices[False]):
                continue
            yield Price(
                *(row["AcceleratorName"].strip(), usd / int(count), provider),
                instance=(row.get("InstanceType") or "").strip(),
                date=date,
                region=(row.get("Region") or "").strip(),
                gpus=int(count),
                includes_host=bool((row.get("InstanceType") or "").strip()),
                is_spot=is_spot,
            )


def _with_hosts(rows: list[Price]) -> Iterator[Price]:
    """The rows, with the price of the machine added where it is listed apart from its GPUs.

    Google's catalogue has a row for the machine, and one without a machine for its GPUs.
    """
    bare = {
        (row.device_id, row.gpus, row.region, row.is_spot): row.usd_per_hour
        for row in rows
        if not row.includes_host
    }
    complete = {(row.device_id, row.gpus) for row in rows if row.includes_host}
    for row in rows:
        alone = bare.get((row.device_id, row.gpus, row.region, row.is_spot), 0.0)
        if row.includes_host:
            yield replace(row, usd_per_hour=row.usd_per_hour + alone)
        elif (row.device_id, row.gpus) not in complete:
            yield row


def _of_table(rows: Iterable[Mapping[str, str]]) -> Iterator[Price]:
    """The rows of the table of many providers."""
    for row in rows:
        count, names = _number(row["count"]), (row["accelerator"], row["provider"])
        if count is None or count < 1 or count != int(count) or not all(names):
            continue
        prices = {
            "on_demand": _number(row["on_demand_usd_per_gpu_hour"]),
            "spot": _number(row.get("spot_usd_per_gpu_hour")),
        }
        for kind, usd in prices.items():
            if usd is None or not is_money(usd):
                continue
            if kind == "spot" and usd == prices["on_demand"]:
                continue  # some catalogues repeat the other price
            yield Price(
                *(row["accelerator"], usd, row["provider"]),
                instance=row.get(f"{kind}_instance") or "",
                date=_date(row["data_date"]),
                region=row.get(f"{kind}_region") or "",
                gpus=int(count),
                includes_host=row.get("price_includes_host") != "False",
                is_spot=kind == "spot",
            )


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < 1e6 else None


def _date(text: str | None) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text or "")
    except ValueError:
        raise InvalidInput(f"has the date {text!r}; a date is such as 2026-08-22") from None
