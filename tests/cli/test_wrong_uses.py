"""Wrong commands, steps, traces and GPUs: what was asked, why not, what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile.commands import MISUSED, REFUSED, check
from made import call, mm, step, trace
from shell import run, run_process

import wavecast
from wavecast.errors import CaptureError, InvalidInput, UnknownName
from wavecast.predictors.base import Predictor

WRONG = {
    command: (code, says)
    for code, table in ((1, REFUSED), (2, MISUSED))
    for command, *says in table
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines that nobody waits for
@pytest.mark.parametrize("command", WRONG, ids=lambda command: command.replace(" ", "_"))
def test_a_wrong_command_says_what_why_and_what_to_do(folder: Path, command: str) -> None:
    words = [word if word != "''" else "" for word in command.split()]
    check(run(*words, env={"NO_COLOR": "1"}), *WRONG[command])


def test_three_hundred_wrong_command_lines_are_tried() -> None:
    assert len(WRONG) == len(REFUSED) + len(MISUSED) >= 300


def test_a_step_that_returns_nothing_is_fine(folder: Path) -> None:
    done = run("predict", "steps.py:fine", "--gpu", "l4")
    assert (done.code, done.err) == (0, "")


def test_a_missing_devices_folder_is_named(folder: Path) -> None:
    done = run("predict", "good.json.gz", "--gpu", "l4", env={"WAVECAST_DEVICES": "/no/where"})
    check(done, 1, ("WAVECAST_DEVICES", "/no/where", "takes folders and .toml files"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_must_not_be_written_is_named(folder: Path) -> None:
    (folder / "a_directory").chmod(0o500)
    done = run("trace", "good.json.gz", "-o", "a_directory/out.json.gz")
    check(done, 1, ("a_directory/out.json.gz", "Permission denied"))


def test_a_full_disk_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    done = run("trace", "good.json.gz", "-o", "out.json.gz")
    check(done, 1, ("out.json.gz", "No space left on device", "choose another place"))


def test_an_output_that_is_a_directory_is_named(folder: Path) -> None:
    (folder / "dir.json.gz").mkdir()
    check(run("trace", "good.json.gz", "-o", "dir.json.gz"), 1, ("is a directory", "name a file"))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["resnet50", "steps.py:fine", "timm:resnet18"])
def test_without_torch_the_extra_is_named(folder: Path, target: str) -> None:
    done = run_process("predict", target, "--gpu", "l4", python="sys.modules['torch'] = None")
    check(done, 1, ("needs torch", "pip install 'wavecast[torch]'"))


def test_without_torch_a_saved_trace_is_predicted_all_the_same(folder: Path) -> None:
    blocked = "sys.modules['torch'] = None"
    done = run_process("predict", "good.json.gz", "--gpu", "l4", python=blocked)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^l4 +\d", done.out, re.MULTILINE)


def test_without_timm_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    done = run("predict", "timm:resnet18", "--gpu", "l4")
    check(done, 1, ("timm:resnet18 needs timm", "pip install 'wavecast[models]'"))


LIBRARY: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("no step", lambda: wavecast.trace(None), InvalidInput, "make_step"),  # type: ignore[call-overload]
    ("a step of None", lambda: wavecast.trace(lambda: None), CaptureError, "NoneType"),  # type: ignore[arg-type,return-value]
    ("unknown GPU", lambda: wavecast.predict(step(), "zx81"), UnknownName, "wavecast devices"),
    ("traced for an unknown GPU", lambda: wavecast.trace(dict, gpu="zx81"), UnknownName, "zx81"),  # type: ignore[arg-type]
    ("no GPU", lambda: wavecast.predict(step(), []), InvalidInput, "one GPU"),  # type: ignore[arg-type]
    ("no trace", lambda: wavecast.predict(None, "l4"), InvalidInput, "takes a Trace"),  # type: ignore[arg-type]
    ("empty trace", lambda: wavecast.predict(trace(), "l4"), InvalidInput, "no ops"),
    ("no such file", lambda: wavecast.load_trace("gone.json.gz"), InvalidInput, "gone.json.gz"),
    ("a folder", lambda: wavecast.load_trace("/"), InvalidInput, "cannot read the trace /"),
]


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [pytest.param(*row[1:], id=row[0].replace(" ", "-")) for row in LIBRARY],
)
def test_the_library_refuses_with_its_own_errors(
    asked: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        asked()


def test_a_predictor_that_fails_is_not_hidden() -> None:
    class Broken(Predictor):
        def predict(self, op: object, device: object) -> None:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        wavecast.predict(trace(call(mm())), "l4", predictor=Broken())
