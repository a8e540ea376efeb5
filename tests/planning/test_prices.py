"""Prices: every offer is for a known device, and bad files are refused with a reason."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware.devices import device, devices
from wavecast.planning.prices import Price, price, prices, read_prices


def test_every_price_is_for_a_known_device() -> None:
    assert len(prices()) >= 30
    assert set(prices()) <= {gpu.id for gpu in devices()}


@pytest.mark.parametrize("offer", prices().values(), ids=lambda offer: offer.device_id)
def test_every_price_is_dated_fresh_and_plausible(offer: Price) -> None:
    assert 0.1 < offer.usd_per_hour < 15
    assert offer.provider
    assert offer.provider != "mithril"  # its prices are auction floors
    snapshot = datetime.date(2026, 8, 22)
    assert snapshot - datetime.timedelta(days=180) <= offer.date <= snapshot
    if offer.spot_usd_per_hour is not None:
        assert 0 < offer.spot_usd_per_hour < offer.usd_per_hour
    assert offer.instance or not offer.includes_host


def test_a_price_is_found_by_any_name_of_the_device() -> None:
    by_id = price("a10g")
    assert by_id is not None
    assert (by_id.provider, by_id.instance, by_id.usd_per_hour) == ("aws", "g5.xlarge", 1.006)
    assert price("NVIDIA A10G") == price(device("a10g")) == by_id


def test_a_price_nobody_offers_is_none_not_a_guess() -> None:
    assert price("rtx-2070") is None


def test_an_unknown_or_ambiguous_name_is_an_error() -> None:
    with pytest.raises(UnknownName, match="fits several"):
        price("h100")
    with pytest.raises(UnknownName, match="unknown device"):
        price("qqqq")


def test_newer_gpus_of_a_kind_cost_more() -> None:
    def usd(name: str) -> float:
        offer = price(name)
        assert offer is not None
        return offer.usd_per_hour

    assert usd("t4") < usd("a100-sxm-80gb") < usd("h100-sxm-80gb") < usd("h200-sxm")
    assert usd("h200-sxm") < usd("b200-sxm") < usd("b300-sxm")


OFFER = """
[prices.l4]
usd_per_hour = 1
provider = "me"
instance = "desk"
date = 2026-01-02
"""


def test_a_file_of_your_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(OFFER + "gpus = 2\nincludes_host = false\nspot_usd_per_hour = 0.5\n")
    assert read_prices(path) == {
        "l4": Price(
            device_id="l4",
            usd_per_hour=1,
            provider="me",
            instance="desk",
            date=datetime.date(2026, 1, 2),
            spot_usd_per_hour=0.5,
            gpus=2,
            includes_host=False,
        )
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no prices"),
        ("prices = 3", "has no prices"),
        ("prices =", "is not TOML"),
        ("colour = 3", "unknown key colour; known: source"),
        ('currency = "EUR"\n' + OFFER, "currency must be \"USD\", not 'EUR'"),
        ("prices.l4 = 3", "prices.l4 must be a table"),
        (OFFER.replace('provider = "me"', ""), "prices.l4.provider is missing"),
        (OFFER.replace("date = 2026-01-02", ""), "prices.l4.date is missing"),
        (OFFER.replace("2026-01-02", '"2026-01-02"'), "prices.l4.date must be a date"),
        (OFFER.replace("2026-01-02", "2026-01-02T03:04:05"), "prices.l4.date must be a date"),
        (OFFER.replace('"me"', "3"), "prices.l4.provider must be a text"),
        (OFFER.replace("= 1", "= 0"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= 5e-324"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= 1e300"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= -1"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= nan"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= inf"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= true"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER + "gpus = 1.5", "prices.l4.gpus must be a whole number"),
        (OFFER + "gpus = true", "prices.l4.gpus must be a whole number"),
        (OFFER + "includes_host = 1", "prices.l4.includes_host must be true or false"),
        (OFFER + "usd = 1", "unknown key prices.l4.usd"),
    ],
)
def test_a_malformed_file_is_refused_with_place_and_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as error:
        read_prices(path)
    assert str(error.value).startswith(f"{path}: ")
    assert reason in str(error.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_prices(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'source = "\xe9"')
    with pytest.raises(InvalidInput, match="is not UTF-8"):
        read_prices(tmp_path / "latin.toml")


def offered(usd_per_hour: float) -> Price:
    return Price("any", usd_per_hour, "someone", "", datetime.date(2020, 10, 1))


HABITAT_USD = {"p100": 1.46, "v100": 2.48, "t4": 0.35}
"""Prices of Habitat's table 2 (Yu et al., ATC 2021)."""


@pytest.mark.parametrize(
    ("fast", "cheap", "break_even"),
    [("v100", "p100", 1.6986), ("p100", "t4", 4.171), ("v100", "t4", 7.086)],
)
def test_a_faster_gpu_pays_from_the_ratio_of_prices_on(
    fast: str, cheap: str, break_even: float
) -> None:
    dear, low = offered(HABITAT_USD[fast]), offered(HABITAT_USD[cheap])
    assert dear.per_usd(1.001 * break_even) > low.per_usd(1.0)
    assert dear.per_usd(0.999 * break_even) < low.per_usd(1.0)


def test_habitats_first_case_study_ranks_the_t4_first_per_dollar() -> None:
    """With the paper's speed-ups over the P4000, the T4 is slowest and cheapest per sample."""
    speedups = {"p100": 2.3, "v100": 4.0, "t4": 1.4}
    per_usd = {
        gpu: offered(HABITAT_USD[gpu]).per_usd(speedup) / 3600 for gpu, speedup in speedups.items()
    }
    assert per_usd == pytest.approx({"p100": 1.575, "v100": 1.613, "t4": 4.0}, abs=5e-4)
