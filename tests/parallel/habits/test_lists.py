"""Lists of tensors that a framework keeps, and steps at whose end the host waits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

import wavecast
from wavecast import Parallel, Prediction
from wavecast.errors import InvalidInput
from wavecast.hardware.hosts import DIRECTLY, REFERENCE_HOST
from wavecast.parallel.habits import with_direct_lists
from wavecast.traces.step import Phase, Trace

GPU = "a100-sxm-80gb"


@pytest.fixture(scope="module")
def decoder() -> Trace:
    from wavecast.suite.decoders import gpt

    sizes = {"layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096}
    make = partial(gpt, 1, "fp16", weights="fp16", vocab=4096, seq=128, **sizes)
    trace = wavecast.trace(make, samples=1)
    assert isinstance(trace, Trace)
    return trace


def _predicted(trace: Trace, *, lists: bool, waits: bool = False) -> Prediction:
    strategy = Parallel(microbatches=2, direct_lists=lists, waits_each_step=waits)
    prediction = wavecast.predict(trace, GPU, parallel=strategy)
    assert isinstance(prediction, Prediction)
    return prediction


def test_only_lists_of_the_optimizer_cost_the_host_less(decoder: Trace) -> None:
    direct = with_direct_lists(decoder)
    before, after = (REFERENCE_HOST.issue_times(trace.calls) for trace in (decoder, direct))
    for call, changed, was, now in zip(decoder, direct, before, after, strict=True):
        if call == changed:
            assert was == now
        else:
            assert call.phase is Phase.OPTIMIZER
            assert min(DIRECTLY.values()) * was <= now <= max(DIRECTLY.values()) * was < was


def test_a_host_that_waits_shows_what_the_gpu_has_still_to_do(decoder: Trace) -> None:
    ahead, waits = (_predicted(decoder, lists=True, waits=on) for on in (False, True))
    optimizer_s = ahead.by_phase()[Phase.OPTIMIZER]
    assert ahead.bound_by == "host"
    assert 0 < waits.seconds - ahead.seconds < 1.2 * optimizer_s
    assert waits.gpu_s == pytest.approx(ahead.gpu_s)


def test_an_optimizer_without_lists_is_refused(decoder: Trace) -> None:
    calls = tuple(call for call in decoder.calls if call.phase is not Phase.OPTIMIZER)
    with pytest.raises(InvalidInput, match="leave it out"):
        with_direct_lists(replace(decoder, calls=calls))
