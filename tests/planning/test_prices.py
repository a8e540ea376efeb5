"""Prices: every offer is for a known device, and bad files are refused with a reason."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device, devices
from wavecast.planning.prices import (
    Price,
    PriceBook,
    PriceFilter,
    catalogue_names,
    catalogue_of,
    cheapest_regions,
    price,
    price_book,
    prices_toml,
    read_catalogue,
    read_prices,
    today,
    user_prices,
    write_prices,
)

SNAPSHOT = price_book()
TODAY = datetime.date(2026, 8, 22)


def test_every_offer_is_of_a_known_device_and_many_gpus_have_one() -> None:
    gpus = {offer.device_id for offer in SNAPSHOT.offers}
    assert len(gpus) >= 35
    assert gpus <= {gpu.id for gpu in devices()}
    assert SNAPSHOT.date == TODAY
    assert "skypilot" in SNAPSHOT.source


def test_every_offer_is_plausible_and_none_is_an_auction() -> None:
    for offer in SNAPSHOT.offers:
        assert 0.05 < offer.usd_per_hour < 20, offer
        assert offer.date <= TODAY
        assert offer.gpus in (1, 2, 4, 8)
        assert offer.instance or not offer.includes_host, offer
    assert "mithril" not in SNAPSHOT.providers()
    assert {"aws", "gcp", "azure"} <= set(SNAPSHOT.providers())


def test_the_cheapest_offer_is_fresh_on_demand_and_complete_where_there_is_one() -> None:
    for gpu in devices():
        offer = price(gpu)
        if offer is not None:
            assert not offer.is_stale(TODAY)
            assert not offer.is_spot
            complete = [each for each in SNAPSHOT.of(gpu.id) if each.includes_host]
            assert offer.includes_host or not complete


def made(usd: float, gpus: int = 1, **values: object) -> Price:
    return Price("l4", usd, *("any", "", TODAY), gpus=gpus, **values)  # type: ignore[arg-type]


def test_a_machine_of_eight_is_no_offer_of_one() -> None:
    single, eight = made(1.0), made(0.5, gpus=8)
    book = PriceBook((single, eight), TODAY)
    assert book.of("l4") == (eight, single)  # cheapest per GPU first
    assert book.cheapest("l4", 1) == single
    assert book.cheapest("l4", 8) == eight
    assert book.cheapest("l4", 2, together=2) == eight
    assert PriceBook((single,), TODAY).cheapest("l4", 2, together=2) is None
    assert (eight.usd_per_hour_of(1), eight.usd_per_hour_of(9)) == (4.0, 8.0)
    assert (single.machines_for(3), eight.machines_for(9)) == (3, 2)


def test_old_offers_spot_offers_and_bare_gpus_are_not_the_cheapest() -> None:
    old = replace(made(0.1), date=TODAY - datetime.timedelta(days=181))
    spot, bare, usual = made(0.2, is_spot=True), made(0.3, includes_host=False), made(1.0)
    book = PriceBook((old, spot, bare, usual), TODAY)
    assert book.cheapest("l4") == usual
    assert book.looking_at(PriceFilter(spot=True)).cheapest("l4") == spot
    assert book.looking_at(PriceFilter(stale=True)).cheapest("l4") == old
    assert book.looking_at(PriceFilter(providers=("other",))).cheapest("l4") is None
    assert book.looking_at(PriceFilter(providers=("any",))).seen() == (bare, usual)
    assert PriceBook((bare,), TODAY).cheapest("l4") == bare
    assert old.is_stale(TODAY)
    assert not replace(old, date=TODAY - datetime.timedelta(days=180)).is_stale(TODAY)


def test_own_offers_replace_those_of_the_gpu_and_newer_tables_those_of_the_provider() -> None:
    other = Price("t4", 0.4, "any", "", TODAY)
    book = PriceBook((made(1.0), made(2.0), other), TODAY)
    assert book.with_offers([made(3.0)]).offers == (other, made(3.0))
    later = TODAY + datetime.timedelta(days=1)
    newer = PriceBook((made(5.0),), later, "new")
    renewed = PriceBook((*book.offers, replace(other, provider="else")), TODAY, "old").renewed(
        newer
    )
    assert renewed.offers == (replace(other, provider="else"), made(5.0))
    assert (renewed.date, renewed.source) == (later, "new; old")


def test_the_users_table_takes_the_place_of_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_prices(user_prices(), PriceBook((made(0.123),), TODAY, "mine"))
    found = price("l4")
    assert found is not None
    assert found.usd_per_hour == 0.123
    assert price("t4") is None
    write_prices(user_prices(), PriceBook((made(0.5),), TODAY, "mine"))
    assert price_book().of("l4") == (made(0.5),)


def test_the_date_of_today_can_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1787400000")
    assert today() == TODAY
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    assert today() == datetime.datetime.now(datetime.UTC).date()


def test_a_price_is_found_by_any_name_of_the_device() -> None:
    by_id = price("a10g")
    assert by_id is not None
    assert (by_id.provider, by_id.instance, by_id.usd_per_hour) == ("aws", "g5.xlarge", 1.006)
    assert price("NVIDIA A10G") == price(device("a10g")) == by_id


def test_a_price_nobody_offers_is_none_not_a_guess() -> None:
    assert price("rtx-2070") is None


OFFER = """
[prices.l4]
usd_per_hour = 1
provider = "me"
instance = "desk"
date = 2026-01-02
"""


def test_a_file_of_your_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(OFFER + "gpus = 2\nincludes_host = false\nspot = true\n")
    expected = Price(
        device_id="l4",
        usd_per_hour=1,
        provider="me",
        instance="desk",
        date=datetime.date(2026, 1, 2),
        gpus=2,
        includes_host=False,
        is_spot=True,
    )
    assert read_prices(path) == PriceBook((expected,), datetime.date(2026, 1, 2))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    odd = Price("t4", 0.1, 'quo"ted\\', "\x7f\n", TODAY, region="é")
    book = PriceBook((made(1.25, gpus=8, is_spot=True), odd), TODAY, "a source")
    write_prices(tmp_path / "new" / "prices.toml", book)
    assert read_prices(tmp_path / "new" / "prices.toml") == book
    assert prices_toml(book, ["why", ""]).startswith("# why\n#\nsource")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no prices"),
        ("prices = 3", "has no prices"),
        ("prices =", "is not TOML"),
        ("colour = 3", "colour is not a key of a file of prices; known are source"),
        ('currency = "EUR"\n' + OFFER, "currency must be \"USD\", not 'EUR'"),
        ("prices.l4 = 3", "prices.l4 must be a table"),
        (OFFER.replace('provider = "me"', ""), "prices.l4.provider is missing"),
        (OFFER.replace("date = 2026-01-02", ""), "prices.l4.date is missing"),
        (OFFER.replace("2026-01-02", '"2026-01-02"'), "prices.l4.date must be a date"),
        (OFFER.replace("2026-01-02", "2026-01-02T03:04:05"), "prices.l4.date must be a date"),
        (OFFER.replace('"me"', "3"), "prices.l4.provider must be a text"),
        (OFFER.replace("= 1", "= 0"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= 1e300"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER.replace("= 1", "= nan"), "prices.l4.usd_per_hour must be a positive number"),
        (OFFER + "gpus = 1.5", "prices.l4.gpus must be a whole number"),
        (OFFER + "usd = 1", "prices.l4.usd is not a key of an offer"),
        ("offers = 3", "offers must be a list"),
        ("offers = [3]", "offers[1] must be a table with the key gpu"),
        ('offers = [{ gpu = "l4" }]', "offers[1].usd_per_hour is missing"),
        ("snapshot = 3\n" + OFFER, "snapshot must be a date"),
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


def offered(usd_per_hour: float) -> Price:
    return Price("any", usd_per_hour, "someone", "", datetime.date(2020, 10, 1))


HABITAT_USD = {"p100": 1.46, "v100": 2.48, "t4": 0.35}
"""Prices of Habitat's table 2 (Yu et al., ATC 2021)."""


def test_habitats_first_case_study_ranks_the_t4_first_per_dollar() -> None:
    """With the paper's speed-ups over the P4000, the T4 is slowest and cheapest per sample."""
    speedups = {"p100": 2.3, "v100": 4.0, "t4": 1.4}
    per_usd = {
        gpu: offered(HABITAT_USD[gpu]).per_usd(speedup) / 3600 for gpu, speedup in speedups.items()
    }
    assert per_usd == pytest.approx({"p100": 1.575, "v100": 1.613, "t4": 4.0}, abs=5e-4)


# Catalogues of prices: their names become our GPUs, or the row is left out.


DAY = datetime.date(2026, 11, 1)
HEAD = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,SpotPrice\n"


def offers(rows: str, provider: str = "aws") -> dict[tuple[str, int, bool], float]:
    book = catalogue_of(HEAD + rows, provider, DAY)
    return {(o.device_id, o.gpus, o.is_spot): o.usd_per_hour for o in book.offers}


def test_every_name_is_of_a_known_device() -> None:
    known = {gpu.id for gpu in devices()}
    assert {name.gpu for name in catalogue_names()} - {""} <= known


def test_a_provider_s_catalogue_is_read() -> None:
    rows = "p5.48xlarge,H100,8,192,2048,55.0,us-east-1,16.0\n"
    rows += "p5.48xlarge,H100,8,192,2048,54.4,us-east-2,20.0\n"
    rows += "m5.large,,,2,8,0.1,us-east-1,0.05\n"
    assert offers(rows) == {("h100-sxm-80gb", 8, False): 6.8, ("h100-sxm-80gb", 8, True): 2.0}


def test_a_name_that_hides_variants_is_left_out() -> None:
    rows = "box,H100,1,8,80,2.0,here,\nbox-sxm5,H100,1,8,80,3.0,here,\n"
    assert offers(rows, "someone") == {("h100-sxm-80gb", 1, False): 3.0}


def test_a_spot_price_that_repeats_the_other_is_none() -> None:
    assert offers("g6.xlarge,L4,1,4,16,0.8,here,0.8\n") == {("l4", 1, False): 0.8}


def test_parts_of_gpus_and_auctions_are_left_out() -> None:
    assert offers("a,L4,0.5,1,1,0.4,here,\nb,L4,1,4,16,0.8,here,\n") == {("l4", 1, False): 0.8}
    with pytest.raises(InvalidInput, match="no offer of a GPU"):
        offers("b,L4,1,4,16,0.8,here,\n", "mithril")


def test_a_machine_with_little_memory_is_left_out() -> None:
    rows = "genoa-l40s_1x2v4gb,L40S,1,2,4,0.9,here,\ngenoa-l40s_1x8v32gb,L40S,1,8,32,1.0,here,\n"
    assert offers(rows, "cudo") == {("l40s", 1, False): 1.0}


def test_gpus_that_are_listed_apart_from_their_machine_are_added_to_it() -> None:
    rows = "a2-highgpu-1g,A100,1,12,85,0.7,here,\n,A100,1,,,2.9,here,1.0\n,T4,1,,,0.35,here,\n"
    book = catalogue_of(HEAD + rows, "gcp", DAY)
    found = {o.device_id: (round(o.usd_per_hour, 6), o.includes_host) for o in book.offers}
    assert found == {"a100-sxm-40gb": (3.6, True), "t4": (0.35, False)}


def test_the_cheapest_region_is_kept() -> None:
    dear, cheap = (Price("l4", usd, "any", "", DAY, region=str(usd)) for usd in (2.0, 1.0))
    assert cheapest_regions([dear, cheap]) == (cheap,)


def test_the_folder_names_the_provider_and_the_file_the_date(tmp_path: Path) -> None:
    path = tmp_path / "aws" / "vms.csv"
    path.parent.mkdir()
    path.write_text(HEAD + "g6.xlarge,L4,1,4,16,0.8,here,\n")
    [offer] = read_catalogue(path).offers
    assert offer.provider == "aws"
    assert abs((offer.date - datetime.datetime.now(datetime.UTC).date()).days) <= 1
    [offer] = read_catalogue(path, "lambda", DAY).offers
    assert (offer.provider, offer.date) == ("lambda", DAY)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n", "is no price catalogue: its columns are a, b"),
        ("", "columns are missing"),
        (HEAD, "has no offer of a GPU that we know"),
        (
            "provider,accelerator,count,on_demand_usd_per_gpu_hour,data_date\naws,L4,1,1,soon\n",
            "has the date 'soon'",
        ),
        (
            "provider,accelerator,count,on_demand_usd_per_gpu_hour,data_date\naws,L4,1,1\n",
            "has the date None",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "vms.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=reason):
        read_catalogue(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_catalogue(tmp_path / "none.csv")
