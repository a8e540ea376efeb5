"""Scripts as targets: how they are written, and which of their options sets the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavecast.errors import InvalidInput
from wavecast.targets.scripts import Script, ScriptOptions, script_of
from wavecast.targets.targets import resolve

PARSER = """
parser.add_argument("--batch-size", "-b", type=int)
parser.add_argument("--test-batch-size", type=int)
parser.add_argument("--lr")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PARSER)
    Path("plain.py").write_text("print()")
    Path("my train.py").write_text("")


def test_a_text_names_a_script_with_its_arguments() -> None:
    assert script_of("train.py") == Script("train.py")
    assert script_of("train.py --lr '0.1 0.2'") == Script("train.py", ("--lr", "0.1 0.2"))
    assert script_of("my train.py") == Script("my train.py")
    assert script_of("-m a.b --x") == Script("a.b", ("--x",), is_module=True)
    for other in ("train.py:make_step", "resnet50", "a.b:make_step", "jax:train.py:make_step"):
        assert script_of(other) is None


@pytest.mark.parametrize("text", ["none.py", "none.py --lr 1", "train.py 'open"])
def test_a_script_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        script_of(text)


@pytest.mark.parametrize(
    ("script", "batch", "changed"),
    [
        (Script("train.py"), None, ("--batch-size", "8")),
        (Script("train.py", ("-b", "4", "--lr", "1")), 4, ("-b", "8", "--lr", "1")),
        (Script("train.py", ("--batch-size=4",)), 4, ("--batch-size=8",)),
        (Script("plain.py", ("data.batch_size=16",)), 16, ("data.batch_size=8",)),
        (
            Script("plain.py", ("--per_device_train_batch_size", "2")),
            2,
            ("--per_device_train_batch_size", "8"),
        ),
        (Script("plain.py", options=ScriptOptions(batch_option="--n")), None, ("--n", "8")),
        (Script("plain.py", ("--n=3",), options=ScriptOptions(batch_option="--n=")), 3, ("--n=8",)),
    ],
)
def test_the_batch_is_set_by_the_scripts_own_option(
    script: Script, batch: int | None, changed: tuple[str, ...]
) -> None:
    assert script.batch == batch
    assert script.with_batch(8).arguments == changed


@pytest.mark.parametrize(
    "script",
    [
        Script("plain.py"),
        Script("plain.py", ("batch",)),
        Script("plain.py", ("--eval-batch-size", "4")),
        Script("plain.py", ("--batch-size", "4", "--micro-batch-size", "2")),
    ],
)
def test_a_script_without_one_is_refused_with_what_to_do(script: Script) -> None:
    assert script.batch is None
    with pytest.raises(InvalidInput, match="--batch-option"):
        script.with_batch(8)


def test_a_target_is_a_script_at_a_batch_and_in_a_precision() -> None:
    target = resolve("train.py --lr 1", batch=8, precision="bf16")
    assert target.script is not None
    assert target.script.arguments == ("--lr", "1", "--batch-size", "8")
    assert (target.batch, target.precision) == (8, "bf16")
    larger = target.changed(batch=16)
    assert larger.script is not None
    assert larger.script.arguments == ("--lr", "1", "--batch-size", "16")
    with pytest.raises(InvalidInput, match="float32"):
        resolve("train.py", precision="fp32")
    with pytest.raises(InvalidInput, match="--steps is for training scripts"):
        resolve("resnet50", running=ScriptOptions(steps=3))
