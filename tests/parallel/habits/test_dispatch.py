"""Tokens that are sent once to each rank, or machine, with one of their experts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import wavecast
from wavecast import ops
from wavecast.parallel.habits import Routes
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import Spreader
from wavecast.parallel.strategy import Parallel
from wavecast.suite.decoders import mixtral
from wavecast.traces.step import Call, Trace

SIZES = {"layers": 2, "hidden": 80, "heads": 5, "kv_heads": 5, "ffn": 56, "seq": 16, "vocab": 160}
PLAIN = Parallel(data=16, expert=8)
ONCE = Parallel(data=16, expert=8, dispatch_once=True)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return wavecast.trace(partial(mixtral, 3, "bf16", experts=8, weights="bf16", **SIZES))


def _exchanges(step: ParallelStep) -> list[Call]:
    last = step.groups[0].parts[0].last
    return [c for c in last if c.op.name == "nccl.all_to_all" and len(c.op.inputs[0].shape) == 2]


def _permutations(step: ParallelStep) -> int:
    return sum(c.op.name == "aten.index.Tensor" for c in step.groups[0].parts[0].last)


def test_a_token_meets_its_ranks_once() -> None:
    routes = Routes(experts=8, top_k=2)
    assert routes.groups_met(8) == pytest.approx(2)  # one expert on each rank
    assert routes.groups_met(1) == 1
    assert routes.groups_met(2) == pytest.approx(2 * (1 - 4 * 3 / (8 * 7)))


def test_tokens_go_to_a_machine_once_and_are_permuted_once(trace: Trace) -> None:
    plain, inside = (Spreader(trace, domain_gpus=8).spread(s) for s in (PLAIN, ONCE))
    sent = 3 * 16 * 2
    assert {c.op.inputs[0].shape for c in _exchanges(inside)} == {(sent, 80)}
    assert len(_exchanges(inside)) == len(_exchanges(plain)) == 8
    network = _exchanges(Spreader(trace, domain_gpus=4).spread(ONCE))
    met = 2 * (1 - 4 * 3 / (8 * 7))
    assert {c.op.inputs[0].shape for c in network} == {(round(3 * 16 * met), 80)}
    assert {(c.op.attr("ranks"), c.op.attr("stride")) for c in network} == {(2, 4)}
    assert (_permutations(plain), _permutations(inside)) == (8, 0)


def test_matmuls_of_experts_are_in_8_bits(trace: Trace) -> None:
    def flops(strategy: Parallel, name: str) -> list[float]:
        last = Spreader(trace).spread(strategy).groups[0].parts[0].last
        return [ops.executed_flops(c.op) or 0 for c in last if c.op.base == name]

    narrow = Parallel(data=16, expert=8, fp8=True)
    assert flops(narrow, "aten._grouped_mm") == []
    assert flops(narrow, "aten._scaled_grouped_mm") == flops(PLAIN, "aten._grouped_mm") != []


def test_all_habits_of_a_mixture_go_together(trace: Trace) -> None:
    kernels = {"fused_rotary": True, "fused_gates": True, "fused_experts": True}
    habits: dict[str, Any] = {"fp8": True, "dispatch_once": True, **kernels}
    every = Parallel(data=16, expert=8, **habits)
    plain, fast = (
        wavecast.predict(trace, "h100-sxm-80gb", parallel=strategy) for strategy in (PLAIN, every)
    )
    assert fast.seconds < plain.seconds


def test_experts_in_8_bits_are_reduced_among_their_own_ranks(trace: Trace) -> None:
    def reduced(fp8: bool) -> list[tuple[object, object]]:
        strategy = Parallel(data=16, expert=8, shard=1, fp8=fp8)
        last = Spreader(trace).spread(strategy).groups[0].parts[0].last
        sent = (c.op for c in last if c.op.name == "nccl.reduce_scatter")
        return [(op.inputs, op.attr("ranks")) for op in sent]

    assert reduced(fp8=True) == reduced(fp8=False) != []
