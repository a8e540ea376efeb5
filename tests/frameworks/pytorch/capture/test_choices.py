"""Masks of chosen classes: each class is assumed to be chosen as often as any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import forward

TOKENS, CHOSEN, EXPERTS = 48, 2, 8
EVEN = TOKENS * CHOSEN // EXPERTS


def _one_hot(scores: Any) -> Any:
    chosen = scores.topk(CHOSEN).indices
    return torch.where(F.one_hot(chosen, EXPERTS).permute(2, 1, 0)[3])[1]


def _compared(scores: Any) -> Any:
    return torch.where(scores.topk(CHOSEN, dim=1)[1] == 3)[0]


def _any(scores: Any) -> Any:
    return (scores.topk(CHOSEN).indices == 3).any(-1).nonzero()


def _scattered(scores: Any) -> Any:
    chosen = torch.zeros_like(scores).scatter_(1, scores.topk(CHOSEN).indices, 1.0)
    return (chosen[:, 3] > 0).nonzero()


def _selected(scores: Any) -> Any:
    return scores[:, 0][(F.one_hot(scores.topk(CHOSEN).indices, EXPERTS).sum(1) > 0)[:, 3]]


@pytest.mark.parametrize("find", [_one_hot, _compared, _any, _scattered, _selected])
def test_an_expert_gets_the_tokens_of_an_even_choice(find: Callable[[Any], Any]) -> None:
    found: list[int] = []

    def run(scores: Any) -> Any:
        found.append(len(find(scores.detach())))
        return scores

    trace = forward(run, (TOKENS, EXPERTS))
    assert found[-1] == EVEN
    assert len(trace.notes) == 1
    assert f"an even choice, {EVEN} of " in trace.notes[0]


def test_a_step_goes_through_all_experts() -> None:
    found: list[list[int]] = []

    def run(scores: Any) -> Any:
        chosen = F.one_hot(scores.detach().topk(CHOSEN).indices, EXPERTS)
        found.append([int(expert) for expert in (chosen.sum((0, 1)) > 0).nonzero()])
        return scores

    forward(run, (TOKENS, EXPERTS))
    assert found[-1] == list(range(EXPERTS))


def test_the_largest_of_all_values_is_one_choice() -> None:
    found: list[int] = []

    def run(scores: Any) -> Any:
        found.append(len(torch.where(scores.detach().argmax(1) == 2)[0]))
        return scores

    forward(run, (TOKENS, EXPERTS))
    assert found[-1] == TOKENS // EXPERTS


def test_a_mask_of_no_choice_keeps_its_upper_bound() -> None:
    found: list[int] = []

    def run(scores: Any) -> Any:
        best = scores.detach().topk(CHOSEN)
        found.append(len((best.values > 0).nonzero()))
        return scores

    trace = forward(run, (TOKENS, EXPERTS))
    assert found[-1] == TOKENS * CHOSEN
    assert "upper bound" in trace.notes[0]
