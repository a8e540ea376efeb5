"""Files of prices: reading and writing them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.files import read_toml, toml_text, write_whole
from wavecast.planning.prices import Price, PriceBook


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
    try:
        return _read(file, written)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


@lru_cache(maxsize=8)
def _read(path: Path, _written: int) -> PriceBook:
    """The offers of a file; cached until the file changes."""
    table = read_toml(path)
    _refuse_unknown(table, ("source", "snapshot", "currency", "prices", "offers"), "")
    currency = table.get("currency", "USD")
    if currency != "USD":
        raise InvalidInput(f'currency must be "USD", not {currency!r}')
    offers = tuple(_offers(table))
    if not offers:
        raise InvalidInput("has no prices; write one as [prices.<device id>]")
    newest = max(offer.date for offer in offers)
    date = table.get("snapshot", newest)
    if not _is_date(date):
        raise InvalidInput(f"snapshot must be a date such as 2026-08-22, not {date!r}")
    return PriceBook(offers, date, str(table.get("source", "")))


def _offers(table: Mapping[str, Any]) -> Iterator[Price]:
    single = table.get("prices", {})
    if not isinstance(single, dict):
        raise InvalidInput("has no prices; write one as [prices.<device id>]")
    for device_id, offer in single.items():
        yield _price(device_id, offer, f"prices.{device_id}")
    several = table.get("offers", [])
    if not isinstance(several, list):
        raise InvalidInput("offers must be a list of tables")
    for number, offer in enumerate(several, start=1):
        where = f"offers[{number}]"
        if not isinstance(offer, dict) or not isinstance(offer.get("gpu"), str):
            raise InvalidInput(f"{where} must be a table with the key gpu, the id of a device")
        yield _price(offer["gpu"], {k: v for k, v in offer.items() if k != "gpu"}, where)


def _price(device_id: str, offer: object, where: str) -> Price:
    if not isinstance(offer, dict):
        raise InvalidInput(f"{where} must be a table, written [{where}], not {offer!r}")
    _refuse_unknown(offer, (*_CHECKS, *_OPTIONAL), f"{where}.")
    for key in _CHECKS:
        if key not in offer:
            raise InvalidInput(f"{where}.{key} is missing")
    values: dict[str, Any] = {}
    for key, value in offer.items():
        check, expected = (_CHECKS | _OPTIONAL)[key]
        if not check(value):
            raise InvalidInput(f"{where}.{key} must be {expected}, not {value!r}")
        values[_FIELDS.get(str(key), str(key))] = value
    return Price(device_id=device_id, **values)


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


def _refuse_unknown(table: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    allowed = tuple(allowed)
    for key in table:
        if key not in allowed:
            raise InvalidInput(f"unknown key {where}{key}; known: {', '.join(allowed)}")


def is_money(value: object) -> bool:
    """Whether a value can be the price of an hour in USD."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 1e-6 <= value <= 1e6


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10**6


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_date(value: object) -> bool:
    # isinstance would also accept a datetime, which is a TOML date with a time.
    return type(value) is datetime.date


def _is_yes_or_no(value: object) -> bool:
    return isinstance(value, bool)


_CHECKS = {
    "usd_per_hour": (is_money, "a positive number of USD that can be a price"),
    "provider": (_is_text, "a text in quotes"),
    "instance": (_is_text, "a text in quotes"),
    "date": (_is_date, "a date such as 2026-08-22"),
}
_OPTIONAL = {
    "region": (_is_text, "a text in quotes"),
    "gpus": (_is_count, "a whole number of GPUs"),
    "includes_host": (_is_yes_or_no, "true or false"),
    "spot": (_is_yes_or_no, "true or false"),
}
_FIELDS = {"spot": "is_spot"}
"""The fields of a `Price` whose keys in a file have other names."""
