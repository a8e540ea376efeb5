"""Plans that are kept between traces: equal results, other keys for other graphs, and damage."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import made
import pytest
import torch
from torch import nn

import wavecast
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.compiled import plans
from wavecast.frameworks.pytorch.compiled.plans import (
    plans_folder,
    read_plan,
    store_plan,
    stored_plan,
)
from wavecast.frameworks.pytorch.compiled.tracing import capture
from wavecast.hardware.devices import device
from wavecast.reading import read_bytes
from wavecast.traces.step import Trace


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without plans."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def net(width: int = 64, slope: float = 0.1) -> Callable[[], Callable[[], Any]]:
    """A small compiled step."""

    def make_step() -> Callable[[], Any]:
        layers = (nn.Linear(64, width), nn.LeakyReLU(slope), nn.LayerNorm(width), nn.Dropout(0.1))
        model = nn.Sequential(*layers).cuda()
        x = torch.randn(4096, 64, device="cuda")

        def step() -> None:
            torch.compile(lambda x: model(x))(x).sum().backward()

        return step

    return make_step


def lowered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that grows with each graph that is lowered."""
    from wavecast.frameworks.pytorch.compiled import inductor

    graphs: list[bool] = []
    original = inductor.lowered

    def counting(gm: Any, given: Any, is_backward: bool, is_inference: bool) -> Any:
        graphs.append(is_backward)
        return original(gm, given, is_backward, is_inference)

    monkeypatch.setattr(inductor, "lowered", counting)
    return graphs


def traced(gpu: str = "h100-sxm-80gb", **options: Any) -> Trace:
    return capture(net(**options), gpu=device(gpu))


def test_a_second_trace_lowers_nothing_and_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = lowered(monkeypatch)
    first = traced()
    assert graphs == [False, True]
    assert len(list(plans_folder().glob("*.plan"))) == 2
    assert traced() == first
    assert graphs == [False, True]


def test_other_sizes_numbers_and_gpus_are_lowered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = lowered(monkeypatch)
    first = traced()
    assert traced(width=128) != first
    traced(slope=0.2)
    traced("a100-sxm-80gb")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        traced()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert len(graphs) == 10


def test_gpus_of_a_family_share_one_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = lowered(monkeypatch)
    several = wavecast.trace(net(), gpus=["h200-sxm", "h100-sxm-80gb", "h100-pcie-80gb"])
    assert graphs == [False, True]  # each is lowered anew for another GPU, so there was one
    assert several.on(device("h100-sxm-80gb")) is several.on(device("h200-sxm"))


def test_damaged_plans_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, graphs = traced(), lowered(monkeypatch)
    for number, path in enumerate(plans_folder().glob("*.plan")):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if number else b"")
    assert traced() == first
    assert graphs == [False, True]
    assert traced() == first
    assert graphs == [False, True]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    store_plan("key", made.graph_plan(), tmp_path)
    assert stored_plan("key", tmp_path) == made.graph_plan()
    assert stored_plan("other", tmp_path) is None
    (tmp_path / "key.plan").write_bytes(b"no plan")
    with pytest.raises(InvalidInput, match="is damaged; delete it"):
        read_plan(tmp_path / "key.plan")


def test_several_writers_leave_a_whole_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda _: _written_and_read(tmp_path), range(64)))
    assert all(plan in (None, made.graph_plan()) for plan in read)
    assert stored_plan("key", tmp_path) == made.graph_plan()
    assert [path.name for path in tmp_path.iterdir()] == ["key.plan"]


def _written_and_read(folder: Path) -> Any:
    store_plan("key", made.graph_plan(), folder)
    return stored_plan("key", folder)


def test_plans_that_nobody_reads_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 2)
    for number, name in enumerate(("old", "new")):
        store_plan(name, made.graph_plan(), tmp_path)
        os.utime(tmp_path / f"{name}.plan", (number, number))
    store_plan("newest", made.graph_plan(), tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"new", "newest"}


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store_plan("key", made.graph_plan(), tmp_path / "file")
    assert stored_plan("key", tmp_path / "file") is None


def test_files_of_any_size_that_a_script_leaves_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, kept = tmp_path / "new", tmp_path / "kept"
    new.mkdir()
    for number in range(9):
        with (new / f"{number:064x}.plan").open("wb") as file:
            file.truncate(1 << 40)
    (new / f"{9:064x}.plan").write_bytes(b"a plan")
    opened: list[Path] = []

    def read(path: Path, *arguments: Any, **options: Any) -> bytes:
        opened.append(path)
        return read_bytes(path, *arguments, **options)

    monkeypatch.setattr(plans, "read_bytes", read)
    plans.adopt(new, kept)
    assert opened == [new / f"{9:064x}.plan"]
    assert [path.read_bytes() for path in kept.iterdir()] == [b"a plan"]
