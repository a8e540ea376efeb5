"""Views that linear and matmul make by themselves, against what torch runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import wavecast
from wavecast.hardware.hosts import REFERENCE_HOST, inner_views
from wavecast.traces.step import Trace

Step = Callable[[Any, Any, Any], object]
VIEWS = ("t", "view", "_unsafe_view", "expand", "transpose")


def traced(step: Step) -> Trace:
    """A step without gradients on an input, a weight and a bias."""

    def make_step() -> Callable[[], object]:
        x, w, b = (torch.ones(size, device="cuda") for size in ((2, 3, 8), (4, 8), (4,)))

        def run() -> object:
            with torch.no_grad():
                return step(x, w, b)

        return run

    return wavecast.trace(make_step)


def views_of(trace: Trace) -> tuple[list[str], list[str]]:
    """The names of all views that are part of another op, and of those that are not."""
    inner = set(inner_views(trace.calls))
    names = [call.op.base.removeprefix("aten.") for call in trace.calls]
    views = [(at in inner, name) for at, name in enumerate(names) if name in VIEWS]
    return [name for own, name in views if own], [name for own, name in views if not own]


@pytest.mark.parametrize("bias", [False, True])
def test_the_views_of_linear_are_its_own_and_those_around_it_are_not(bias: bool) -> None:
    trace = traced(lambda x, w, b: F.linear(x, w, b if bias else None).view(6, 4).transpose(0, 1))
    own, others = views_of(trace)
    assert sorted(own) == sorted(["view", "t", "view" if bias else "_unsafe_view"])
    assert others == ["view", "transpose"]


def test_the_views_of_matmul_are_its_own() -> None:
    own, others = views_of(traced(lambda x, w, b: torch.matmul(x, x.transpose(1, 2))))
    assert own.count("expand") == 2
    assert others == ["transpose"]


def test_a_forward_pass_pays_less_for_them_than_for_views_in_python() -> None:
    own = traced(lambda x, w, b: F.linear(x, w))
    python = traced(lambda x, w, b: torch.mm(x.view(6, 8).view(6, 8), w.t()).view(2, 3, 4))
    fewer, more = (REFERENCE_HOST.issue_times(trace.calls).sum() for trace in (own, python))
    assert fewer < more - REFERENCE_HOST.view_s
