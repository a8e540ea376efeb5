"""Hardware that you buy: its price as a price of an hour, to be compared with rented GPUs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.planning.prices import Price

BOUGHT = "bought"
"""The provider of an offer that stands for bought hardware."""
HOURS_PER_YEAR = 365.25 * 24


@dataclass(frozen=True, slots=True)
class Purchase:
    """A GPU that is bought, with its share of the machine around it.

    >>> Purchase(usd=2000, years=4, utilisation=0.5).usd_per_used_hour(power_w=450)
    0.11407711613050422
    """

    usd: float
    """What one GPU and its share of the machine cost."""
    years: float = 4.0
    """How long it is used before it is worth nothing."""
    utilisation: float = 0.5
    """The share of that time in which it trains. Idle hours cost money, too."""
    usd_per_kwh: float = 0.0
    """The price of power. At most the board's power is drawn while it trains."""

    def __post_init__(self) -> None:
        if not 0 < self.usd < 1e9:
            raise InvalidInput(f"the price of a GPU is {self.usd!r}; it is a number above 0")
        if not 0 < self.years <= 100:
            raise InvalidInput(f"a GPU is used for {self.years!r} years; it is a number above 0")
        if not 0 < self.utilisation <= 1:
            raise InvalidInput(f"the utilisation is {self.utilisation!r}; it is above 0, at most 1")
        if not 0 <= self.usd_per_kwh < 1e3:
            raise InvalidInput(f"the price of power is {self.usd_per_kwh!r}; it is 0 or more")

    def usd_per_used_hour(self, power_w: float) -> float:
        """What an hour of training costs, in USD."""
        hours = self.years * HOURS_PER_YEAR * self.utilisation
        return self.usd / hours + power_w / 1000 * self.usd_per_kwh

    def offer(self, device: Device, date: datetime.date) -> Price:
        """The purchase as an offer of one GPU.

        Raises:
            InvalidInput: power has a price, and the board's power is not known.
        """
        if device.tdp_w is None and self.usd_per_kwh:
            raise InvalidInput(
                f"the board power of {device.id} is not known, so the price of power cannot be "
                "counted; leave it out"
            )
        return Price(
            device_id=device.id,
            usd_per_hour=self.usd_per_used_hour(device.tdp_w or 0.0),
            provider=BOUGHT,
            instance="",
            date=date,
        )
