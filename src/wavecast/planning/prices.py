"""What an hour of a GPU costs in a cloud, from a small dated snapshot: data/prices.toml."""

from __future__ import annotations

import datetime
import functools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.files import read_toml, shipped
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device as device_of_name


@dataclass(frozen=True, slots=True)
class Price:
    """One cloud offer, in USD per GPU and hour, as seen on a date.

    Attributes:
        device_id: The GPU that is offered.
        usd_per_hour: On demand: the instance's price divided by its GPUs.
        provider: Who offers it.
        instance: The provider's name of the machine; empty if the GPU is sold alone.
        date: When the price was seen to appear; prices change.
        spot_usd_per_hour: The same offer when it may be interrupted; None if there is none.
        region: The provider's region; empty if the price does not depend on it.
        gpus: How many such GPUs the instance has: one cannot rent fewer at this price.
        includes_host: False if the machine around the GPU costs extra.
    """

    device_id: str
    usd_per_hour: float
    provider: str
    instance: str
    date: datetime.date
    spot_usd_per_hour: float | None = None
    region: str = ""
    gpus: int = 1
    includes_host: bool = True

    def per_usd(self, per_s: float) -> float:
        """What a dollar buys of something that comes at a rate: samples per second, say.

        Habitat's cost-normalised throughput (section 5.3), in samples per dollar.
        """
        return per_s * 3600 / self.usd_per_hour


def price(device: Device | str) -> Price | None:
    """The cheapest offer we know for a device, or None: a price is never guessed.

    Raises:
        UnknownName: no device, or more than one, has this name.
    """
    wanted = device_of_name(device) if isinstance(device, str) else device
    return prices().get(wanted.id)


@functools.cache
def prices() -> Mapping[str, Price]:
    """The shipped prices by device id."""
    return read_prices(shipped("prices.toml"))


def read_prices(path: str | os.PathLike[str]) -> dict[str, Price]:
    """The prices of a TOML file by device id.

    Raises:
        InvalidInput: the file cannot be read or is not a price list; says which key and why.
    """
    try:
        table = read_toml(Path(path))
        _refuse_unknown(table, ("source", "snapshot", "currency", "prices"), "")
        currency = table.get("currency", "USD")
        if currency != "USD":
            raise InvalidInput(f'currency must be "USD", not {currency!r}')
        offers = table.get("prices")
        if not isinstance(offers, dict):
            raise InvalidInput("has no prices; write one as [prices.<device id>]")
        return {device_id: _price(device_id, offer) for device_id, offer in offers.items()}
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _price(device_id: str, offer: object) -> Price:
    where = f"prices.{device_id}"
    if not isinstance(offer, dict):
        raise InvalidInput(f"{where} must be a table, written [{where}], not {offer!r}")
    _refuse_unknown(offer, (*_CHECKS, *_OPTIONAL), f"{where}.")
    for key in _CHECKS:
        if key not in offer:
            raise InvalidInput(f"{where}.{key} is missing")
    values: dict[str, Any] = {}
    for key, value in offer.items():
        check, wanted = (_CHECKS | _OPTIONAL)[key]
        if not check(value):
            raise InvalidInput(f"{where}.{key} must be {wanted}, not {value!r}")
        values[key] = value
    return Price(device_id=device_id, **values)


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            raise InvalidInput(f"{where}{key} is not a key here; known are {', '.join(known)}")


def _is_money(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < math.inf


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_date(value: object) -> bool:
    # A TOML date with a time is a datetime, which is a date to isinstance.
    return type(value) is datetime.date


def _is_yes_or_no(value: object) -> bool:
    return isinstance(value, bool)


_CHECKS = {
    "usd_per_hour": (_is_money, "a positive number of USD"),
    "provider": (_is_text, "a text in quotes"),
    "instance": (_is_text, "a text in quotes"),
    "date": (_is_date, "a date such as 2026-08-22"),
}
_OPTIONAL = {
    "spot_usd_per_hour": (_is_money, "a positive number of USD"),
    "region": (_is_text, "a text in quotes"),
    "gpus": (_is_count, "a whole number of GPUs"),
    "includes_host": (_is_yes_or_no, "true or false"),
}
