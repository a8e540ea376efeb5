"""The memory of a step: kinds, modules and the peak, the allocator's replay, and advice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import mm, relu

import wavecast
from lab.measured import campaigns
from wavecast.footprint.advice import (
    advise,
    checkpoint_blocks,
    fuse_optimizer,
    quantize_state,
)
from wavecast.footprint.memory import KindFinder, KindTimeline, of_measured, peak_bytes
from wavecast.footprint.replay import replay
from wavecast.hardware.contexts import context_bytes, measured
from wavecast.traces.step import Allocation, Call, Phase, Role, Trace

MIB = 1 << 20
MEASURED = campaigns.traces("suite")


def step() -> Trace:
    """Two blocks forward and backward, and an optimizer. Every size in MiB is different."""
    calls = (
        Call(mm(), Phase.FORWARD, "Net.blocks.0"),
        Call(relu(8), Phase.FORWARD, "Net.blocks.0"),
        Call(mm(), Phase.FORWARD, "Net.blocks.1"),
        Call(relu(8), Phase.FORWARD, "Net.blocks.1"),
        Call(mm(), Phase.BACKWARD, "Net.blocks.1"),
        Call(mm(), Phase.BACKWARD, "Net.blocks.0"),
        Call(relu(8), Phase.OPTIMIZER),
    )
    memory = (
        Allocation(30 * MIB, None, None, Role.PARAMETER, "Net.blocks.0"),
        Allocation(60 * MIB, None, None, Role.OPTIMIZER_STATE, "Net.blocks.0"),
        Allocation(2 * MIB, None, None, Role.INPUT),
        Allocation(100 * MIB, 0, 6, Role.INTERMEDIATE),
        Allocation(20 * MIB, 1, 6, Role.INTERMEDIATE),
        Allocation(7 * MIB, 1, 2, Role.INTERMEDIATE),
        Allocation(100 * MIB, 2, 5, Role.INTERMEDIATE),
        Allocation(20 * MIB, 3, 5, Role.INTERMEDIATE),
        Allocation(30 * MIB, None, 0, Role.GRADIENT),
        Allocation(30 * MIB, 5, None, Role.GRADIENT, "Net.blocks.0"),
        Allocation(40 * MIB, 6, 7, Role.INTERMEDIATE),
    )
    return Trace(calls, memory)


def test_the_peak_is_told_by_kind_module_and_moment() -> None:
    memory = wavecast.memory(step())
    assert memory.peak_call == 3
    assert memory.by_kind == {
        "weights": 30 * MIB,
        "gradients": 0,
        "optimizer state": 60 * MIB,
        "activations": 240 * MIB,
        "inputs": 2 * MIB,
        "workspace": None,
        "temporary": 0,
        "weight copies": 0,
    }
    assert memory.by_module() == {"Net.blocks": 330 * MIB, "(no module)": 2 * MIB}
    assert memory.by_module(3)["Net.blocks.1"] == 120 * MIB
    first, *_ = memory.held()
    assert (first.kind, first.module, first.op) == ("activations", "Net.blocks.0", "aten.mm")
    assert sum(held.nbytes for held in memory.held()) == peak_bytes(step().allocations)


def test_a_gpu_adds_workspaces_and_the_process() -> None:
    memory = wavecast.memory(step(), "h200-sxm")
    assert memory.by_kind["workspace"] == 64 * MIB  # cuBLAS in two threads
    assert memory.process_bytes == memory.reserved_bytes + (memory.context_bytes or 0)
    assert memory.fits
    assert wavecast.memory(step(), "mi300x").by_kind["workspace"] is None
    assert wavecast.memory(step(), "mi300x").process_bytes is None


def test_a_step_that_is_too_large_does_not_fit() -> None:
    large = Allocation(12 << 30, None, None, Role.PARAMETER)
    trace = replace(step(), allocations=(*step().allocations, large))
    assert wavecast.memory(trace, "rtx-2070").fits is False
    assert wavecast.memory(trace, "l4").fits is True
    assert wavecast.memory(trace).fits is None


def test_libraries_are_loaded_by_those_who_use_them() -> None:
    known, gpu = measured(), wavecast.device("h200-sxm")
    idle = Trace((Call(relu(8), Phase.FORWARD),))
    assert context_bytes(idle, gpu) == known.bare_bytes
    assert context_bytes(step(), gpu) == known.bare_bytes + known.libraries_bytes["cuBLAS"]
    assert context_bytes(step(), wavecast.device("mi300x")) is None
    assert known.source


def test_what_a_backward_pass_finds_is_an_activation_in_every_round() -> None:
    rounds = Trace((*step().calls[:6], *step().calls[:6]))
    kinds = KindFinder(rounds)
    assert kinds.of(Allocation(1, 6, 11, Role.INTERMEDIATE)) == "activations"
    assert kinds.of(Allocation(1, 6, 8, Role.INTERMEDIATE)) == "temporary"
    assert kinds.of(Allocation(1, 4, 5, Role.INTERMEDIATE)) == "temporary"


def test_the_timeline_adds_up_to_the_peak() -> None:
    line = KindTimeline(step())
    assert max(line.totals) == peak_bytes(step().allocations)
    assert line.by_kind["gradients"][-1] == 30 * MIB
    assert len(line.totals) == len(step())


def test_a_trace_without_memory_is_refused() -> None:
    with pytest.raises(wavecast.InvalidInput, match="no allocations"):
        wavecast.memory(Trace(step().calls))


def test_what_was_measured_is_shown_as_it_was() -> None:
    memory = of_measured(step(), None, 400 * MIB, 500 * MIB, 700 * MIB)
    assert (memory.peak_bytes, memory.reserved_bytes, memory.context_bytes) == (
        400 * MIB,
        500 * MIB,
        200 * MIB,
    )


# Peak and reserved of the same runs, from measurements/h200/suite.csv.
@pytest.mark.parametrize(
    ("name", "allocated", "reserved"),
    [
        ("resnet50-b16-fp32", 1726347264, 2011168768),
        ("resnet50-b64-fp32", 5857409024, 6264193024),
        ("resnet50-b32-bf16", 1784333312, 2095054848),
    ],
)
def test_replayed_lifetimes_give_what_the_real_allocator_counted(
    name: str, allocated: int, reserved: int
) -> None:
    replayed = replay(MEASURED[name])
    assert replayed.allocated_bytes == pytest.approx(allocated, rel=0.005)
    assert replayed.reserved_bytes == pytest.approx(reserved, rel=0.06)


def test_checkpointing_drops_what_blocks_keep_but_their_outputs() -> None:
    checkpointed = checkpoint_blocks(step())
    assert checkpointed.blocks == 2
    assert 0 < checkpointed.extra_flops < 1
    before, after = wavecast.memory(step()), wavecast.memory(checkpointed.trace)
    assert after.peak_bytes < before.peak_bytes
    kept = 30 + 60 + 2
    # The first block's output, and all activations of the second block while it runs.
    assert KindTimeline(checkpointed.trace).totals[3] == (kept + 20 + 100 + 20) * MIB


def test_bytes_of_state_are_a_quarter_and_scales() -> None:
    state = [a for a in quantize_state(step()).allocations if a.role is Role.OPTIMIZER_STATE]
    assert state[0].nbytes == 15 * MIB + 15 * MIB // 64


def test_a_fused_optimizer_has_no_temporaries() -> None:
    before, after = (
        KindTimeline(t).by_kind["temporary"][6] for t in (step(), fuse_optimizer(step()))
    )
    assert (before, after) == (40 * MIB, 0)


def test_advice_says_what_saves_the_most_first() -> None:
    before = wavecast.memory(step(), "h200-sxm")
    half = replace(
        step(), allocations=tuple(replace(a, nbytes=a.nbytes // 2) for a in step().allocations)
    )
    advice = advise(before, {"half of everything": lambda: half})
    assert [a.saved_bytes for a in advice] == sorted((a.saved_bytes for a in advice), reverse=True)
    names = {a.name for a in advice}
    assert {"half of everything", "checkpointing", "8-bit optimizer"} <= names
    assert all(a.saved_bytes > 0 for a in advice)


def test_workspaces_are_predicted_anew_for_what_is_changed() -> None:
    smaller = Trace((Call(relu(8), Phase.FORWARD),), (Allocation(MIB, None, None, Role.PARAMETER),))
    (advice, *_) = advise(wavecast.memory(step(), "h200-sxm"), {"other": lambda: smaller})
    assert advice.name == "other"
    assert advice.after.by_kind["workspace"] == 0
