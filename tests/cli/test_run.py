"""`wavecast run`: tables, JSON, files, and errors that are the script's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import run

import wavecast

SCRIPT = """
import argparse
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=4)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--exit", type=int)
parser.add_argument("--attend", action="store_true")
parser.add_argument("--gpu")

def main():
    args = parser.parse_args()
    print("this goes elsewhere")
    if args.exit is not None:
        raise SystemExit(args.exit)
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        out = model(torch.randn(2, 4, args.rows, 64).cuda())
        if args.attend:
            out = attend(out, out, out)
        if args.fail:
            out = out.reshape(7, 7)
        out.sum().backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def test_a_table_follows_the_step_that_was_found() -> None:
    done = run("run", "--gpu", "l4", "--gpu", "t4", "train.py", "--rows", "8")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "train.py: step 3 of the loop at train.py:28; steps 2 and 3 are equal"
    assert any(line.startswith("outside of the step") for line in lines)
    assert [line.split()[0] for line in lines if line.startswith(("l4", "t4"))] == ["l4", "t4"]
    assert "this goes elsewhere" not in done.out
    assert "this goes elsewhere" in done.err


def test_options_after_the_script_are_the_scripts_own() -> None:
    done = run("run", "--json", "train.py", "--gpu", "mine", "--rows", "16")
    assert done.code == 0
    record = json.loads(done.out)
    assert record["script"]["equal"] == [2, 3]
    assert "predictions" not in record
    assert run("run", "--gpu", "l4", "train.py", "--nothing").code == 2


def test_memory_and_its_page() -> None:
    done = run("run", "--memory", "--html", "memory.html", "--gpu", "l4", "train.py")
    assert done.code == 0
    assert "weights" in done.out
    assert "<html" in Path("memory.html").read_text()
    [memory] = json.loads(run("run", "--memory", "--json", "train.py").out)["memory"]
    assert memory["gpu"] is None
    assert memory["peak_bytes"] > 0


def test_the_trace_is_saved() -> None:
    assert run("run", "-o", "step.json.gz", "--batch", "8", "train.py").code == 0
    trace = wavecast.load_trace("step.json.gz")
    assert trace.samples == 8
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["step.json.gz", "train.py"]


def test_each_family_of_gpus_gets_its_own_kernels() -> None:
    gpus = ("h100-sxm-80gb", "l4", "v100-sxm-16gb")
    options = [part for gpu in gpus for part in ("--gpu", gpu)]
    done = run("run", *options, "--json", "train.py", "--attend")
    assert done.err.count("this goes elsewhere") == 1  # the kernels are chosen again, exactly
    together = {row["gpu"]: row for row in json.loads(done.out)["predictions"]}
    for gpu in gpus:
        alone = run("run", "--gpu", gpu, "--json", "train.py", "--attend")
        assert json.loads(alone.out)["predictions"] == [together[gpu]]


def test_a_failing_script_shows_its_own_traceback() -> None:
    done = run("run", "--gpu", "l4", "train.py", "--fail")
    assert (done.code, done.out) == (1, "")
    assert 'File "train.py", line 26, in main' in done.err
    assert "out = out.reshape(7, 7)" in done.err
    assert "wavecast/" not in done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("error: the script raised RuntimeError at train.py:26: ")


def test_a_script_ends_with_its_own_code() -> None:
    done = run("run", "--gpu", "l4", "train.py", "--exit", "7")
    assert done.code == 7
    assert "sys.exit(7)" in done.err
    wrong = run("run", "--gpu", "l4", "train.py", "--rows", "many")
    assert wrong.code == 2
    assert "argument --rows: invalid int value" in wrong.err
    assert run("run", "--gpu", "l4", "train.py", "--help").code != 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--html", "x.html", "train.py"), "add --gpu or --memory"),
        (("--chrome-trace", "x.json", "train.py"), "needs --gpu"),
        (("--by", "op", "train.py"), "needs --gpu"),
        (("--batch", "0", "train.py"), "at least 1"),
        (("--out", "step.txt", "train.py"), "FILE.json.gz"),
        (("--steps", "0", "train.py"), "at least 1"),
        (("--until", "train.py", "train.py"), "FILE:LINE"),
        (("--gpu", "l4", "missing.py"), "no script missing.py"),
        (("--gpu", "l44", "train.py"), "did you mean"),
    ],
)
def test_wrong_uses_are_told(arguments: tuple[str, ...], message: str) -> None:
    done = run("run", *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err


def test_the_breakdown_is_that_of_the_step() -> None:
    done = run("run", "--gpu", "l4", "--by", "module", "train.py")
    assert "l4, by module" in done.out
