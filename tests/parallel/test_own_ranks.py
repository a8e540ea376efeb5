"""What the ranks of a step's own parallel code do, by what their collectives reduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parallel.own_strategies import Step
from parallel.test_against_traced_ranks import ROWS
from torch import distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel

import wavecast
from wavecast.frameworks.pytorch.capture import capture
from wavecast.parallel.ranks import own_ranks, own_strategy
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Trace

RANKS = 8


def _one_by_one(weights: list[Any]) -> None:
    for weight in weights:
        dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)


def _all_at_once(weights: list[Any]) -> None:
    for work in [dist.all_reduce(weight.grad, async_op=True) for weight in weights]:
        work.wait()


def _flat(weights: list[Any]) -> None:
    gradients = [weight.grad for weight in weights]
    joined = _flatten_dense_tensors(gradients)
    dist.all_reduce(joined)
    for old, new in zip(gradients, _unflatten_dense_tensors(joined, gradients), strict=True):
        old.copy_(new / RANKS)


def _narrow(weights: list[Any]) -> None:
    for weight in weights:
        copy = weight.grad.bfloat16()
        dist.all_reduce(copy)
        weight.grad.copy_(copy)


def by_hand(reduce: Callable[[list[Any]], None], statistics: bool = False) -> Trace:
    """A step that reduces its gradients itself, and perhaps statistics of its activations."""

    def make_step() -> Step:
        dist.init_process_group("nccl")
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(32, 64, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            hidden = model(x)
            if statistics:
                dist.all_reduce(hidden.detach().mean(0))
            hidden.square().mean().backward()
            reduce(list(model.parameters()))
            optimizer.step()

        return step

    return capture(make_step, ranks=RANKS, samples=32)


@pytest.mark.parametrize("reduce", [_one_by_one, _all_at_once, _flat, _narrow])
@pytest.mark.parametrize("statistics", [False, True])
def test_ranks_that_reduce_gradients_by_hand_have_samples_of_their_own(
    reduce: Callable[[list[Any]], None], statistics: bool
) -> None:
    trace = by_hand(reduce, statistics)
    assert own_strategy(trace, RANKS) == Parallel(data=RANKS)
    step = wavecast.predict(trace, "h100-sxm-80gb", parallel=own_strategy(trace, RANKS))
    assert step.samples == 32 * RANKS


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional")
def test_ranks_that_gather_each_others_features_have_samples_of_their_own() -> None:
    """As CLIP does: the backward pass of the gather reduces gradients, but not of weights."""

    def make_step() -> Step:
        dist.init_process_group("nccl")
        model = DistributedDataParallel(nn.Linear(64, 32).cuda())
        x = torch.randn(16, 64, device="cuda")

        def step() -> None:
            model.zero_grad()
            features = torch.cat(all_gather(model(x)))
            targets = torch.arange(len(features), device="cuda")
            F.cross_entropy(features @ features.T, targets).backward()

        return step

    trace = capture(make_step, ranks=RANKS)
    assert any(op.name == "nccl.reduce_scatter" for op in trace.counts)
    assert own_strategy(trace, RANKS) == Parallel(data=RANKS)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("HSDP", Parallel(data=8, shard=3)),
        ("SP", Parallel(tensor=8)),
        ("EP", Parallel(data=4)),
        ("PP", Parallel(pipeline=4)),
    ],
)
def test_strategies_are_read_from_their_collectives(name: str, strategy: Parallel) -> None:
    trace = capture(partial(ROWS[name].step, ROWS[name].sizes), ranks=strategy.gpus)
    own = own_ranks(trace, strategy.gpus)
    assert (own.strategy, own.notes) == (strategy, ())


def test_what_is_not_known_is_said() -> None:
    ring = capture(partial(ROWS["CP"].step, ROWS["CP"].sizes), ranks=4)
    assert "whether they share samples is not known" in own_ranks(ring, 4).notes[0]
    alone = by_hand(lambda weights: dist.all_reduce(weights[0].grad.sum()))
    assert "neither gradients nor activations" in own_ranks(alone, RANKS).notes[0]
    half = own_ranks(by_hand(_one_by_one), 2 * RANKS)
    assert half.strategy == Parallel(data=RANKS, tensor=2)
    assert "what they share is not known" in half.notes[0]
    step = wavecast.predict(alone, "h100-sxm-80gb", parallel=Parallel(data=RANKS))
    assert any("is not known" in note for note in step.notes)
