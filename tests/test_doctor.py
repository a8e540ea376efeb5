"""What the doctor finds, and what it advises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from shell import WIDTHS, run, shown

from wavecast import doctor
from wavecast.doctor import Finding, KnownFigure, State, examine, is_broken
from wavecast.errors import InvalidInput
from wavecast.report.results.devices import examination

pytest.importorskip("torch")
installation = pytest.importorskip("wavecast.frameworks.pytorch.installation")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path))
    monkeypatch.delenv("WAVECAST_RUNS", raising=False)
    return tmp_path


def found(what: str) -> Finding:
    [finding] = [each for each in examine("1.2.3") if each.what == what]
    return finding


def test_this_machine_works(nowhere: Path) -> None:
    findings = examine("1.2.3")
    assert not is_broken(findings)
    states = {each.what: each.state for each in findings}
    assert states["Python"] is states["torch"] is states["tracing"] is State.GOOD
    assert states["calibrated hosts"] is states["run store"] is State.ABSENT
    assert all(each.advice for each in findings if each.state is not State.GOOD)
    assert any(each.found.startswith("1.2.3 (") for each in findings)


def test_the_command_prints_a_table_or_json_and_exits_with_1_if_something_is_broken(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("doctor")
    assert done.code == 0
    assert "Wavecast works here" in done.out
    record = json.loads(run("doctor", "--json").out)
    assert record["works"] is True
    assert {row["what"] for row in record["findings"]} >= {"Python", "torch", "prices"}
    monkeypatch.setattr(installation, "tracing_problem", lambda: "no such op")
    done = run("doctor")
    assert done.code == 1
    assert "1 broken: repair that first" in done.out
    assert json.loads(run("doctor", "--json").out)["works"] is False


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("2.8.1", State.BROKEN),
        ("2.9.0", State.GOOD),
        ("2.15.2", State.GOOD),
        ("2.16.0", State.DOUBTFUL),
        ("3.0.0a0", State.DOUBTFUL),
    ],
)
def test_versions_of_torch(version: str, state: State) -> None:
    assert doctor._version_of_torch(version, version).state is state


def test_gpus_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert doctor._gpus((), None).state is State.ABSENT
    monkeypatch.setattr("shutil.which", lambda name: "/bin/nvidia-smi")
    assert "install a CUDA build" in doctor._gpus((), None).advice
    assert "update the driver" in doctor._gpus((), "13.0").advice
    assert doctor._gpus(("Tesla T4",), "13.0") == Finding("GPU", State.GOOD, "Tesla T4")
    assert "is not known" in doctor._gpus(("Banana 9000",), "13.0").advice


def test_libraries_that_are_loaded_twice_are_named() -> None:
    paths = [
        "/usr/lib/libcudart.so.12",
        "/venv/nvidia/libcudart.so.13",
        "/venv/nvidia/libcudart.so.13",
        "/venv/torch/libgomp-a34b3233.so.1",
        "/usr/lib/libiomp5.so",
        "/usr/lib/libc.so.6",
        "/usr/lib/libcudnn.so.9",
        "/usr/lib/libcudnn_ops.so.9",
    ]
    assert installation.loaded_twice(paths) == (
        "OpenMP: /usr/lib/libiomp5.so, /venv/torch/libgomp-a34b3233.so.1",
        "libcudart: /usr/lib/libcudart.so.12, /venv/nvidia/libcudart.so.13",
    )
    assert installation.loaded_twice([]) == ()


def test_conflicts_are_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_loaded", lambda: ["/a/libnccl.so.2", "/b/libnccl.so.2"])
    finding = found("libraries")
    assert finding.state is State.DOUBTFUL
    assert "libnccl: /a/libnccl.so.2, /b/libnccl.so.2" in finding.found


def test_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=1.26",
        "pytest>=1.0; extra == 'small'",
        'pytest>=999; extra == "newer"',
        "no-such-package; extra == 'other'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert found("extra small").state is State.GOOD
    assert found("extra newer").found == "missing: pytest>=999"
    assert found("extra other").advice == "pip install 'wavecast[other]'"


def test_old_prices_and_broken_files_are_named(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1956528000")  # in 2032
    assert found("prices").state is State.DOUBTFUL
    hosts = nowhere / "wavecast" / "hosts"
    hosts.mkdir(parents=True)
    (hosts / "mine.toml").write_text("name = 3")
    finding = found("hosts")
    assert finding.state is State.BROKEN
    assert "mine.toml" in finding.found


def test_a_store_that_does_not_open_is_broken(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    place = nowhere / "runs.sqlite"
    place.write_text("this is no database, but some text")
    monkeypatch.setenv("WAVECAST_RUNS", str(place))
    assert found("run store").state is State.BROKEN


def test_a_look_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _own(version: str) -> Iterator[Finding]:
        raise RuntimeError("it fell over")
        yield

    def _file(version: str) -> Iterator[Finding]:
        raise InvalidInput("a file is wrong")
        yield

    monkeypatch.setattr(doctor, "_LOOKS", (_own, _file))
    first, second = examine("1")
    assert (first.what, first.state) == ("own", State.BROKEN)
    assert first.found == "RuntimeError: it fell over"
    assert second.found == "a file is wrong"


def test_without_torch_predictions_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import wavecast.frameworks.pytorch as package

    monkeypatch.delattr(package, "installation")
    monkeypatch.delitem(sys.modules, "wavecast.frameworks.pytorch.installation")
    monkeypatch.setitem(sys.modules, "torch", None)
    [finding] = doctor._torch("1")
    assert finding.state is State.ABSENT


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_fits_the_terminal(width: int) -> None:
    findings: Any = (Finding("a thing", State.BROKEN, "x" * 150, "do something"),)
    assert all(
        len(line) <= width for line in shown(examination(findings, width), width).split("\n")
    )


def test_figures_that_are_known_from_elsewhere_come_out(nowhere: Path) -> None:
    findings = {each.what: each for each in examine("1.2.3", deep=True)}
    figures = [each for each in findings.values() if ", known " in each.found]
    assert len(figures) == 10
    assert all(each.state is State.GOOD for each in figures), figures


def test_a_figure_that_is_off_is_broken(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = KnownFigure("FLOPs of a matmul", 2.0, 2.0, 2.001, "2 m n k")
    monkeypatch.setattr(doctor, "known_figures", lambda: iter([off]))
    findings = examine("1.2.3", deep=True)
    assert is_broken(findings)
    assert findings[-1].found == "2.001, known 2 (2 m n k)"
