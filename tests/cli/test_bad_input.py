"""Wrong steps, traces and GPUs, each with its message: what was asked, why not, what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from made import call, mm, step, trace
from shell import run, run_process
from wrong_uses import Wrong, check, check_wrong

import wavecast
from wavecast.errors import CaptureError, InvalidInput, UnknownName
from wavecast.predictors.base import Predictor

L4 = "--gpu l4"
WRONG = [
    # GPUs
    Wrong("unknown GPU", "predict good.json.gz --gpu zx81", ('"zx81"', "wavecast devices")),
    Wrong("misspelt GPU", "predict good.json.gz --gpu h1O0-sxm", ("did you mean", "h100-sxm-80gb")),
    Wrong("ambiguous GPU", "predict good.json.gz --gpu a100", ("fits several", "a100-pcie-40gb")),
    Wrong("empty GPU", "predict good.json.gz --gpu ''", ('unknown device ""', "list them")),
    Wrong("no GPU", "predict good.json.gz", ("Missing option", "--gpu"), code=2),
    Wrong("GPU without a name", "predict good.json.gz --gpu", ("requires an argument",), code=2),
    Wrong("device file missing", "devices none.toml", ("no device file", "none.toml")),
    Wrong("device file no TOML", "devices not_toml.toml", ("not_toml.toml", "is not TOML")),
    Wrong("device key misspelt", "devices misspelt.toml", ("memory_byte ", 'mean "memory_bytes"')),
    Wrong("device in wrong unit", "devices in_gb.toml", ("nominal.memory_bytes", "unit is bytes")),
    # Targets
    Wrong("no target", f"predict {L4}", ("Missing argument", "TARGET"), code=2),
    Wrong("empty target", f"predict '' {L4}", ("target is empty", "FILE.py:FUNCTION")),
    Wrong("unknown model", f"predict resnet5O {L4}", ("'resnet5O'", "did you mean resnet50")),
    Wrong("unlike any model", f"predict xyzzy {L4}", ("'xyzzy'", "known: resnet50", "A target is")),
    Wrong("directory", f"predict a_directory {L4}", ("is a directory", "FILE.py:FUNCTION")),
    Wrong("no such file", f"predict gone.py:make {L4}", ("no file gone.py", "looked in")),
    Wrong("no step", f"predict steps.py {L4}", ("without an optimizer step", "make_step")),
    Wrong(
        "file and colon",
        f"predict steps.py: {L4}",
        ("does not name a function", "FILE.py:FUNCTION"),
    ),
    Wrong("colon alone", f"predict : {L4}", ("does not name a function", "FILE.py:FUNCTION")),
    Wrong("relative module", f"predict .steps:fine {L4}", ("does not name a function",)),
    Wrong("two colons", f"predict steps:fine:fine {L4}", ("no module steps:fine", "a target is")),
    Wrong("no such module", f"predict gone.away:make {L4}", ("no module gone.away", "'gone'")),
    Wrong("no such submodule", f"predict json.gone:make {L4}", ("no module json.gone",)),
    Wrong("no such function", f"predict steps.py:fein {L4}", ("no function 'fein'", "it has")),
    Wrong(
        "no function", f"predict empty.py:make {L4}", ("no function 'make'", "no function at all")
    ),
    Wrong(
        "not callable",
        f"predict steps.py:NUMBER {L4}",
        ("not a function but of type int", "name one"),
    ),
    Wrong("import fails", f"predict broken.py:make {L4}", ("fails on import", "no licence", ":2")),
    Wrong("syntax error", f"predict syntax.py:make {L4}", ("fails on import", "syntax.py:1")),
    Wrong(
        "import missing", f"predict needy.py:make {L4}", ("a_library_that_nobody_has", "install")
    ),
    Wrong("import exits", f"predict script.py:make {L4}", ("sys.exit(2)", "__name__")),
    Wrong("no profile", f"predict notes.json {L4}", ("notes.json", "no traceEvents")),
    # Arguments
    Wrong("needs arguments", f"predict steps.py:needs {L4}", ("needs a value for learning_rate",)),
    Wrong("needs batch", f"predict steps.py:needs_batch {L4}", ("for batch", "use --batch")),
    Wrong(
        "takes no batch",
        f"predict steps.py:no_batch -b 4 {L4}",
        ("has no parameter 'batch'", "leave"),
    ),
    Wrong(
        "takes no precision",
        f"predict steps.py:fine -p bf16 {L4}",
        ("has no parameter 'precision'",),
    ),
    Wrong("zero batch", f"predict resnet50 --batch 0 {L4}", ("at least 1, not 0",)),
    Wrong("negative batch", f"predict resnet50 --batch -3 {L4}", ("at least 1, not -3",)),
    Wrong("batch no number", f"predict resnet50 --batch abc {L4}", ("--batch", "integer"), code=2),
    Wrong("unknown precision", f"predict resnet50 -p int4 {L4}", ("'int4'", "known: fp32, tf32")),
    Wrong("unknown predictor", f"predict good.json.gz {L4} --predictor magic", ("magic",), code=2),
    Wrong("unknown breakdown", f"predict good.json.gz {L4} --by layer", ("layer",), code=2),
    Wrong("negative host", f"predict good.json.gz {L4} --host-factor -1", ("-1: it is above 0",)),
    Wrong(
        "host no number", f"predict good.json.gz {L4} --host-factor nan", ("nan: it is above 0",)
    ),
    Wrong("infinite host", f"predict good.json.gz {L4} --host-factor inf", ("inf: it is above 0",)),
    # Steps
    Wrong("step raises", f"predict steps.py:raises {L4}", ("RuntimeError", "steps.py:", "is gone")),
    Wrong("build raises", f"predict steps.py:fails_to_build {L4}", ("ValueError", "no such data")),
    Wrong("wrong shapes", f"predict steps.py:wrong_shape {L4}", ("RuntimeError", "steps.py:")),
    Wrong("makes None", f"predict steps.py:returns_none {L4}", ("NoneType", "return the function")),
    Wrong(
        "makes a number",
        f"predict steps.py:returns_int {L4}",
        ("of type int", "return the function"),
    ),
    Wrong("runs on the CPU", f"predict steps.py:on_cpu {L4}", ("no op on the GPU", ".cuda()")),
    Wrong("does nothing", f"predict steps.py:does_nothing {L4}", ("no op on the GPU", ".cuda()")),
    Wrong(
        "async function", f"predict steps.py:waits {L4}", ("an async function", "plain function")
    ),
    Wrong("generator", f"predict steps.py:yields {L4}", ("a generator", "plain function")),
    Wrong(
        "async step", f"predict steps.py:async_step {L4}", ("an async function", "the step that")
    ),
    Wrong("CUDA graph", f"predict steps.py:graph {L4}", ("graph", "steps.py:")),
    Wrong("op without fake", f"predict custom.py:make_step {L4}", ("badinput", "custom.py:")),
    Wrong("step exits", f"predict steps.py:exits {L4}", ("sys.exit(3)", "return")),
    Wrong("a builtin", f"predict steps.py:builtin {L4}", ("which arguments it takes", "def")),
    # Traces
    Wrong("no such trace", f"predict gone.json.gz {L4}", ("no trace file gone.json.gz",)),
    Wrong("cut trace", f"predict cut.json.gz {L4}", ("cut.json.gz", "truncated or damaged")),
    Wrong("noise", f"predict noise.json.gz {L4}", ("noise.json.gz", "gzip")),
    Wrong("trace of the future", f"predict future.json.gz {L4}", ("version 99", "trace the step")),
    Wrong("altered trace", f"predict altered.json.gz {L4}", ("checksum", "altered")),
    Wrong("not a trace", f"predict other.json.gz {L4}", ("not a wavecast trace",)),
    Wrong("empty trace", f"predict nothing.json.gz {L4}", ("has no ops", "trace the step again")),
    Wrong("trace and batch", f"predict good.json.gz --batch 4 {L4}", ("fixed", "trace the step")),
    Wrong("trace for a GPU", "trace good.json.gz --gpu l4", ("kernels are fixed", "step itself")),
    # Output
    Wrong("wrong suffix", "trace good.json.gz -o out.json", ("FILE.json.gz, not out.json",)),
    Wrong(
        "no such folder", "trace good.json.gz -o gone/out.json.gz", ("no directory gone", "make")
    ),
    Wrong("unknown option", f"predict good.json.gz {L4} --fast", ("--fast",), code=2),
    Wrong("unknown command", "forecast", ("forecast",), code=2),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines that nobody waits for
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.about.replace(" ", "-"))
def test_a_wrong_command_says_what_why_and_what_to_do(folder: Path, wrong: Wrong) -> None:
    check_wrong(wrong)


def test_each_wrong_use_is_there_once() -> None:
    assert len({wrong.about for wrong in WRONG}) == len({wrong.command for wrong in WRONG})
    assert len({wrong.about for wrong in WRONG}) == len(WRONG)


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
