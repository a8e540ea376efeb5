"""No name in a file, and no argument, reaches the terminal with characters that control it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kineto_file import V100, File
from made import call, mm, step, trace, unknown
from made_runs import grid_runs
from shell import run, run_in_terminal, run_process, shown

from wavecast.cli.output import screen
from wavecast.files import shipped
from wavecast.report.tables import Column, table
from wavecast.report.units import one_line, visible
from wavecast.runs.store.store import export
from wavecast.runs.suite_results import COLUMNS
from wavecast.traces.step import Kernel, Measurement

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\x7f\u202egnp\u2066\b\rx[red][/red][link=http://x]:skull:"
"""Escape sequences, C1, DEL, overrides of the direction of writing, and rich's own markup."""
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
STYLE = re.compile(r"\r?\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)")
"""Rich's own codes for colours and for its progress line; EVIL has none of them."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of every kind, in which every name is hostile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    devices = tmp_path / "config" / "wavecast" / "devices"
    devices.mkdir(parents=True)
    l4 = shipped("devices/l4.toml").read_text()
    named = l4.replace('name = "L4"', f"name = {json.dumps('Evil ' + EVIL)}")
    devices.joinpath("evil.toml").write_text(
        re.sub(r"aliases = .*", 'aliases = ["evil gpu"]', named)
    )
    made = replace(
        trace(
            call(mm(), module=f"net.{EVIL}"),
            call(unknown(f"mine.{EVIL}"), module=EVIL),
            samples=8,
            notes=(f"a note {EVIL}",),
        ),
        allocations=step().allocations[:1],
        framework=f"torch {EVIL}",
    )
    made.save(tmp_path / "step.json.gz")
    for batch in (8, 16, 32):
        replace(made, samples=batch).save(tmp_path / f"b{batch}{EVIL.replace('/', '')}.json.gz")
    calls = tuple(
        replace(item, kernels=(Kernel(f"kernel {EVIL}", 1e-4),), host_s=1e-5) for item in made.calls
    )
    measured = replace(made, calls=calls, measurement=Measurement("Tesla T4", 3e-4, 2e-4, 1e-4))
    measured.save(tmp_path / "measured.json.gz")
    unknown_gpu = Measurement(f"GPU {EVIL}", 3e-4, 2e-4, 1e-4)
    replace(measured, measurement=unknown_gpu).save(tmp_path / "other.json.gz")
    dims: dict[str, Any] = {"Input Dims": [[8, 8]]}
    profile = File(deviceProperties=[V100 | {"name": f"GPU {EVIL}"}])
    with profile.annotation("ProfilerStep#1"):
        profile.op(f"aten::{EVIL}", f"kernel {EVIL}", **dims)
    tmp_path.joinpath("profile.json").write_text(
        json.dumps({**profile.fields, "traceEvents": profile.events})
    )
    runs = [
        replace(item, model=f"model {EVIL}", gpu=f"GPU {EVIL}", framework=EVIL, source=EVIL)
        for item in grid_runs((2.0, 0.02, 0.02, 0.002), sigma=0.01)[:40]
    ]
    export(runs, tmp_path / "runs.jsonl")
    values = {"model": EVIL, "batch": 8, "precision": EVIL, "gpu": "evil", "status": EVIL}
    tmp_path.joinpath("suite.csv").write_text(f"{','.join(COLUMNS)}\n")
    with tmp_path.joinpath("suite.csv").open("a", newline="") as file:
        file.write(",".join(str(values.get(name, "")).replace("\r", "") for name in COLUMNS) + "\n")
    tmp_path.joinpath(f"evil{EVIL.replace('/', '')}.py").write_text(
        "raise ValueError('\\x1b[2J')\n"
    )
    tmp_path.joinpath("raises.py").write_text("raise ValueError('\\x1b[2J' + chr(0x202e))\n")
    tmp_path.joinpath("bad.toml").write_text(f"name = {json.dumps(EVIL)}\n")
    return tmp_path


BATCHES = [f"b{batch}{EVIL.replace('/', '')}.json.gz" for batch in (8, 16, 32)]
COMMANDS: list[tuple[str, ...]] = [
    ("devices",),
    ("devices", "evil"),
    ("devices", EVIL),
    ("predict", "step.json.gz", "--gpu", "evil", "--gpu", "l4", "--by", "op"),
    ("predict", "step.json.gz", "--gpu", "evil", "--by", "module"),
    ("predict", "measured.json.gz", "--gpu", "evil", "--gpu", "l4", "--by", "module"),
    ("predict", "other.json.gz", "--gpu", "l4"),
    ("predict", "other.json.gz", "--gpu", EVIL),
    ("predict", "profile.json", "--gpu", "l4", "--origin", EVIL),
    ("predict", EVIL, "--gpu", "l4"),
    ("predict", f"{EVIL}:{EVIL}", "--gpu", "l4"),
    ("predict", f"evil{EVIL.replace('/', '')}.py:make", "--gpu", "l4"),
    ("predict", "raises.py:make", "--gpu", "l4"),
    ("predict", "step.json.gz", "--gpu", "l4", "--host", EVIL),
    ("predict", "step.json.gz", "--gpu", "l4", f"--{EVIL}"),
    ("predict", "step.json.gz", "--gpu", "l4", "--by", EVIL),
    ("predict", "step.json.gz", "--gpu", "l4", "--batch", EVIL),
    (EVIL,),
    ("memory", "step.json.gz", "--gpu", "evil", "--gpu", "l4", "--html", "page.html"),
    ("memory", "step.json.gz", "--gpu", "l4", "--html", f"{EVIL}/page.html"),
    ("predict", "step.json.gz", "--gpu", "evil", "--html", "p.html", "--chrome-trace", "c.json"),
    ("predict", "step.json.gz", "--gpu", "l4", "--chrome-trace", f"{EVIL}/c.json"),
    ("fits", "step.json.gz", "--gpu", "evil", "--gpu", "l4"),
    ("max-batch", "step.json.gz", "--gpu", "evil"),
    ("profile", "measured.json.gz"),
    ("profile", "measured.json.gz", "--gpu", "evil", "--gpu", "l4"),
    ("profile", "other.json.gz"),
    ("extrapolate", *BATCHES, "--batch", "64", "--gpu", "evil"),
    ("trace", "step.json.gz", "-o", f"out{EVIL.replace('/', '')}.json.gz"),
    ("trace", "step.json.gz", "-o", f"{EVIL}.json.gz"),
    ("import", "profile.json", "-o", f"out{EVIL.replace('/', '')}.json.gz"),
    ("import", EVIL),
    ("run", EVIL),
    ("run", f"evil{EVIL.replace('/', '')}.py"),
    ("run", "raises.py"),
    ("calibrate", "--list"),
    ("suite", "show", "suite.csv"),
    ("suite", "show", EVIL),
    ("suite", "predict", "--gpu", EVIL, "--model", "alexnet"),
    ("runs", "add", "runs.jsonl", "--store", f"s{EVIL.replace('/', '')}.sqlite"),
    ("runs", "add", "runs.jsonl", "--dry-run"),
    ("runs", "add", "bad.toml", "--dry-run"),
    ("runs", "list", "--store", EVIL),
    ("runs", "export", EVIL, "--store", EVIL),
    ("runs", "predict", "--from", "runs.jsonl", "--batch", "64", "--iterations", "5000"),
    ("runs", "predict", EVIL, "--from", "runs.jsonl", "--batch", "64", "--iterations", "5000"),
    ("fit", "--runs", "runs.jsonl", "--model", f"model {EVIL}"),
    ("fit", EVIL, "-o", f"x{EVIL.replace('/', '')}.npz"),
    ("collect", EVIL, "-o", "x.csv", "--device", "cpu"),
    ("design", "--batches", EVIL, "--iterations", "1", "--budget", "1", "--sample", "1"),
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS, ids=range(len(COMMANDS)))
def test_no_command_shows_control_characters(folder: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert not UNSAFE.findall(done.out)
    assert not UNSAFE.findall(done.err)
    assert done.out or done.err
    # In a terminal, rich adds its styles and nothing else.
    styled = run(*arguments, env={"FORCE_COLOR": "1", "COLUMNS": "120"})
    assert not UNSAFE.findall(STYLE.sub("", styled.out + styled.err))


def test_runs_with_such_names_are_refused_without_them(folder: Path) -> None:
    pytest.importorskip("sqlalchemy")
    done = run("runs", "add", "runs.jsonl", "--store", f"s{EVIL.replace('/', '')}.sqlite")
    assert done.code == 1
    assert "characters that cannot be printed" in done.err
    assert not UNSAFE.findall(done.out + done.err)


def test_a_store_is_listed_and_exported_without_them(folder: Path) -> None:
    pytest.importorskip("sqlalchemy")
    plain = Path(__file__).parents[2] / "examples" / "runs.csv"
    store = f"s{EVIL.replace('/', '')}.sqlite"
    for command in (
        ("add", str(plain)),
        ("list",),
        ("export", f"out{EVIL.replace('/', '')}.csv"),
    ):
        done = run("runs", *command, "--store", store)
        assert done.code == 0, done.err
        assert not UNSAFE.findall(done.out + done.err)


def test_json_holds_them_as_escapes(folder: Path) -> None:
    done = run("predict", "step.json.gz", "--gpu", "evil", "--by", "module", "--json")
    assert not UNSAFE.findall(done.out)
    assert any(EVIL in text for text in _strings(json.loads(done.out)))


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [value] if isinstance(value, str) else []


def test_a_real_terminal_gets_styles_alone(folder: Path) -> None:
    text = run_in_terminal("devices", "evil", XDG_CONFIG_HOME=str(folder / "config"))
    assert "\x1b[" in text  # it is a terminal
    assert not UNSAFE.findall(STYLE.sub("", text))
    assert r"\x1b[2J" in text


def test_the_page_has_none_and_the_plot_is_refused(folder: Path) -> None:
    assert run("memory", "step.json.gz", "--gpu", "evil", "--html", "page.html").code == 0
    assert not UNSAFE.findall(Path("page.html").read_text(encoding="utf-8"))
    files = ("--html", "report.html", "--chrome-trace", "chrome.json")
    assert run("predict", "step.json.gz", "--gpu", "evil", *files).code == 0
    for file in ("report.html", "chrome.json"):
        assert not UNSAFE.findall(Path(file).read_text(encoding="utf-8"))
    fit = run("fit", "--runs", "runs.jsonl", "--model", f"model {EVIL}", "--plot", "p.svg")
    assert fit.code == 1
    assert not UNSAFE.findall(fit.out + fit.err)


def test_a_warning_of_python_is_shown_without_them(tmp_path: Path) -> None:
    python = "import atexit, warnings\natexit.register(lambda: warnings.warn('\\x1b[2J\\u202e'))"
    done = run_process("devices", "l4", python=python)
    assert done.code == 0
    assert not UNSAFE.findall(done.err)
    assert r"\x1b[2J\u202e" in done.err


def test_a_crash_is_shown_without_them(tmp_path: Path) -> None:
    python = """
import wavecast.cli.facts.devices

def fail(names):
    raise KeyError(chr(27) + "[2J") from ValueError(chr(0x9b))

wavecast.cli.facts.devices.named_gpus = fail
"""
    done = run_process("devices", "l4", python=python)
    assert done.code == 1
    assert "Traceback" in done.err
    assert not UNSAFE.findall(done.err)


def test_progress_takes_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.counting_down(EVIL, 1) as update:
        update(1, 0.0)
    with screen.telling_stages() as stage:
        stage(EVIL)
    err = capsys.readouterr().err
    assert err.count("[red][/red][link=http://x]:skull:") == 2
    assert not UNSAFE.findall(err)


def test_a_pipe_gets_lines_while_items_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "_BETWEEN_LINES_S", 0.001)
    err = ""
    with screen.counting_items(EVIL) as count:
        count(3, 2000, EVIL)
        while "3 of 2,000; " not in err:
            err += capsys.readouterr().err
    assert "[red][/red][link=http://x]:skull:" in err
    assert not UNSAFE.findall(err)


@pytest.mark.parametrize("name", ["counting_ops", "waiting", "counting_items", "telling_stages"])
def test_progress_in_a_terminal_too(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    arguments = () if name == "telling_stages" else (EVIL,)
    with getattr(screen, name)(*arguments) as update:
        if name == "telling_stages":
            update(EVIL)
    err = capsys.readouterr().err
    assert "\x07" not in err
    assert "\x1b[2J\x1b]0" not in err
    assert "\u202e" not in err
    assert "[red][/red]" in err


def test_a_name_stays_on_its_line_and_is_no_markup() -> None:
    text = shown(table([Column("[red]a[/red]", ["one\ntotal: 0 s", "[bold]:skull:"], left=True)]))
    assert r"one\ntotal: 0 s" in text
    assert "[red]a[/red]" in text
    assert "[bold]:skull:" in text


def test_what_is_no_control_character_stays() -> None:
    text = "naïve 北京 🚀 a\u200db é — ─"
    assert visible(text) == one_line(text) == text
    assert (visible("a\tb\nc"), one_line("a\tb\nc")) == ("a\tb\nc", r"a\tb\nc")
    assert visible("\udcff\ud800") == r"\udcff\ud800"
