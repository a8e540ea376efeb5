"""Prices of GPU hours in clouds, from a small dated snapshot (data/prices.toml)."""

from __future__ import annotations

import datetime
import functools
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
    """One cloud offer, in USD per GPU and hour, on a date.

    >>> offer = price("h100-sxm-80gb")
    >>> offer is not None and offer.per_usd(1000.0) > 0  # samples per dollar at 1000 samples/s
    True

    Attributes:
        device_id: The id of the GPU.
        usd_per_hour: The on-demand price of the instance divided by its number of GPUs.
        provider: The cloud provider.
        instance: The provider's name for the machine; empty if GPUs are rented singly.
        date: The date on which the price was first seen; prices change.
        spot_usd_per_hour: The price of the same offer if it may be interrupted; None if there is
            no such offer.
        region: The provider's region; empty if the price does not depend on it.
        gpus: The number of GPUs of the instance. Fewer cannot be rented at this price.
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
        """Samples (or other units) per dollar, from samples per second.

        This is Habitat's cost-normalised throughput (section 5.3).
        """
        return per_s * 3600 / self.usd_per_hour


def price(device: Device | str, setup: str | None = None) -> Price | None:
    """The cheapest known offer for a device. None when unknown; a price is never guessed.

    Args:
        device: the GPU, or its name.
        setup: "habitat" for the prices of Habitat's paper (table 2); None for today's.

    Raises:
        UnknownName: the name fits no device, or several; or there is no such setup.
    """
    gpu = device_of_name(device) if isinstance(device, str) else device
    return prices(setup).get(gpu.id)


@functools.cache
def prices(setup: str | None = None) -> Mapping[str, Price]:
    """The shipped prices by device id; with a setup, those of its paper."""
    if setup is None:
        return read_prices(shipped("prices.toml"))
    # Imported only here: it needs numpy, and today's prices do not.
    from wavecast.predictors.published import published_setup

    return read_prices(shipped(f"setups/{published_setup(setup).name}-prices.toml"))


def read_prices(path: str | os.PathLike[str]) -> dict[str, Price]:
    """The prices of a TOML file by device id.

    Raises:
        InvalidInput: the file cannot be read or is not a price file; says which key and why.
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
        check, expected = (_CHECKS | _OPTIONAL)[key]
        if not check(value):
            raise InvalidInput(f"{where}.{key} must be {expected}, not {value!r}")
        values[key] = value
    return Price(device_id=device_id, **values)


def _refuse_unknown(table: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    allowed = tuple(allowed)
    for key in table:
        if key not in allowed:
            raise InvalidInput(f"unknown key {where}{key}; known: {', '.join(allowed)}")


def _is_money(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 1e-6 <= value <= 1e6  # nothing beyond can be the price of an hour


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_date(value: object) -> bool:
    # isinstance would also accept a datetime, which is a TOML date with a time.
    return type(value) is datetime.date


def _is_yes_or_no(value: object) -> bool:
    return isinstance(value, bool)


_CHECKS = {
    "usd_per_hour": (_is_money, "a positive number of USD that can be a price"),
    "provider": (_is_text, "a text in quotes"),
    "instance": (_is_text, "a text in quotes"),
    "date": (_is_date, "a date such as 2026-08-22"),
}
_OPTIONAL = {
    "spot_usd_per_hour": (_is_money, "a positive number of USD that can be a price"),
    "region": (_is_text, "a text in quotes"),
    "gpus": (_is_count, "a whole number of GPUs"),
    "includes_host": (_is_yes_or_no, "true or false"),
}
