"""Activations that are gathered again in the backward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parallel_steps import small_gpt2_step

from wavecast.errors import InvalidInput
from wavecast.footprint.memory import fullest_trace
from wavecast.parallel.habits import with_gathers_again
from wavecast.parallel.ranks import kept_bytes
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Phase, Trace

STRATEGY = Parallel(tensor=2, sequence=True)
AGAIN = replace(STRATEGY, gathers_again=True)


def _gathers(trace: Trace, phase: Phase) -> int:
    return sum(call.op.name == "nccl.all_gather" and call.phase is phase for call in trace)


def test_shares_are_kept_in_place_of_what_was_gathered() -> None:
    before, after = (
        spread(small_gpt2_step(), strategy).groups[0].parts[0].last
        for strategy in (STRATEGY, AGAIN)
    )
    forward = [c for c in before if c.op.name == "nccl.all_gather" and c.phase is Phase.FORWARD]
    whole = sum(call.op.outputs[0].nbytes for call in forward)
    assert _gathers(after, Phase.FORWARD) == len(forward)
    assert _gathers(after, Phase.BACKWARD) - _gathers(before, Phase.BACKWARD) == len(forward)
    # What was kept whole is kept by halves; a norm's result was kept by its own halves in no case.
    assert kept_bytes(fullest_trace(spread(small_gpt2_step(), STRATEGY))) - kept_bytes(
        fullest_trace(spread(small_gpt2_step(), AGAIN))
    ) == pytest.approx(whole / 2, rel=0.05)


def test_matmuls_of_the_backward_pass_read_what_was_gathered_there() -> None:
    after = spread(small_gpt2_step(), AGAIN).groups[0].parts[0].last
    gathered = {
        after.values[call.writes[0]].allocation: position
        for position, call in enumerate(after)
        if call.op.name == "nccl.all_gather" and call.phase is Phase.FORWARD
    }
    for call in after:
        if call.phase is Phase.BACKWARD:
            assert gathered.keys().isdisjoint(after.values[v].allocation for v in call.reads)
    for position, call in enumerate(after):
        for value in (*call.reads, *call.writes):
            number = after.values[value].allocation
            if number is not None:
                memory = after.allocations[number]
                assert memory.born is None or memory.born <= position
                assert memory.freed is None or position < memory.freed


def test_a_step_that_gathers_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="gathers_again"):
        with_gathers_again(small_gpt2_step())
    with pytest.raises(InvalidInput, match="needs sequence=True"):
        Parallel(tensor=2, gathers_again=True)
