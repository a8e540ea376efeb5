"""Norms and rotary positions as Triton kernels in autograd functions, as in nanotron."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import wavecast
from wavecast.errors import InvalidInput
from wavecast.hardware.hosts import IN_FUNCTION, REFERENCE_HOST
from wavecast.parallel.fused_kernels import ROTARY, with_fused
from wavecast.parallel.habits import with_norms_in_functions
from wavecast.traces.step import Trace

LAYERS = 2


@pytest.fixture(scope="module")
def decoder() -> Trace:
    from wavecast.suite.decoders import llama

    sizes = {"layers": LAYERS, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512}
    make = partial(llama, 1, "bf16", weights="bf16", vocab=512, seq=64, tied=False, **sizes)
    trace = wavecast.trace(make, samples=1)
    assert isinstance(trace, Trace)
    return trace


def _issue_s(trace: Trace) -> float:
    return float(REFERENCE_HOST.issue_times(trace.calls).sum())


def test_each_norm_costs_the_host_more_in_both_passes(decoder: Trace) -> None:
    more_s = _issue_s(with_norms_in_functions(decoder)) - _issue_s(decoder)
    host, norms = REFERENCE_HOST, 2 * LAYERS + 1
    each_s = IN_FUNCTION * (2 * host.forward_s + host.autograd_s)
    assert more_s == pytest.approx(norms * each_s)


def test_rotary_positions_in_functions_cost_the_host_more_than_as_kernels(decoder: Trace) -> None:
    kernels = with_fused(decoder, ROTARY)
    functions = with_fused(decoder, ROTARY, in_function=True)
    host, turned = REFERENCE_HOST, 2 * LAYERS  # queries and keys
    each_s = IN_FUNCTION * (2 * host.forward_s + host.autograd_s)
    assert _issue_s(functions) - _issue_s(kernels) == pytest.approx(turned * each_s)


def test_a_step_without_norms_is_refused() -> None:
    import torch

    def make_step() -> Callable[[], None]:
        layer = torch.nn.Linear(8, 8, device="cuda")
        return lambda: layer(torch.zeros(8, 8, device="cuda")).sum().backward()

    trace = wavecast.trace(make_step)
    assert isinstance(trace, Trace)
    with pytest.raises(InvalidInput, match="has none"):
        with_norms_in_functions(trace)
