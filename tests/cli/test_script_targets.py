"""Every command that takes a step takes a script, with its arguments after a --."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import run

SCRIPT = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--ignored", type=int)

def main():
    args = parser.parse_args()
    data = TensorDataset(torch.randn(40, args.width))
    model = torch.nn.Linear(args.width, args.width).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for (batch,) in DataLoader(data, args.batch_size):
            optimizer.zero_grad()
            model(batch.cuda()).relu().sum().backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""
L4 = ("--gpu", "l4")


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def test_predict_shows_the_step_that_was_found_and_its_lines() -> None:
    done = run("predict", "train.py", *L4, "--by", "line", "--", "--batch-size", "8")
    assert done.code == 0
    assert "train.py: step 3 of the loop at train.py:20; steps 2 and 3 are equal" in done.err
    assert "one step: 1 backward pass, 8 samples, mostly float32, not compiled" in done.err
    assert "train.py:19" in done.out


def test_run_is_predict_with_the_arguments_last() -> None:
    ways = [
        run("predict", "train.py", *L4, "--json", "--", "--width", "32"),
        run("predict", "train.py --width 32", *L4, "--json"),
        run("run", *L4, "--json", "train.py", "--width", "32"),
        run("run", *L4, "--json", "train.py", "--", "--width", "32"),
    ]
    found = [json.loads(way.out)["predictions"][0] for way in ways]
    assert len({one["seconds"] for one in found}) == 1
    assert len({one["needed_bytes"] for one in found}) == 1


def test_run_explains_by_line_and_changes_precision() -> None:
    done = run("run", *L4, "--explain", "--precision", "bf16", "train.py")
    assert done.code == 0
    assert "l4, by line" in done.out
    assert "bfloat16" in done.out


def test_memory_and_fits_take_the_batch_of_the_script() -> None:
    small = run("memory", "train.py", *L4, "--json", "--batch", "8")
    large = run("memory", "train.py", *L4, "--json", "--batch", "4096")
    needed = [json.loads(done.out)[0]["peak_bytes"] for done in (small, large)]
    assert needed[0] < needed[1]  # although there are 40 samples of data
    assert run("fits", "train.py", *L4).code == 0


@pytest.mark.slow
def test_max_batch_changes_the_batch_by_the_scripts_option() -> None:
    limit = ("--limit-gib", "0.4")
    done = run("max-batch", "train.py", *L4, *limit, "--json", "--", "--width", "4096")
    answer = json.loads(done.out)[0]
    assert answer["batch"] > 8
    assert done.err.count("one step:") == 1


def test_an_option_that_does_not_change_the_batch_is_refused() -> None:
    done = run("max-batch", "train.py", *L4, "--batch-option", "--ignored")
    assert done.code == 1
    assert "--batch-option" in done.err.splitlines()[-1]


def test_choose_trace_and_compare_take_scripts() -> None:
    chosen = run("choose", "train.py", *L4, "--gpu", "t4", "--json", "--", "--batch-size", "8")
    assert chosen.code == 0
    assert json.loads(chosen.out)["target"] == "train.py --batch-size 8"
    told = run("choose", "train.py", *L4, "--", "--batch-size", "8").out
    assert "run: python train.py --batch-size 8" in told
    assert "wavecast predict 'train.py --batch-size 8'" in told
    assert run("trace", "train.py", "-o", "step.json.gz").code == 0
    compared = run("compare", "train.py", "step.json.gz", *L4)
    assert compared.code == 0
    wider = run("compare", "train.py", "train.py --width 128", *L4, "--json")
    assert wider.code == 0


def test_advise_and_check_take_scripts() -> None:
    Path("train.py").write_text(SCRIPT.replace("main():\n", "main():\n    print('hello')\n", 1))
    advised = run("advise", "train.py", *L4, "--change", "bf16", "--cores", "2", "--json")
    assert advised.code == 0
    assert advised.err.count("hello") == 1  # not again for each change
    assert json.loads(advised.out)["loader"]["cores"] == 2
    Path("wavecast.toml").write_text(
        'gpus = ["l4"]\n[targets.mine]\ntarget = "train.py --width 32"\n'
    )
    assert run("check", "--update").code == 0
    assert run("check").code == 0
    Path("wavecast.toml").write_text(
        'gpus = ["l4"]\n[targets.mine]\ntarget = "train.py --width 4096"\n'
    )
    assert run("check").code == 1


def test_what_a_script_cannot_follow_is_refused() -> None:
    assert "the script's own follow a --" in run("memory", "train.py", "--width", "32").err
    assert "is a script" in run("measure", "train.py").err
    assert "there is no script none.py" in run("predict", "none.py", *L4).err
    assert "only for Hugging Face" in run("predict", "train.py", *L4, "--qlora").err


def test_a_failing_script_shows_its_traceback_and_keeps_its_exit_code() -> None:
    Path("train.py").write_text("raise SystemExit(7)")
    assert run("memory", "train.py").code == 7
    Path("train.py").write_text("1 / 0")
    done = run("memory", "train.py")
    assert done.code == 1
    assert "ZeroDivisionError" in done.err
