"""`wavecast run`: tables, JSON, files, and errors that are the script's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import run

import wavecast
from wavecast.targets.scripts import Script
from wavecast.traces.script import LoaderTime, Loading

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


LOADED = """
import argparse, torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--workers", type=int, default=0)

def main():
    args = parser.parse_args()
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(80, 8))
    for epoch in range(args.epochs):
        for (batch,) in DataLoader(data, 4, num_workers=args.workers):
            model(batch.cuda()).sum().backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""


def test_the_length_of_the_training_is_found_and_used() -> None:
    Path("train.py").write_text(LOADED)
    done = run("run", "--gpu", "l4", "train.py", "--epochs", "3")
    assert "3 epochs, 20 batches in an epoch, 60 steps in all (args.epochs at train.py:17)" in (
        done.out
    )
    assert "a whole training: 60 optimizer steps" in done.out
    given = run("run", "--gpu", "l4", "--iterations", "7", "train.py")
    assert "a whole training: 7 optimizer steps" in given.out


UNEVEN = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.zeros(8, device="cuda")
for i in range(400):
    for _ in range(30 if EXTRA else 0):
        other.add_(1)
    model(torch.randn(4, 64).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("command", ["run", "predict"])
def test_a_whole_training_counts_what_only_some_steps_do(command: str) -> None:
    seconds, parts = dict[str, float](), dict[str, float]()
    for extra in ("False", "True", "i % 5 == 0"):
        Path("uneven.py").write_text(UNEVEN.replace("EXTRA", extra))
        done = run(command, "--gpu", "l4", "--iterations", "1000", "--json", "uneven.py")
        [row] = json.loads(done.out)["predictions"]
        seconds[extra] = row["training"]["seconds"]["value"]
        parts[extra] = row["training"]["uneven_s"]["value"]
    usual, always, fifth = seconds.values()
    assert always > 1.5 * usual
    assert fifth == pytest.approx(usual + (always - usual) / 5, rel=0.01)
    assert parts["i % 5 == 0"] == pytest.approx(fifth - usual, rel=0.01)
    assert parts["False"] == 0


def test_what_a_whole_training_does_not_count_is_said_beside_it() -> None:
    Path("uneven.py").write_text(UNEVEN.replace("EXTRA", "i == 6"))
    page = Path("page.html")
    done = run("run", "--gpu", "l4", "--iterations", "9", "--html", page, "uneven.py")
    [said] = [line for line in done.out.splitlines() if line.startswith("not in the time: ")]
    assert "30 more ops" in said
    assert "not in the time: 30 more ops" in page.read_text().lower()
    Path("uneven.py").write_text(UNEVEN.replace("EXTRA", "i % 5 == 0"))
    known = run("run", "--gpu", "l4", "--iterations", "9", "uneven.py").out
    assert "the time is that of 5 steps in turn" in known
    assert "not in the time" not in known
    spread = run("run", "--gpu", "l4", "--iterations", "9", "--parallel", "data=2", "uneven.py").out
    assert "not in the time: 30 more ops" in spread


def test_a_script_that_names_no_length_has_none() -> None:
    done = run("run", "--gpu", "l4", "train.py")
    assert "length:" not in done.out
    assert "a whole training" not in done.out


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_is_timed_with_its_workers(workers: int) -> None:
    Path("train.py").write_text(LOADED)
    done = run("run", "--gpu", "l4", "--loader", "--json", "train.py", "--workers", str(workers))
    timed = json.loads(done.out)["script"]["loading"]["timed"]
    assert timed["workers"] == workers
    assert timed["batches"] > 0
    assert timed["seconds"] > 0


def test_cores_scale_the_time_of_the_loader() -> None:
    timed = LoaderTime(seconds=0.5, cpu_s=1.0, batches=8, workers=4, cores=2)
    assert [timed.on_cores(cores) for cores in (1, 2, 4, 16)] == [1.0, 0.5, 0.25, 0.25]
    loading = Loading(2.0, 1, 4, timed)
    assert loading.step_s == 0.5
    assert loading.on_cores(1).step_s == 1.0
    assert loading.iteration_s(0.1, 0.1, waits=True) == 0.5
    assert loading.iteration_s(0.7, 0.1, waits=True) == 0.7


def test_a_loader_without_workers_loads_between_the_ops_of_the_host() -> None:
    loading = Loading(1.0, 1, 0, LoaderTime(seconds=0.5, cpu_s=0.5, batches=8, workers=0, cores=2))
    assert loading.iteration_s(0.75, 0.1, waits=False) == 0.75
    assert loading.iteration_s(0.75, 0.5, waits=False) == 1.0
    assert loading.iteration_s(0.75, 0.5, waits=True) == 1.25
    Path("train.py").write_text(LOADED)
    done = run("run", "--gpu", "l4", "--loader", "train.py")
    assert "so an iteration takes" in " ".join(done.out.split())


@pytest.mark.parametrize("option", ["--memory", "--ranks=8", "--host", "--epochs", "-g"])
def test_an_option_of_ours_after_a_script_that_has_none_of_that_name_is_refused(
    option: str,
) -> None:
    done = run("run", "train.py", option, "8")
    assert done.code == 1
    assert not done.out
    name = option.partition("=")[0]
    assert f"{name} stands after train.py" in done.err
    assert f"wavecast run {name} ... train.py" in done.err
    assert f"train.py -- {name}" in done.err


@pytest.mark.parametrize(
    "code",
    [
        "parser.add_argument('--host-factor')",
        "host_factor: float = 1.0",
        "host_factor = 1.0",
        "def main(host_factor): pass",
        "from own.options import parse",
        "exec(open('own/options.py').read())",
    ],
)
def test_options_that_a_script_may_have_are_its_own(code: str) -> None:
    Path("own").mkdir()
    Path("own/options.py").write_text("HOST_FACTOR = '--host-factor'")
    assert Script("train.py").may_have("--gpu")
    assert not Script("train.py").may_have("--host-factor")
    Path("other.py").write_text(code)
    assert Script("other.py").may_have("--host-factor")
    assert Script("other", is_module=True).may_have("--host-factor")


def test_an_option_of_the_scripts_own_is_noted_if_nothing_was_asked() -> None:
    note = "note: --gpu stands after train.py, so it is the script's; options of wavecast come"
    assert note in run("run", "train.py", "--gpu", "0").err
    assert "stands after" not in run("run", "--gpu", "l4", "train.py", "--gpu", "0").err
    assert "stands after" not in run("run", "train.py", "--", "--gpu", "0").err
