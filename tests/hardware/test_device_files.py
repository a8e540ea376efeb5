"""Device files that wavecast writes: they are read back unchanged, and never half written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from over_all import over

from wavecast.errors import InvalidInput
from wavecast.files import shipped
from wavecast.hardware.devices import (
    Device,
    Fact,
    device,
    read_device,
    save,
    to_toml,
    with_measured,
)

SHIPPED = sorted(shipped("devices").glob("*.toml"))
every_device = over("gpu", map(read_device, SHIPPED), called=lambda gpu: gpu.id)
COPIED = {"memory_bytes_per_s": Fact(2.5e11, 'wavecast calibrate, "quoted" \\ back, 3 µs')}


@pytest.fixture(autouse=True)
def _no_devices_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WAVECAST_DEVICES", raising=False)


@every_device
def test_every_shipped_device_survives_its_file(gpu: Device, tmp_path: Path) -> None:
    path = tmp_path / f"{gpu.id}.toml"
    path.write_text(to_toml(gpu), encoding="utf-8")
    assert read_device(path) == gpu


def test_measured_facts_are_read_back_apart_from_nominal_ones(tmp_path: Path) -> None:
    t4 = device("t4")
    again = read_device(save(with_measured(t4, COPIED), tmp_path))
    assert again.measured == {**t4.measured, **COPIED}
    assert again.memory_bytes_per_s == t4.memory_bytes_per_s
    assert again.sources == t4.sources


def test_a_newer_measurement_replaces_the_older_and_keeps_the_others() -> None:
    first = with_measured(device("l4"), COPIED | {"fp32_flops": Fact(1e13, "once")})
    second = with_measured(first, {"fp32_flops": Fact(2e13, "again")})
    assert second.measured["fp32_flops"] == Fact(2e13, "again")
    assert second.measured["memory_bytes_per_s"] == COPIED["memory_bytes_per_s"]
    assert first.measured["fp32_flops"] == Fact(1e13, "once")


def test_facts_without_a_source_are_bare_values(tmp_path: Path) -> None:
    mine = Device("mine", "Mine", "Me", "Own", 16 << 30, 1e12, 2e13, compute_capability=(9, 0))
    assert "fp32_flops = 20000000000000.0\n" in to_toml(mine)
    assert read_device(save(mine, tmp_path)) == mine


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)


@given(name=texts.filter(str.strip), source=texts, flops=st.floats(1e9, 1e18))
def test_any_text_and_number_is_read_back(
    name: str, source: str, flops: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    facts = {"fp32_flops": Fact(flops, source)}
    mine = dataclasses.replace(device("t4"), name=name, measured=facts)
    assert read_device(save(mine, tmp_path_factory.getbasetemp())) == mine


def test_a_saved_device_is_found_under_its_id() -> None:
    before = device("t4")
    path = save(with_measured(before, COPIED))
    assert path.name == "t4.toml"
    assert device("t4").measured["memory_bytes_per_s"] == COPIED["memory_bytes_per_s"]
    assert device("Tesla T4").id == "t4"


def test_what_cannot_be_read_again_does_not_replace_what_can(tmp_path: Path) -> None:
    path = save(device("t4"), tmp_path)
    before = path.read_bytes()
    in_tflops = with_measured(device("t4"), {"fp32_flops": Fact(8.1, "in the wrong unit")})
    with pytest.raises(InvalidInput, match=r"measured\.fp32_flops = 8\.1 is outside"):
        save(in_tflops, tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["t4.toml"]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(device("t4"), tmp_path)
    before = path.read_bytes()

    def torn(self: Path, text: str, encoding: str) -> int:
        with self.open("w", encoding=encoding) as file:
            file.write(text[:20])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(InvalidInput, match="no space left; choose another place"):
        save(with_measured(device("t4"), COPIED), tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["t4.toml"]
