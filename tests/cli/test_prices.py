"""`wavecast prices`: lists of offers, and newer ones from a file or the network."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from shell import run, run_in_terminal

from wavecast.planning.prices import price

CATALOGUE = """InstanceType,AcceleratorName,AcceleratorCount,Price,Region,SpotPrice
g6.xlarge,L4,1,0.11,here,0.05
"""


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


def offers(*arguments: object) -> Any:
    done = run("prices", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)["offers"]


def test_the_cheapest_offer_of_each_gpu_is_listed() -> None:
    rows = offers()
    assert len({row["device_id"] for row in rows}) == len(rows) >= 35
    per_gpu = [row["usd_per_hour"] for row in rows]
    assert per_gpu == sorted(per_gpu)
    out = run("prices").out
    assert 'all offers of a GPU: "wavecast prices --gpu NAME"' in out
    assert "2026-08-22" in out


def test_all_offers_of_a_gpu_have_their_own_dates() -> None:
    rows = offers("--gpu", "a100-sxm-80gb", "--spot", "--stale")
    assert {row["device_id"] for row in rows} == {"a100-sxm-80gb"}
    assert {True, False} == {row["is_spot"] for row in rows}
    assert len({row["date"] for row in rows}) > 2
    assert "(old)" in run("prices", "--gpu", "a100-sxm-80gb", "--stale").out
    assert "(old)" not in run("prices", "--gpu", "a100-sxm-80gb", "--providers", "aws").out


def test_offers_are_filtered_and_sorted() -> None:
    rows = offers("--gpu", "all", "--gpus", 8, "--providers", "aws", "--sort", "gpu")
    assert {row["provider"] for row in rows} == {"aws"}
    assert {row["gpus"] for row in rows} == {8}
    names = [row["device_id"] for row in rows]
    assert names == sorted(names)
    dates = [row["date"] for row in offers("--gpu", "all", "--sort", "date")]
    assert dates == sorted(dates, reverse=True)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_fits_a_terminal(width: int) -> None:
    out = run_in_terminal("prices", "--gpu", "l4", COLUMNS=str(width))
    assert max(map(len, out.splitlines()[1:3])) <= width
    assert "provider" in out


def test_a_catalogue_renews_a_provider(tmp_path: Path) -> None:
    file = tmp_path / "vms.csv"
    file.write_text(CATALOGUE)
    done = run("prices", "update", file, "--provider", "aws", "--date", "2026-08-30")
    assert done.code == 0
    assert done.out.startswith("2 offers of aws, kept in ")
    cheapest = price("l4")
    assert cheapest is not None
    assert (cheapest.provider, cheapest.usd_per_hour) == ("aws", 0.11)
    assert price("a10g") is None  # only aws has it, and the new table has none
    assert price("h100-sxm-80gb") is not None
    assert run("prices", "update", "--reset").code == 0
    assert price("a10g") is not None


def test_a_table_of_your_own_is_used(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[prices.l4]\nusd_per_hour = 0.01\nprovider = "us"\ninstance = ""\ndate = 2026-08-30\n'
    )
    assert [row["provider"] for row in offers("--prices", file)] == ["us"]
    run("prices", "update", file)
    assert offers("--gpu", "l4")[0]["provider"] == "us"


class Answer:
    """What the network would answer."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, _: int) -> bytes:
        return self.text.encode()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        return


def test_newer_prices_come_from_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: urllib.request.Request, timeout: float) -> Answer:
        if "/aws/" not in request.full_url:
            raise urllib.error.URLError("not here")
        return Answer(CATALOGUE)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    done = run("prices", "update")
    assert done.code == 0
    assert done.out.startswith("2 offers of aws, kept in ")
    assert "the prices stay as they are of gcp: not here" in done.err


def test_without_a_network_prices_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: urllib.request.Request, timeout: float) -> Answer:
        raise urllib.error.URLError("no route to host")

    before = price("l4")
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    done = run("prices", "update")
    assert done.code == 1
    assert "cannot be reached (aws: no route to host)" in done.err
    assert "wavecast prices update FILE" in done.err
    assert price("l4") == before
