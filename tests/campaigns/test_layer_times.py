"""Collections of layer times survive kills and incomplete lines, and never mix with others."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavecast.campaigns.layer_times import LayerRow, collect, read_rows
from wavecast.campaigns.progress import Progress
from wavecast.errors import InvalidInput
from wavecast.predictors.mlp import KINDS, Layer, LayerStatus, Linear, PassTimes, sample

COUNT = 12


def fake(layer: Layer) -> PassTimes:
    """A time that depends on the layer alone; one in seven does not fit."""
    size = sum(layer.features())
    if size % 7 == 0:
        return PassTimes(None, None, LayerStatus.OOM)
    return PassTimes(size * 1e-6, size * 2e-6)


def run(path: Path, kind: str = "bmm", count: int = COUNT, seed: int = 0, gpu: str = "t4") -> int:
    return collect(kind, seed, count, path, fake, gpu=gpu, software="torch 0")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_collected_is_read_back(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "rows.csv"
    assert run(path, kind) == COUNT
    layers = list(islice(sample(kind, 0), COUNT))
    expected = [
        LayerRow(i, layer, "t4", fake(layer), "0", "torch 0") for i, layer in enumerate(layers)
    ]
    rows = read_rows(path)
    assert [(r.index, r.layer, r.gpu, r.seed, r.software) for r in rows] == [
        (r.index, r.layer, r.gpu, r.seed, r.software) for r in expected
    ]
    for row, wanted in zip(rows, expected, strict=True):
        assert row.time.status == wanted.time.status
        assert row.time.forward_s == pytest.approx(wanted.time.forward_s)
        assert row.time.backward_s == pytest.approx(wanted.time.backward_s)


def test_more_layers_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path, count=5)
    before = path.read_bytes()
    assert run(path, count=9) == 9
    assert path.read_bytes().startswith(before)
    assert [row.index for row in read_rows(path)] == list(range(9))


def test_nothing_is_measured_twice_not_even_what_did_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    asked: list[Layer] = []

    def full(layer: Layer) -> PassTimes:
        asked.append(layer)
        return PassTimes(None, None, LayerStatus.OOM)

    for _ in range(3):
        collect("bmm", 0, 4, path, full, gpu="t4")
    assert len(asked) == 4
    assert {row.time.status for row in read_rows(path)} == {LayerStatus.OOM}


@settings(max_examples=60)
@given(cut=st.integers(0, 10_000), junk=st.booleans())
def test_a_file_cut_anywhere_is_completed_as_if_nothing_had_happened(
    cut: int, junk: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole, torn = folder / "whole.csv", folder / "torn.csv"
    run(whole)
    content = whole.read_bytes()
    keep = content[: cut % (len(content) + 1)]
    torn.write_bytes(keep)
    if junk and b"\n" in keep:  # a torn line may hold bytes that were never written
        torn.write_bytes(keep[: keep.rfind(b"\n") + 1] + b"7,bmm,\x00\xff")
    run(torn)
    assert torn.read_bytes() == content


@pytest.mark.parametrize("junk", [b"", b"\x00\xff"])
def test_an_incomplete_last_line_is_not_read(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "rows.csv"
    run(path)
    path.write_bytes(path.read_bytes()[:-1] + junk)
    assert [row.index for row in read_rows(path)] == list(range(COUNT - 1))


KILLED = """
import sys, time
from pathlib import Path
from wavecast.campaigns.layer_times import PassTimes, collect

def slow(layer):
    time.sleep(0.0005)
    return PassTimes(1e-6 * sum(layer.features()), 1e-3)

collect("linear", 5, int(sys.argv[2]), Path(sys.argv[1]), slow, gpu="t4")
"""


@pytest.mark.slow
def test_twenty_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    path, total = tmp_path / "rows.csv", 3000
    command = [sys.executable, "-c", KILLED, str(path), str(total)]
    moments = random.Random(0)
    before, kills = b"", 0
    for _ in range(20):
        process = subprocess.Popen(command)
        while not path.exists() or path.stat().st_size <= len(before):
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(moments.random() * 0.08)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        content = path.read_bytes()
        assert content.startswith(before)
        before = content[: content.rfind(b"\n") + 1]
    assert kills == 20
    assert len(read_rows(path)) < total
    subprocess.run(command, check=True)
    assert path.read_bytes().startswith(before)
    rows = read_rows(path)
    assert [row.index for row in rows] == list(range(total))
    assert [row.layer for row in rows] == list(islice(sample("linear", 5), total))


def test_files_of_something_else_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="has layers of seed 0, and seed 1 was asked for"):
        run(path, seed=1)
    with pytest.raises(InvalidInput, match="has results of t4, and this GPU is l4"):
        run(path, gpu="l4")
    with pytest.raises(InvalidInput, match="has no measured linear layers: its first line"):
        run(path, kind="linear")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"my notes", b"my notes\nof today\n", b"\xff\xfe\n", b"index,kind\n1,bmm\n", b"a,b\n"],
)
def test_a_file_that_is_no_collection_is_refused_and_left_alone(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidInput):
        run(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("\n3,bmm", "\n2,bmm", "repeats index 2"),
        ("\n3,bmm", "\nx,bmm", "line 5"),
        (",ok,", ",fine,", "line 2 is not a row of measured bmm layers: 'fine'"),
        ("\n3,bmm,", "\n3,", "line 5"),
        ("e-0", "e-900", "forward_s is .* must be a finite number above 0"),
        ("e-0", "e900", "forward_s is .* must be a finite number above 0"),
    ],
)
def test_a_damaged_line_is_named(old: str, new: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InvalidInput, match=reason):
        read_rows(path)


def test_two_collectors_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    def meanwhile(layer: Layer) -> PassTimes:
        with pytest.raises(InvalidInput, match="another process"):
            run(path)
        return fake(layer)

    assert collect("bmm", 0, 2, path, meanwhile, gpu="t4") == 2


def test_a_failing_measurement_leaves_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    left = [1, 2, 3]

    def broken(layer: Layer) -> PassTimes:
        if not left:
            raise RuntimeError("the GPU fell off the bus")
        left.pop()
        return fake(layer)

    with pytest.raises(RuntimeError, match="bus"):
        collect("bmm", 0, COUNT, path, broken, gpu="t4")
    assert len(read_rows(path)) == 3
    assert run(path) == COUNT


def test_a_full_disk_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    run(path, count=2)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:10]))
        with pytest.raises(InvalidInput, match="No space left on device"):
            run(path, count=4)
    assert len(read_rows(path)) == 2
    assert run(path, count=4) == 4


def test_progress_counts_what_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(path, count=4)
    seen: list[Progress] = []
    collect("bmm", 0, 6, path, fake, gpu="t4", progress=seen.append)
    assert [(at.done, at.total) for at in seen] == [(5, 6), (6, 6)]
    assert seen[0].remaining_s >= 0
    assert seen[-1].remaining_s == 0


def test_no_layer_is_begun_after_the_limit(tmp_path: Path) -> None:
    assert collect("bmm", 0, 5, tmp_path / "rows.csv", fake, gpu="t4", limit_s=0) == 0


def test_a_list_of_layers_can_stand_for_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    layers = [Linear(True, 2, 3, 4), Linear(False, 5, 6, 7)]
    collect("linear", "mine", 10, path, fake, gpu="t4", layers=layers)
    assert [row.layer for row in read_rows(path)] == layers
    with pytest.raises(InvalidInput, match='there is no sample named "mine"'):
        collect("linear", "mine", 10, path, fake, gpu="t4")


def test_a_file_of_something_else_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nof today\n")
    with pytest.raises(InvalidInput, match=r"notes\.txt has no measured layers: its first line"):
        read_rows(path)


@pytest.mark.parametrize("content", ["", "index,kind,batch"])
def test_a_file_with_an_incomplete_header_has_no_rows(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    assert read_rows(path) == ()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere"):
        read_rows(tmp_path / "nowhere.csv")
