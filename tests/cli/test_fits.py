"""What fits: one answer in every command, also near the limit, and an exit code for scripts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import call, mm, step, trace
from shell import run, run_process

import wavecast
from wavecast.footprint.advice import advise
from wavecast.footprint.replay import usable_bytes
from wavecast.hardware.contexts import context_bytes
from wavecast.traces.step import Allocation, Role, Trace

GIB, MIB = 1 << 30, 1 << 20
GPUS = ("t4", "l4", "mi300x")


def held(nbytes: int) -> Trace:
    """A step that holds one block from beginning to end."""
    memory = (Allocation(nbytes, None, None, Role.PARAMETER),)
    return replace(trace(call(mm()), samples=4), allocations=memory)


def in_turn(nbytes: int) -> Trace:
    """A step that takes a block, gives it back, and takes a slightly larger one.

    On a large GPU the allocator would keep both. On a small one it gives the first back to CUDA.
    """
    calls = (call(mm()),) * 4
    memory = (
        Allocation(nbytes - 64 * MIB, 0, 1, Role.INTERMEDIATE),
        Allocation(nbytes, 2, 3, Role.INTERMEDIATE),
    )
    return replace(trace(*calls, samples=4), allocations=memory)


def limit_of(gpu: str) -> int:
    """The bytes that one block may have on a GPU beside the context and a workspace of cuBLAS."""
    device = wavecast.device(gpu)
    limit = usable_bytes(device.memory_bytes - (context_bytes(trace(call(mm())), device) or 0))
    return limit // (2 * MIB) * 2 * MIB


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("made", [held, in_turn])
@pytest.mark.parametrize(("beyond", "fits"), [(-256 * MIB, True), (2 * MIB, False)])
def test_all_commands_agree_on_what_fits(
    tmp_path: Path, gpu: str, made: Any, beyond: int, fits: bool
) -> None:
    path = tmp_path / "step.json.gz"
    made(limit_of(gpu) + beyond).save(path)
    [predicted] = json.loads(run("predict", path, "--gpu", gpu, "--json").out)["predictions"]
    [remembered] = json.loads(run("memory", path, "--gpu", gpu, "--json").out)
    asked = run("fits", path, "--gpu", gpu, "--json")
    [answered] = json.loads(asked.out)
    records = (predicted, remembered, answered)
    assert [record["fits"] for record in records] == [fits] * 3
    assert len({record["needed_bytes"] for record in records}) == 1
    assert asked.code == (0 if fits else 1)
    assert ("does not fit" in run("predict", path, "--gpu", gpu).out) is not fits
    word = "yes" if fits else "no"
    assert f"fits {word}" in " ".join(run("memory", path, "--gpu", gpu).out.split())
    assert f"{gpu} {word}" in " ".join(run("fits", path, "--gpu", gpu).out.split())


def test_what_the_allocator_gives_back_is_not_needed() -> None:
    near = wavecast.memory(in_turn(10 * GIB), "t4")
    far = wavecast.memory(in_turn(10 * GIB), "h200-sxm")
    assert near.fits
    assert near.reserved_bytes < 11 * GIB
    assert far.reserved_bytes > 19 * GIB


def test_advice_counts_what_the_allocator_would_cache() -> None:
    changes = {change.name: change for change in advise(wavecast.memory(in_turn(10 * GIB), "t4"))}
    growing = changes["expandable segments"]
    assert growing.before.reserved_bytes > 19 * GIB
    assert growing.saved_bytes > 9 * GIB


GROWING = """
import torch
from torch import nn

def make_step(batch=4):
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
    data = torch.randn(batch, 1024, device="cuda")

    def step():
        model(data).sum().backward()

    return step
"""
SMALL = """
name = "Small"
vendor = "NVIDIA"
architecture = "Own"
[nominal]
memory_bytes = {memory}
memory_bytes_per_s = 1e12
fp32_flops = 2e13
compute_capability = "8.9"
"""


def test_the_largest_batch_fits_and_the_next_larger_does_not(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.format(memory=2 * GIB))
    (tmp_path / "train.py").write_text(GROWING)
    target, gpu = f"{tmp_path}/train.py:make_step", f"{tmp_path}/small.toml"
    [largest] = json.loads(run("max-batch", target, "--gpu", gpu, "--json").out)
    for batch, code in ((largest["batch"], 0), (largest["too_large"], 1)):
        assert run("fits", target, "--batch", batch, "--gpu", gpu).code == code


def test_no_is_exit_code_1_on_any_gpu_that_was_named(tmp_path: Path) -> None:
    path = tmp_path / "large.json.gz"
    step(state_bytes=100 << 20).save(path)  # 20 GiB
    assert run("fits", path, "--gpu", "l4").code == 0
    assert run("fits", path, "--gpu", "t4").code == 1
    assert run("fits", path, "--gpu", "l4", "--gpu", "t4").code == 1
    assert run("fits", path, "--gpu", "all").code == 0, "there is one on which it fits"
    step(state_bytes=100 << 30).save(path)
    assert run("fits", path, "--gpu", "all").code == 1


def test_an_error_is_told_from_no(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    step().save(path)
    for wrong in (("fits", path, "--gpu", "h1000"), ("fits", "gone.json.gz", "--gpu", "l4")):
        done = run(*wrong)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: ")
    assert run("fits", path).code == 2


def test_a_fault_of_our_own_is_not_no_either(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    step().save(path)
    broken = "import wavecast\nwavecast.memory = lambda *_, **__: 1 / 0"
    done = run_process("fits", path, "--gpu", "l4", python=broken)
    assert (done.code, done.out) == (2, "")
    assert "ZeroDivisionError" in done.err
