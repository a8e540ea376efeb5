"""Expert parallelism, and the experts of a mixture on the ranks of the other axes."""

from __future__ import annotations

from typing import Any

import pytest
from parallel.shapes import misfit
from parallel.traced_models import collectives, flops, held, traced

from wavecast.errors import InvalidInput
from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Phase, Role, Trace

NORMS_AND_THE_REST = (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
EXPERTS_BYTES = 2 * 4 * (128 * 32 + 32 * 64) * 2  # layers, experts, weights of each, bfloat16


def of_experts(trace: Trace) -> float:
    return sum(flops(call) for call in trace if call.op.base == "aten._grouped_mm")


@pytest.mark.parametrize("ranks", [2, 4])
def test_weights_of_experts_are_divided_and_their_work_is_not(ranks: int) -> None:
    trace = traced("MIXTRAL")
    sharded, notes = with_layers_sharded(trace, Parallel(data=ranks, expert=ranks))
    assert of_experts(sharded) == of_experts(trace)  # each rank brings tokens of its own
    whole, part = held(trace, Role.PARAMETER), held(sharded, Role.PARAMETER)
    assert whole - part == EXPERTS_BYTES - EXPERTS_BYTES // ranks
    for role in NORMS_AND_THE_REST:
        assert held(trace, role) * part == held(sharded, role) * whole
    assert "evenly over the experts of 2 layers" in notes[0]


def test_tokens_go_to_their_experts_and_back() -> None:
    sharded, _ = with_layers_sharded(traced("MIXTRAL"), Parallel(data=2, expert=2))
    in_layer = [call for call in collectives(sharded) if ".layers.0." in call.module]
    assert {call.op.name for call in in_layer} == {"nccl.all_to_all"}
    tokens = 3 * 16 * 2 * 32 * 2  # each token goes to two experts, in bfloat16
    sent = [(call.phase, call.op.inputs[0].nbytes) for call in in_layer]
    counts = (Phase.FORWARD, 4 * 8)
    assert sent == [counts, *[(Phase.FORWARD, tokens)] * 2, *[(Phase.BACKWARD, tokens)] * 2]
    waits = [call for call in sharded if call.syncs and ".layers.0.mlp" in call.module]
    assert len(waits) == 1  # for the numbers of tokens


@pytest.mark.parametrize(
    ("axes", "share"),
    [
        ({"tensor": 2}, 2),
        ({"tensor": 2, "sequence": True}, 2),
        ({"context": 2}, 2),
        ({"tensor": 2, "data": 4, "expert": 4}, 2),
        ({"tensor": 2, "context": 2, "data": 2, "expert": 2}, 4),
        ({"tensor": 2, "context": 2, "data": 2, "expert": 2, "sequence": True}, 4),
    ],
)
def test_the_work_of_experts_on_several_axes(axes: dict[str, Any], share: int) -> None:
    trace = traced("MIXTRAL")
    sharded, _ = with_layers_sharded(trace, Parallel(**axes))
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []
    assert of_experts(trace) == share * of_experts(sharded)


def test_tensor_ranks_reduce_what_experts_give_once_in_each_pass() -> None:
    sharded, _ = with_layers_sharded(traced("MIXTRAL"), Parallel(tensor=2))
    reduced = [c for c in collectives(sharded) if ".layers.0.mlp" in c.module]
    assert {c.op.name for c in reduced} == {"nccl.all_reduce"}
    assert [(c.phase, c.op.inputs[0].numel) for c in reduced] == [
        (Phase.FORWARD, 48 * 32),
        (Phase.BACKWARD, 48 * 32),
        (Phase.BACKWARD, 48 * 2),  # of the weights that the router gives to experts
    ]


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"does not divide the 4 experts.* 1, 2, 4"):
        with_layers_sharded(traced("MIXTRAL"), Parallel(data=3, expert=3))
    with pytest.raises(InvalidInput, match="no grouped matmuls"):
        with_layers_sharded(traced("gpt2"), Parallel(data=2, expert=2))
    with pytest.raises(InvalidInput, match="must divide data x context = 1"):
        with_layers_sharded(traced("MIXTRAL"), Parallel(tensor=2, expert=2))


def _reduced(trace: Trace, name: str) -> dict[bool, dict[object, int]]:
    """The bytes of collectives by their ranks and stride; those of experts under True."""
    nbytes: dict[bool, dict[object, int]] = {False: {}, True: {}}
    for call in collectives(trace):
        if call.op.name == f"nccl.{name}":
            ranks = (call.op.attr("ranks"), call.op.attr("stride"))
            own = nbytes["experts" in call.module]
            own[ranks] = own.get(ranks, 0) + call.op.inputs[0].nbytes
    return nbytes


@pytest.mark.parametrize("shard", [0, 2])
def test_gradients_of_experts_are_reduced_by_the_ranks_that_have_them(shard: int) -> None:
    trace = traced("MIXTRAL")
    name = "reduce_scatter" if shard else "all_reduce"

    def reduced(expert: int) -> dict[bool, dict[object, int]]:
        strategy = Parallel(data=4, expert=expert, shard=shard)
        return _reduced(spread(trace, strategy).groups[0].parts[0].last, name)

    whole, two, four = (reduced(expert) for expert in (1, 2, 4))
    assert set(two[False]) == {(4, 1)}
    assert set(two[True]) == {(2, 2)}
    assert set(four[False]) == {(4, 1)}
    assert four[True] == {}
    everything = sum(whole[False].values()) + sum(whole[True].values())
    # Half of the experts are elsewhere, and the two ranks that have the others reduce them.
    assert sum(two[False].values()) + 2 * sum(two[True].values()) == everything


def test_sharded_experts_are_gathered_by_the_ranks_that_have_them() -> None:
    trace = traced("MIXTRAL")
    last = spread(trace, Parallel(data=4, expert=2, shard=3)).groups[0].parts[0].last
    gathered = {
        (call.op.attr("ranks"), call.op.attr("stride"))
        for call in collectives(last)
        if call.op.name == "nccl.all_gather"
    }
    assert gathered == {(4, 1), (2, 2)}
    whole = held(spread(trace, Parallel(data=4, shard=3)).groups[0].parts[0].last, Role.PARAMETER)
    assert held(last, Role.PARAMETER) == pytest.approx(whole, rel=0.02)
