"""The events of profiler files: order, truncation, damage, and kernels."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from kineto_file import File

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto.events import kernel_of, read_events
from wavecast.traces.step import Kernel


def small() -> File:
    file = File()
    file.op("aten::mm", "gemm")
    return file


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_events_come_in_their_order_and_fields_from_before_and_after(
    tmp_path: Path, name: str
) -> None:
    file = small()
    path = file.write(tmp_path, name)
    fields: dict[str, Any] = {}
    assert list(read_events(path, fields)) == file.events
    assert fields == {**file.fields, "traceName": "x.json"}


def test_packing_is_seen_in_the_content_not_in_the_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(small().text().encode()))
    assert len(list(read_events(path))) == 3


def test_events_are_whole_wherever_the_window_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = small()
    path = file.write(tmp_path, "trace.json")
    for size in (1, 2, 3, 7, 50):
        monkeypatch.setattr("wavecast.frameworks.kineto.events._CHUNK_CHARACTERS", size)
        assert list(read_events(path)) == file.events


def test_every_truncation_is_told(tmp_path: Path) -> None:
    text = small().text()
    for cut in range(0, len(text) - 1, 7):
        path = tmp_path / "cut.json"
        path.write_text(text[:cut])
        with pytest.raises(InvalidInput, match="truncated") as raised:
            list(read_events(path))
        assert "\n" not in str(raised.value)


def test_a_truncated_archive_is_told(tmp_path: Path) -> None:
    path = small().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidInput, match="truncated or damaged; copy it again"):
        list(read_events(path))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("hello", "not a valid JSON"),
        ("[1, 2]", "not a valid JSON object"),
        ('{"a": 1}', "has no traceEvents"),
        ('{"traceEvents": 5}', "has no traceEvents"),
        ('{"traceEvents": [{"ph": "X"} }]' + " " * 200, "not a valid JSON"),
        ('{"traceEvents": [{"ph": X, "name": "' + "n" * 200 + '"}]}', "not a valid JSON"),
    ],
)
def test_what_is_no_profiler_file_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=why) as raised:
        list(read_events(path))
    assert "torch.profiler" in str(raised.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no profiler file"):
        list(read_events(tmp_path / "none.json"))
    with pytest.raises(InvalidInput, match="it is a folder"):
        list(read_events(tmp_path))


def test_a_long_file_is_read_in_little_memory(tmp_path: Path) -> None:
    event = json.dumps({"ph": "X", "cat": "cpu_op", "name": "n" * 1000, "ts": 1, "dur": 1})
    path = tmp_path / "long.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as out:
        out.write('{"traceEvents": [' + event)
        for _ in range(20_000):  # 20 MB of text
            out.write(",\n" + event)
        out.write("]}")
    tracemalloc.start()
    assert sum(1 for _ in read_events(path)) == 20_001
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6


def test_a_kernel_has_its_launch_and_its_start_from_the_step_on() -> None:
    arguments = {"grid": [8, 1, 1], "block": [128, 2, 1], "stream": 7, "shared memory": 1024}
    arguments["registers per thread"] = 32
    event = {"name": "gemm", "cat": "kernel", "ts": 1500.0, "dur": 250, "args": arguments}
    assert kernel_of(event, 1000.0) == Kernel(
        "gemm", 250e-6, (8, 1, 1), (128, 2, 1), 32, 1024, stream=7, start_s=500e-6
    )
    assert kernel_of(event, 2000.0).start_s == 0.0


@pytest.mark.parametrize(
    ("stream", "number"), [("0x0", 0), ("0x55d0", 0x55D0), (3, 3), (None, 0), ("null", 0), (-1, 0)]
)
def test_amd_kernels_have_no_launch_and_streams_as_texts(stream: Any, number: int) -> None:
    kernel = kernel_of({"name": "Cijk", "ts": 5.0, "dur": 1.5, "args": {"stream": stream}}, 0.0)
    assert kernel == Kernel("Cijk", 1.5e-6, stream=number, start_s=5e-6)
    assert kernel.grid is None
    assert kernel.registers is None


def test_malformed_launches_are_not_taken_over() -> None:
    arguments = {"grid": [1, 2], "block": [1, -2, "x"], "shared memory": 1.5}
    kernel = kernel_of({"name": "k", "dur": "long", "args": arguments}, 0.0)
    assert kernel == Kernel("k", 0.0, start_s=0.0)
