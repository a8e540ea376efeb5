"""Which step of a script stands for its loop, what it holds, and how many samples it has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from shell import run as shell_run

import wavecast
from wavecast.parallel.ranks import own_strategy
from wavecast.traces.step import Role

MakeScript = Callable[..., Path]

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
def train(loader):
    while True:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
"""


def rows_of(run: wavecast.ScriptRun) -> set[int]:
    """The rows of the batch that the step multiplies."""
    return {call.op.inputs[1].shape[0] for call in run.trace if call.op.base == "aten.addmm"}


def test_the_full_batch_wins_over_the_short_last_one(script: MakeScript) -> None:
    body = "train(DataLoader(TensorDataset(torch.randn(70, 32)), batch_size=64))\n"
    run = wavecast.run_script(script(LOADER + body))
    assert rows_of(run) == {64}
    assert run.trace.samples == 64


def test_the_full_batch_wins_without_a_loader(script: MakeScript) -> None:
    body = "while True:\n    update(64)\n    update(6)\n"
    assert rows_of(wavecast.run_script(script(body))) == {64}


def test_the_samples_are_counted_where_no_batch_is_full(script: MakeScript) -> None:
    body = "train(DataLoader(TensorDataset(torch.randn(6, 32)), batch_size=64))\n"
    assert wavecast.run_script(script(LOADER + body)).trace.samples == 6


def test_batches_that_accelerate_draws_ahead_are_those_of_their_steps(script: MakeScript) -> None:
    pytest.importorskip("accelerate")
    body = """
from accelerate import Accelerator
accelerator = Accelerator()
data = DataLoader(TensorDataset(torch.randn(70, 32)), batch_size=64)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
train(data)
"""
    run = wavecast.run_script(script(LOADER + body))
    assert rows_of(run) == {64}
    assert run.trace.samples == 64


@pytest.mark.parametrize("odd", [0, 1])
def test_a_step_that_logs_or_evaluates_is_not_chosen(odd: int, script: MakeScript) -> None:
    body = f"""
i = 0
while True:
    update()
    i += 1
    if i % 2 == {odd}:
        with torch.no_grad():
            print(model.weight.norm().item(), model(torch.randn(512, 32).cuda()).sum().item())
"""
    run = wavecast.run_script(script(body))
    assert "aten.linalg_vector_norm" not in {call.op.base for call in run.trace}
    [left_out] = run.left_out
    assert left_out.endswith("such as logging, evaluation or a rollout")


def test_memory_is_that_of_the_largest_step(script: MakeScript) -> None:
    body = "i = 0\nwhile True:\n    update(200_000 if i == 2 else 64)\n    i += 1\n"
    path = script(body)
    run = wavecast.run_script(path)
    assert rows_of(run) == {64}
    assert run.largest is not None
    assert rows_of(wavecast.ScriptRun("", run.largest, "", 1, 1, (), "")) == {200_000}
    done = shell_run("run", "--gpu", "l4", "--json", path)
    [row] = json.loads(done.out)["predictions"]
    assert row["peak_bytes"] == wavecast.memory(run.largest, "l4").peak_bytes
    assert row["peak_bytes"] > 2 * wavecast.memory(run.trace, "l4").peak_bytes
    memory = json.loads(shell_run("run", "--memory", "--gpu", "l4", "--json", path).out)
    assert memory["memory"][0]["peak_bytes"] == row["peak_bytes"]


def test_steps_that_vary_suggest_to_run_more(script: MakeScript) -> None:
    path = script("rows = 4\nwhile True:\n    update(rows)\n    rows += 8\n")
    assert "--steps 100" in wavecast.run_script(path).choice
    run = wavecast.run_script(path, steps=21)
    assert "--steps" not in run.choice
    assert rows_of(run) == {4 + 8 * 11}


def test_a_larger_step_among_equal_ones_is_told(script: MakeScript) -> None:
    path = script("i = 0\nwhile True:\n    update(640 if i == 2 else 64)\n    i += 1\n")
    run = wavecast.run_script(path)
    assert rows_of(run) == {64}
    assert re.search(r"one of them with \d\S* times the FLOPs; .*--steps 100$", run.choice)


def test_lbfgs_takes_all_of_its_iterations(script: MakeScript) -> None:
    body = """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20)
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 32).cuda()).sum()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""
    run = wavecast.run_script(script(body))
    layers = [call for call in run.trace if call.op.base == "aten.addmm"]
    assert (len(layers), {str(call.phase) for call in layers}) == (20, {"forward"})
    assert any(a.role is Role.GRADIENT for a in run.trace.allocations)
    assert any("all of its 20 iterations" in note for note in run.trace.notes)


def test_the_time_of_the_loader_is_told(script: MakeScript) -> None:
    body = """
import time
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        time.sleep(0.02)
        return (torch.zeros(32),)
train(DataLoader(Slow(), batch_size=4, num_workers=2))
"""
    path = script(LOADER + body)
    run = wavecast.run_script(path)
    assert run.loading is not None
    assert (run.loading.batches, run.loading.workers) == (1, 2)
    assert run.loading.seconds >= 0.08
    assert run.loading.step_s == pytest.approx(run.loading.seconds / 2)
    done = shell_run("run", "--gpu", "l4", path)
    assert "so the GPU may wait for data" in " ".join(done.out.split())


def test_the_time_of_the_scripts_own_code_is_told(script: MakeScript) -> None:
    body = """
import time
def batches():
    while True:
        time.sleep(0.1)
        yield torch.ones(4, 32)
for x in batches():
    optimizer.zero_grad()
    model(x.cuda()).sum().backward()
    optimizer.step()
"""
    path = script(body)
    run = wavecast.run_script(path)
    assert run.own_time is not None
    assert run.own_time.seconds >= 0.09
    assert run.own_time.line == "train.py:15"
    assert "so the GPU may wait for it" in " ".join(
        shell_run("run", "--gpu", "l4", path).out.split()
    )


def test_the_time_of_tracing_is_not_the_scripts_own(script: MakeScript) -> None:
    body = """
while True:
    for _ in range(20):
        model(torch.ones(4, 32).cuda())
    update()
"""
    assert wavecast.run_script(script(body)).own_time is None


def test_whole_numbers_that_an_op_computes_with_make_no_difference(script: MakeScript) -> None:
    body = "n = 0\nwhile True:\n    update()\n    n += 1\n    mean = model.weight.detach() / n\n"
    assert wavecast.run_script(script(body)).equal == (2, 3)


def test_an_optimizer_that_never_steps_is_not_awaited_for_long(script: MakeScript) -> None:
    body = "other = torch.optim.SGD(model.parameters())\nwhile True:\n    update()\n"
    assert wavecast.run_script(script(body)).step <= 16


def test_what_one_step_holds_is_said(script: MakeScript) -> None:
    body = """
while True:
    for _ in range(4):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(4, 32).cuda()).sum()
        loss.backward()
    optimizer.step()
"""
    run = wavecast.run_script(script(body))
    assert run.holds == "4 backward passes, mostly bfloat16, not compiled"
    assert "one step: 4 backward passes" in shell_run("run", "train.py").out


def test_weights_that_are_changed_by_hand_end_a_step(script: MakeScript) -> None:
    body = """
del optimizer
while True:
    for _ in range(2):
        model(torch.randn(4, 32).cuda()).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-0.1)
            p.grad = None
"""
    run = wavecast.run_script(script(body, head=HEADLESS))
    assert [call.op.base for call in run.trace].count("aten.addmm") == 2
    assert run.line == "train.py:13"


HEADLESS = """
import torch
from torch import nn
model = nn.Linear(32, 8).cuda()
optimizer = None
"""

TENSOR = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (WORLD // TP, TP), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).cuda()
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
if WORLD > TP:
    fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 32).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tensor", [8, 2])
def test_tensor_parallel_ranks_have_no_samples_of_their_own(
    tensor: int, script: MakeScript
) -> None:
    path = script(TENSOR, head=f"WORLD, TP = 8, {tensor}\n")
    trace = wavecast.run_script(path, ranks=8).trace
    strategy = own_strategy(trace, 8)
    assert (strategy.data, strategy.tensor) == (8 // tensor, tensor)
    assert strategy.shard == (0 if tensor == 8 else 3)
    options = ("--gpu", "h100-sxm-80gb", "--ranks", "8", "--batch", "16", "--json")
    [row] = json.loads(shell_run("run", *options, path).out)["predictions"]
    assert row["throughput_per_s"] * row["seconds"] == pytest.approx(16 * 8 // tensor)


def test_data_parallel_ranks_have_samples_of_their_own(script: MakeScript) -> None:
    body = """
import torch.distributed as dist
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(model)
while True:
    update()
"""
    trace = wavecast.run_script(script(body), ranks=8).trace
    assert own_strategy(trace, 8) == wavecast.Parallel(data=8)
