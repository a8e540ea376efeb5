"""Scripts of users: which step is found, when they are stopped, and what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wavecast
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.compiled import plans
from wavecast.frameworks.pytorch.recording import user_lines

MakeScript = Callable[..., Path]
RunHere = Callable[..., wavecast.ScriptRun]


def names(run: wavecast.ScriptRun) -> list[str]:
    return [call.op.base for call in run.trace]


def test_the_loop_is_stopped_when_its_step_repeats(script: MakeScript) -> None:
    run = wavecast.run_script(script("while True:\n    update()\n"))
    assert (run.step, run.steps, run.equal) == (3, 40, (2, 3))
    assert run.line == "train.py:10"
    assert run.summary == "step 3 of the loop at train.py:10; steps 2 and 3 are equal"
    assert names(run).count("aten.addmm") == 1
    assert {"aten.zeros_like", "aten.empty_like"}.isdisjoint(names(run))


def test_the_step_is_that_of_a_hand_written_one(script: MakeScript) -> None:
    run = wavecast.run_script(script("while True:\n    update(64)\n"))

    def make_step() -> Callable[[], None]:
        model = torch.nn.Linear(32, 8).cuda()
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            model(torch.randn(64, 32).cuda()).sum().backward()
            optimizer.step()

        return step

    trace = wavecast.trace(make_step)
    assert sorted(names(run)) == sorted(call.op.base for call in trace)
    kinds = wavecast.memory(run.trace).by_kind
    for kind in ("weights", "gradients", "optimizer state"):
        assert kinds[kind] == wavecast.memory(trace).by_kind[kind]


def test_a_script_finds_its_arguments_and_neighbours(script: MakeScript) -> None:
    Path("mine").mkdir()
    script("WIDTH = 16\n", head="", name="mine/neighbour.py")
    body = """
import sys, __main__
from neighbour import WIDTH
from pathlib import Path
assert __name__ == "__main__" and __main__.WIDTH == 16, __name__
assert sys.argv == ["mine/train.py", "--lr", "0.1"], sys.argv
assert sys.path[0] == str(Path("mine").resolve())
while True:
    update()
"""
    modules = set(sys.modules)
    run = wavecast.run_script(script(body, name="mine/train.py"), ["--lr", "0.1"])
    assert run.step == 3
    assert "neighbour" not in set(sys.modules) - modules


def test_a_module_runs_as_with_m(script: MakeScript, tmp_path: Path) -> None:
    Path("package").mkdir()
    script("", head="", name="package/__init__.py")
    script("from . import __name__ as package\nassert package == 'package'\nupdate()\nupdate()\n",
           name="package/train.py")  # fmt: skip
    run = wavecast.run_script("package.train", module=True)
    assert (run.script, run.step) == ("-m package.train", 2)


def test_accumulated_gradients_are_one_step(script: MakeScript) -> None:
    body = """
for i in range(100):
    model(torch.randn(4, 32).cuda()).sum().backward()
    if (i + 1) % 5 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    run = wavecast.run_script(script(body))
    assert names(run).count("aten.addmm") == 5


def test_several_optimizers_make_one_step(script: MakeScript) -> None:
    body = """
second = nn.Linear(32, 1).cuda()
other = torch.optim.SGD(second.parameters(), lr=0.1)
while True:
    for _ in range(3):
        update()
    second(torch.randn(4, 32).cuda()).sum().backward()
    other.step()
"""
    run = wavecast.run_script(script(body))
    assert names(run).count("aten.addmm") == 4
    assert run.equal == (2, 3)


def test_an_optimizer_for_each_parameter_makes_one_step(script: MakeScript) -> None:
    body = """
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(50))).cuda()
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
def step(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
del optimizer
while True:
    model(torch.randn(4, 16).cuda()).sum().backward()
"""
    run = wavecast.run_script(script(body))
    assert names(run).count("aten.addmm") == 50
    assert run.equal == (2, 3)


def test_a_thread_may_load_batches_ahead(script: MakeScript) -> None:
    body = """
import queue, threading
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(960, 32)), batch_size=8)
ahead = queue.Queue(maxsize=2)
def load():
    for (x,) in loader:
        ahead.put(x)
threading.Thread(target=load, daemon=True).start()
while True:
    optimizer.zero_grad()
    model(ahead.get(timeout=60).cuda()).sum().backward()
    optimizer.step()
"""
    assert wavecast.run_script(script(body)).equal == (2, 3)


def test_a_script_may_set_what_can_be_set_once_in_every_run(script: MakeScript) -> None:
    body = """
import multiprocessing
multiprocessing.set_start_method("spawn")
torch.set_num_interop_threads(1)
while True:
    update()
"""
    script(body)
    assert [wavecast.run_script("train.py").step for _ in range(2)] == [3, 3]


def test_torchscript_runs_as_plain_python(script: MakeScript) -> None:
    body = """
@torch.jit.script
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(2.0, device=x.device)
while True:
    scaled(model(torch.randn(4, 32).cuda())).sum().backward()
    optimizer.step()
"""
    assert wavecast.run_script(script(body)).equal == (2, 3)


def test_steps_that_all_differ_give_the_median(script: MakeScript) -> None:
    run = wavecast.run_script(script("for rows in range(1, 100):\n    update(1000 * rows)\n"))
    assert run.steps == 8
    assert run.step == 5
    assert run.equal == (5,)
    assert "all of steps 2 to 8 differ" in run.summary
    assert "median" in run.summary


def test_the_number_of_steps_may_be_given(script: MakeScript) -> None:
    run = wavecast.run_script(script("while True:\n    update()\n"), steps=5)
    assert (run.steps, run.equal) == (5, (2, 3, 4, 5))
    with pytest.raises(InvalidInput, match="at least 1"):
        wavecast.run_script("train.py", steps=0)


def test_a_step_may_end_at_a_line(script: MakeScript) -> None:
    body = """
while True:
    for _ in range(4):
        update()
    print("an epoch")
"""
    script(body)
    line = 1 + Path("train.py").read_text().split("\n").index('    print("an epoch")')
    run = wavecast.run_script("train.py", until=f"train.py:{line}")
    assert names(run).count("aten.addmm") == 4
    assert run.line == f"train.py:{line}"
    for wrong in ("train.py", "train.py:x", "train.py:0", "other.py:3"):
        with pytest.raises(InvalidInput, match="line"):
            wavecast.run_script("train.py", until=wrong)


def test_a_script_that_ends_early_gives_what_there_is(script: MakeScript) -> None:
    two = wavecast.run_script(script("update()\nupdate()\n"))
    assert (two.step, two.steps) == (2, 2)
    assert "only one that ran after the first" in two.choice
    single = wavecast.run_script(script("update()\n"))
    assert (single.step, single.steps) == (1, 1)
    assert "creates the optimizer's state" in single.choice
    assert "aten.addmm" in names(single)


def test_a_script_without_a_step_is_told_what_to_do(script: MakeScript) -> None:
    with pytest.raises(CaptureError, match=r"without an optimizer step.*--until.*make_step"):
        wavecast.run_script(script("print('done')\n"))
    cpu = "model.cpu()\nfor _ in range(4):\n    model(torch.randn(4, 32)).sum().backward()\n"
    script(cpu + "    optimizer.step()\n")
    with pytest.raises(CaptureError, match="no op on the GPU"):
        wavecast.run_script("train.py")


def test_errors_are_the_scripts_own(script: MakeScript) -> None:
    script("update(rows='four')\n")
    with pytest.raises(CaptureError, match=r"the script raised TypeError at train\.py:") as failed:
        wavecast.run_script("train.py")
    assert "TypeError" in str(failed.value.__cause__)
    assert 'File "train.py", line 9, in update' in str(failed.value.__cause__)
    with pytest.raises(CaptureError, match=r"sys\.exit\(3\)") as ended:
        wavecast.run_script(script("sys.exit(3)\n"))
    assert ended.value.script_code == 3
    with pytest.raises(InvalidInput, match=r"no script nowhere\.py"):
        wavecast.run_script("nowhere.py")
    with pytest.raises(InvalidInput, match="a folder"):
        wavecast.run_script(os.curdir)
    with pytest.raises(InvalidInput, match="list of texts"):
        wavecast.run_script("train.py", "--lr 1")


def test_a_script_that_exits_well_is_no_error(script: MakeScript) -> None:
    run = wavecast.run_script(script("update()\nupdate()\nsys.exit(0)\n"))
    assert run.step == 2


def test_finally_blocks_run_and_nothing_can_hold_the_end_up(script: MakeScript) -> None:
    body = """
import atexit
from pathlib import Path
atexit.register(lambda: Path("ended").write_text("x"))
try:
    while True:
        try:
            update()
        except BaseException:
            pass  # and go on
        if Path("count").exists() and len(Path("count").read_text()) > 20:
            raise ValueError("the script did not end")
        with open("count", "a") as file:
            file.write("x")
finally:
    print("finally")
"""
    run = wavecast.run_script(script(body))
    assert run.equal == (2, 3)
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


def test_everything_is_as_before_afterwards(script: MakeScript, run_here: RunHere) -> None:
    body = """
import builtins, logging, os
os.environ["MINE"] = "1"
os.environ.pop("KEPT")
assert os.environ["WANDB_MODE"] == "disabled"
assert torch.cuda.is_available()
logging.basicConfig(filename="train.log", level=logging.DEBUG)
logging.info("hello")
sys.argv.append("more")
os.makedirs("out/deep")
os.chdir("out")
torch.set_default_dtype(torch.float64)
while True:
    update()
"""
    os.environ["KEPT"] = "yes"
    kept = (sys.argv[:], sys.path[:], open, os.stat, torch.save, torch.nn.Module.__call__)
    environment = dict(os.environ)
    try:
        script(body.replace("update()", "update(4)\n    sys.stdout.flush()"))
        with pytest.raises(CaptureError):  # the weights are float32, the new inputs float64
            run_here("train.py")
    finally:
        del os.environ["KEPT"]
    assert (sys.argv, sys.path, open, os.stat, torch.save, torch.nn.Module.__call__) == kept
    environment.pop("KEPT")
    assert dict(os.environ) == environment
    assert not torch.cuda.is_available()
    assert torch.get_default_dtype() is torch.float32
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


def test_the_samples_are_those_of_the_loader(script: MakeScript) -> None:
    body = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(96, 32)), batch_size=8, num_workers=2)
for i, (x,) in enumerate(loader):
    model(x.cuda()).sum().backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert wavecast.run_script(script(body)).trace.samples == 16
    assert wavecast.run_script("train.py", samples=5).trace.samples == 5
    assert wavecast.run_script(script("while True:\n    update()\n")).trace.samples is None


def test_checkpoints_are_loaded_as_they_were_saved(script: MakeScript) -> None:
    body = """
import io
from pathlib import Path
Path("ckpt").mkdir()
buffer = io.BytesIO()
for i in range(100):
    update()
    torch.save({"model": model.state_dict(), "step": i}, "ckpt/last.pt")
    state = torch.load("ckpt/last.pt", weights_only=False)
    assert state["step"] == i and state["model"]["weight"].shape == (8, 32)
    model.load_state_dict(state["model"])
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.load(buffer).weight.is_cuda
    buffer.seek(0)
"""
    run = wavecast.run_script(script(body))
    assert run.equal == (2, 3)
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


EVALUATION = """
def evaluate(times):
    model.eval()
    with torch.no_grad():
        for _ in range(times):
            out = model(torch.randn(64, 32).cuda())
    assert out.shape == (64, 8) and out.is_cuda
    model.train()
"""


def test_repeated_evaluation_is_counted_but_not_run(script: MakeScript) -> None:
    run = wavecast.run_script(script(EVALUATION + "evaluate(500)\nwhile True:\n    update()\n"))
    [evaluation] = [part for part in run.once if part.name.startswith("evaluation")]
    flops = 2 * 64 * 32 * 8 * 500
    assert evaluation.flops == pytest.approx(flops, rel=0.1)
    assert names(run).count("aten.addmm") == 1


def test_a_step_with_evaluation_is_not_chosen_if_another_is(script: MakeScript) -> None:
    body = "i = 0\nwhile True:\n    update()\n    i += 1\n    if i == 2:\n        evaluate(50)\n"
    run = wavecast.run_script(script(EVALUATION + body))
    assert run.equal == (3, 4)
    assert names(run).count("aten.addmm") == 1


def test_evaluation_in_every_step_is_run_in_full(script: MakeScript) -> None:
    body = "while True:\n    evaluate(10)\n    update()\n"
    run = wavecast.run_script(script(EVALUATION + body))
    assert names(run).count("aten.addmm") == 11
    assert not [note for note in run.trace.notes if "left out" in note]


def test_what_ran_once_is_apart(script: MakeScript) -> None:
    body = (
        "torch.randn(512, 512).cuda() @ torch.randn(512, 512).cuda()\nwhile True:\n    update()\n"
    )
    run = wavecast.run_script(script(body))
    [set_up] = run.once
    assert set_up.flops == pytest.approx(2 * 512**3, rel=0.01)
    assert "aten.mm" not in [call.op.base for call in run.trace if call.phase == "forward"]


def test_the_notes_are_those_of_the_step(script: MakeScript) -> None:
    body = """
model.weight.sum().item()
while True:
    update()
    print(model.bias.sum().item())
"""
    run = wavecast.run_script(script(body))
    [note] = run.trace.notes
    assert "train.py:15" in note
    compiled = "model = torch.compile(model)\nwhile True:\n    update()\n"
    trace = wavecast.run_script(script(compiled)).trace
    assert any(call.op.name.startswith("inductor.") for call in trace)
    old = wavecast.run_script(script(compiled), gpu="p100-pcie-16gb").trace
    assert "torch.compile was ignored" in old.notes[-2]


def test_plans_of_compiled_graphs_are_kept_for_the_script_alone(
    script: MakeScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = script("model = torch.compile(model)\nwhile True:\n    update()\n")
    first = wavecast.run_script(path).trace
    kept = sorted(plans.script_folder(str(path)).glob("*.plan"))
    assert len(kept) == 2
    assert not list(plans.plans_folder().glob("*.plan"))
    written = [(plan.name, plan.stat().st_ino) for plan in kept]
    assert wavecast.run_script(path).trace == first
    assert [(plan.name, plan.stat().st_ino) for plan in kept] == written


def test_what_other_steps_read_is_not_noted(script: MakeScript) -> None:
    body = """
i = 0
while True:
    update()
    i += 1
    if i == 2:
        model.weight.sum().item()
"""
    run = wavecast.run_script(script(body))
    assert run.equal == (3, 4)
    assert run.trace.notes == ()


def test_a_number_that_counts_steps_makes_no_difference(script: MakeScript) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    body = """
import bitsandbytes
optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), min_8bit_size=1)
while True:
    update()
"""
    run = wavecast.run_script(script(body))
    assert bitsandbytes.__name__ in " ".join(names(run))
    assert (run.step, run.equal) == (3, (2, 3))


def test_one_spawned_process_runs_in_this_one(script: MakeScript) -> None:
    body = """
import torch.multiprocessing as mp
from torch.multiprocessing import spawn
def worker(rank, width):
    assert rank == 0
    while True:
        update(width)
if __name__ == "__main__":
    SPAWN(worker, args=(16,), nprocs=COUNT)
"""
    for function in ("mp.spawn", "spawn", "mp.start_processes"):
        alone = body.replace("SPAWN", function).replace("COUNT", "torch.cuda.device_count()")
        run = wavecast.run_script(script(alone))
        assert (run.step, run.line) == (3, "train.py:10")
    two = body.replace("SPAWN", "mp.spawn").replace("COUNT", "2")
    with pytest.raises(CaptureError, match=r"starts 2 processes at train\.py:19.*--ranks 2"):
        wavecast.run_script(script(two))


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0, 1, 2])
def test_a_profiler_does_not_outlive_its_script(wait: int, script: MakeScript) -> None:
    body = f"""
profiler = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
    schedule=torch.profiler.schedule(wait={wait}, warmup=1, active=9),
)
profiler.start()
while True:
    update()
    profiler.step()
"""
    # A process of its own, because a profiler that is left running ends it with a crash.
    code = "import wavecast; print(wavecast.run_script('train.py').step)"
    script(body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "Exception raised" not in done.stderr


def test_a_line_that_is_never_reached_is_named(script: MakeScript) -> None:
    body = "for _ in range(3):\n    update()\nif False:\n    print()\n"
    with pytest.raises(CaptureError, match=r"train\.py ended, and line train\.py:14 was not"):
        wavecast.run_script(script(body), until="train.py:14")


def test_a_script_that_cannot_start_is_told_why(script: MakeScript) -> None:
    script("for i in range(3)\n    update()\n")
    with pytest.raises(CaptureError, match=r"SyntaxError at train\.py:11: expected ':'"):
        wavecast.run_script("train.py")
    with pytest.raises(InvalidInput, match=r"there is no module nowhere"):
        wavecast.run_script("nowhere", module=True)
    with pytest.raises(InvalidInput, match=r"no module os\.nowhere"):
        wavecast.run_script("os.nowhere", module=True)
    script("")
    with pytest.raises(InvalidInput, match=r"train\.py:update names a function.*wavecast predict"):
        wavecast.run_script("train.py:update")


def test_lines_of_an_installed_module_are_named(
    script: MakeScript, run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("while True:\n    update()\n    model.bias.sum().item()\n", name="installed_train.py")
    monkeypatch.setattr(user_lines, "_LIBRARIES", (*user_lines._LIBRARIES, str(tmp_path)))
    for run in (
        run_here("installed_train", is_module=True),
        run_here("installed_train.py"),
    ):
        assert run.line == "installed_train.py:10"
        assert "installed_train.py:13" in run.trace.notes[0]
    script("\nassert False\n", name="installed_train.py")
    with pytest.raises(CaptureError, match=r"AssertionError at installed_train\.py:12"):
        run_here("installed_train", is_module=True)
    assert not user_lines.is_users(str(tmp_path / "installed_train.py"))


def test_values_that_the_step_reads_may_be_given(script: MakeScript) -> None:
    body = """
while True:
    update()
    for _ in range(int(model.bias.sum().item())):
        model(torch.randn(4, 32).cuda())
"""
    script(body)
    line = 1 + Path("train.py").read_text().split("\n").index(
        "    for _ in range(int(model.bias.sum().item())):"
    )
    run = wavecast.run_script("train.py", assume={f"train.py:{line}": 3})
    assert names(run).count("aten.addmm") == 4
    with pytest.raises(InvalidInput, match=r"train\.py:2"):
        wavecast.run_script("train.py", assume={"train.py:2": 3})


def test_a_step_that_cannot_be_meant_is_an_error(script: MakeScript) -> None:
    with pytest.raises(CaptureError, match=r"tensors without elements, the first at train\.py:9"):
        wavecast.run_script(script("while True:\n    update(0)\n"))


@pytest.mark.slow
def test_many_reads_before_and_between_steps_are_no_endless_loop(script: MakeScript) -> None:
    body = """
def read(times):
    for _ in range(times):
        model.bias.sum().item()
while True:
    read(4000)
    update()
"""
    assert wavecast.run_script(script(body)).equal == (2, 3)
    with pytest.raises(CaptureError, match=r"train\.py"):
        wavecast.run_script(script(body.replace("4000", "40_000")))
