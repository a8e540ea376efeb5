"""The suite's mixture of experts on the ranks of each axis."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from typing import Any

import pytest
from parallel.shapes import misfit
from parallel.traced_models import collectives, flops, held

import wavecast
from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.planning.layouts import Search, candidates
from wavecast.traces.step import Phase, Role, Trace

WORDS, TOP_K, HIDDEN, FFN, EXPERTS = 3 * 16, 2, 80, 56, 8
EXPERT_WEIGHTS = 2 * EXPERTS * 3 * HIDDEN * FFN
"""Those of both layers."""


@cache
def traced(**options: Any) -> Trace:
    pytest.importorskip("torch")
    from wavecast.suite.decoders import mixtral

    sizes = {"layers": 2, "hidden": HIDDEN, "heads": 4, "kv_heads": 4, "ffn": FFN, "seq": 16}
    more = {"vocab": 160, "experts": EXPERTS, "top_k": TOP_K, "weights": "bf16"}
    return wavecast.trace(partial(mixtral, 3, "bf16", **{**sizes, **more, **options}))


def _last(trace: Trace, **axes: Any) -> Trace:
    return spread(trace, Parallel(**axes)).groups[0].parts[0].last


def _weights(trace: Trace) -> int:
    return held(trace, Role.PARAMETER) // 2


@pytest.mark.parametrize("expert", [2, 4, 8])
def test_ranks_hold_their_experts_with_float32_gradients_and_states(expert: int) -> None:
    trace = traced()
    sharded, _ = with_layers_sharded(trace, Parallel(data=8, expert=expert))
    gone = EXPERT_WEIGHTS - EXPERT_WEIGHTS // expert
    assert held(trace, Role.PARAMETER) - held(sharded, Role.PARAMETER) == 2 * gone
    assert held(trace, Role.GRADIENT) - held(sharded, Role.GRADIENT) == 4 * gone
    assert held(trace, Role.OPTIMIZER_STATE) - held(sharded, Role.OPTIMIZER_STATE) == 12 * gone


def test_a_sharded_optimizer_shards_experts_among_the_ranks_that_have_them() -> None:
    trace = traced()
    last = _last(trace, data=8, expert=4, shard=1)
    dense = _weights(trace) - EXPERT_WEIGHTS
    states = 12 * (EXPERT_WEIGHTS // 4 // 2 + dense // 8)
    assert held(last, Role.OPTIMIZER_STATE) == pytest.approx(states, rel=0.02)
    reduced: Counter[tuple[object, object]] = Counter()
    for call in collectives(last):
        if call.op.name == "nccl.reduce_scatter":
            ranks = (call.op.attr("ranks"), call.op.attr("stride"))
            reduced[ranks] += call.op.inputs[0].nbytes
    assert reduced == {(8, 1): 4 * dense, (2, 4): 4 * EXPERT_WEIGHTS // 4}


def test_experts_are_on_neighbours_with_tokens_of_their_own() -> None:
    def axes(**sizes: Any) -> tuple[RankAxis, RankAxis]:
        placed = Parallel(**sizes).axes
        return placed["expert"], placed["expert_replica"]

    assert axes(data=16, tensor=2, sequence=True, expert=32) == (RankAxis(32, 1), RankAxis(1, 32))
    assert axes(data=4, tensor=2, sequence=True, expert=4) == (RankAxis(4, 1), RankAxis(2, 4))
    # Without sequence parallelism tensor ranks have the same tokens and parts of each expert.
    assert axes(data=4, tensor=2, expert=4) == (RankAxis(4, 2), RankAxis(1, 8))


@pytest.mark.parametrize(
    ("axes", "share"),
    [
        ({"tensor": 2}, 2),
        ({"tensor": 2, "sequence": True}, 2),
        ({"tensor": 2, "sequence": True, "data": 2, "expert": 4}, 2),
        ({"context": 2}, 2),
        ({"tensor": 2, "context": 2, "sequence": True, "data": 2, "expert": 2}, 4),
    ],
)
@pytest.mark.parametrize("options", [{}, {"shared_experts": 2, "dense_layers": 1}], ids=str)
def test_products_of_all_axes_fit_and_share_the_work(
    options: dict[str, Any], axes: dict[str, Any], share: int
) -> None:
    trace = traced(**options)
    sharded, _ = with_layers_sharded(trace, Parallel(**axes))
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []

    def grouped(step: Trace) -> float:
        return sum(flops(call) for call in step if call.op.base == "aten._grouped_mm")

    assert grouped(trace) == share * grouped(sharded)


@pytest.mark.parametrize("sequence", [False, True])
def test_adapters_change_no_collective_of_tensor_ranks_in_the_forward_pass(sequence: bool) -> None:
    def sent(**options: Any) -> list[tuple[str, int]]:
        sharded, _ = with_layers_sharded(traced(**options), Parallel(tensor=2, sequence=sequence))
        assert [wrong for call in sharded if (wrong := misfit(call.op))] == []
        return [
            (call.op.name, call.op.inputs[0].nbytes)
            for call in collectives(sharded)
            if call.phase is Phase.FORWARD
        ]

    assert sent(lora=4) == sent()


def test_the_search_spreads_experts_over_ranks_that_divide_them() -> None:
    tried = list(candidates(Search(8, 32, (1,)), domain_gpus=8, blocks=2, experts=4))
    assert {strategy.expert for strategy, _ in tried} == {1, 2, 4}
    assert all(s.data * s.tensor % s.expert == 0 for s, _ in tried)
    plain = list(candidates(Search(8, 32, (1,)), domain_gpus=8, blocks=2))
    assert {strategy.expert for strategy, _ in plain} == {1}
