"""Catalogues of prices: their names become our GPUs, or the row is left out."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import devices
from wavecast.planning.prices import (
    Price,
    catalogue_names,
    catalogue_of,
    cheapest_regions,
    read_catalogue,
)

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
