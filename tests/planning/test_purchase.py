"""Bought hardware: idle hours and power cost money, too."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.planning.cost import Purchase

DAY = datetime.date(2026, 8, 22)


def test_a_purchase_is_an_offer_of_one_gpu() -> None:
    gpu = device("rtx-4090")
    offer = Purchase(usd=2000, years=4, utilisation=0.5, usd_per_kwh=0.3).offer(gpu, DAY)
    assert gpu.tdp_w == 450
    assert offer.usd_per_hour == pytest.approx(2000 / (4 * 8766 * 0.5) + 0.45 * 0.3)
    assert (offer.provider, offer.gpus, offer.date) == ("bought", 1, DAY)


def test_idle_hours_make_the_used_ones_dearer() -> None:
    often, seldom = Purchase(2000, utilisation=1.0), Purchase(2000, utilisation=0.1)
    assert seldom.usd_per_used_hour(0) == pytest.approx(10 * often.usd_per_used_hour(0))


def test_power_needs_the_power_of_the_board() -> None:
    unknown = replace(device("l4"), tdp_w=None)
    assert Purchase(2000).offer(unknown, DAY).usd_per_hour > 0
    with pytest.raises(InvalidInput, match="board power of l4 is not known"):
        Purchase(2000, usd_per_kwh=0.3).offer(unknown, DAY)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"usd": 0}, "the price of a GPU is 0"),
        ({"usd": float("nan")}, "the price of a GPU is nan"),
        ({"usd": 1, "years": 0}, "0 years"),
        ({"usd": 1, "utilisation": 1.5}, "utilisation is 1.5"),
        ({"usd": 1, "usd_per_kwh": -1}, "price of power is -1"),
    ],
)
def test_impossible_purchases_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Purchase(**values)
