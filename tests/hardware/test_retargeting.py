"""A trace for one GPU family becomes that of another, equal to one that was made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Step
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import wavecast
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import family
from wavecast.predictors.retargeting import retarget
from wavecast.traces.editing import without_values
from wavecast.traces.step import Trace

HOPPER, AMPERE, TURING, VOLTA = "h100-sxm-80gb", "a100-sxm-80gb", "t4", "v100-sxm-16gb"
GPUS = (HOPPER, AMPERE, TURING, VOLTA)


class _Attention(nn.Module):
    """Attention between a projection that makes query, key and value and one that joins heads."""

    def __init__(self, head: int = 16, contiguous: bool = False, **options: Any) -> None:
        super().__init__()
        self.project = nn.Linear(32, 3 * 4 * head)
        self.join = nn.Linear(4 * head, 32)
        self.contiguous = contiguous
        self.options = options

    def forward(self, x: Any, mask: Any = None) -> Any:
        batch, rows, _ = x.shape
        parts = self.project(x).chunk(3, -1)
        parts = [part.view(batch, rows, 4, -1).transpose(1, 2) for part in parts]
        if self.contiguous:
            parts = [part.contiguous() for part in parts]
        query, key, value = parts
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **self.options)
        return self.join(out.transpose(1, 2).reshape(batch, rows, -1))


def _step(
    dtype: Any, mask: tuple[int, ...] | None = None, frozen: bool = False, **options: Any
) -> Callable[[], Step]:
    """A step with two attentions; the first has no gradient if frozen."""

    def make_step() -> Step:
        first, second = (_Attention(**options).cuda().to(dtype) for _ in range(2))
        first.requires_grad_(not frozen)
        weights = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.SGD([w for w in weights if w.requires_grad], lr=0.1)
        x = torch.randn(2, 24, 32, device="cuda", dtype=dtype)
        allowed = None if mask is None else torch.ones(mask, dtype=torch.bool, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            second(first(x, allowed), allowed).sum().backward()
            optimizer.step()

        return step

    return make_step


def _traced(make_step: Callable[[], Step], gpu: str) -> Trace:
    return wavecast.trace(make_step, gpu=gpu)


EXACT: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal with dropout": {"is_causal": True, "dropout_p": 0.1},
    "scaled": {"scale": 0.5},
    "a mask for each sequence": {"mask": (2, 1, 24, 24)},
    "one mask": {"mask": (24, 24), "dropout_p": 0.1},
    "a full mask": {"mask": (2, 4, 24, 24)},
    "without the first gradient": {"frozen": True},
}


@pytest.mark.parametrize("options", EXACT.values(), ids=EXACT)
def test_kernels_chosen_again_are_those_of_a_new_trace(options: dict[str, Any]) -> None:
    make_step = _step(torch.float16, **options)
    traces = {gpu: _traced(make_step, gpu) for gpu in (HOPPER, AMPERE, TURING)}
    assert len({frozenset(trace.counts) for trace in traces.values()}) > 1
    for made_for, trace in traces.items():
        for gpu, expected in traces.items():
            again, notes = retarget(trace, wavecast.device(gpu))
            assert notes == ()
            assert again.calls == expected.calls, (made_for, gpu)
            assert again.allocations == expected.allocations, (made_for, gpu)


def test_a_factor_that_the_step_names_is_kept_where_the_op_shows_it() -> None:
    make_step = _step(torch.float16, scale=0.25)  # the usual one for heads of 16
    traces = {gpu: _traced(make_step, gpu) for gpu in (HOPPER, AMPERE, TURING)}
    for made_for, gpu in ((HOPPER, TURING), (HOPPER, AMPERE), (TURING, AMPERE)):
        again, _ = retarget(traces[made_for], wavecast.device(gpu))
        assert again.calls == traces[gpu].calls
    # Flash attention is given the usual factor even if the step names none.
    again, notes = retarget(traces[AMPERE], wavecast.device(TURING))
    for call, expected in zip(again, traces[TURING], strict=True):
        named = tuple(item for item in expected.op.attrs if item[0] != "scale")
        assert replace(call.op, attrs=()) == replace(expected.op, attrs=())
        assert tuple(item for item in call.op.attrs if item[0] != "scale") == named
    assert notes == ()


def test_inference_keeps_no_sums() -> None:
    def make_step() -> Step:
        attention = _Attention().cuda().half().requires_grad_(False)
        x = torch.randn(2, 24, 32, device="cuda", dtype=torch.float16)
        return lambda: attention(x)

    traces = {gpu: _traced(make_step, gpu) for gpu in (HOPPER, AMPERE, TURING)}
    for trace in traces.values():
        for gpu, expected in traces.items():
            again, notes = retarget(trace, wavecast.device(gpu))
            assert (again.calls, notes) == (expected.calls, ())
            assert again.allocations == expected.allocations


def test_a_step_whose_kernels_are_the_same_everywhere_stays_itself() -> None:
    trace = _traced(_step(torch.float32), HOPPER)
    for gpu in GPUS:
        assert retarget(trace, wavecast.device(gpu)) == (trace, ())
        assert wavecast.predict(trace, gpu).trace is trace


INEXACT: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "several ops there": ({"dtype": torch.bfloat16}, HOPPER, TURING, "runs several ops (math)"),
    "several ops here": ({"dtype": torch.bfloat16}, TURING, HOPPER, "may run one kernel"),
    "another layout": ({"contiguous": True}, AMPERE, TURING, "in another order"),
    "padded heads": ({"head": 12}, AMPERE, VOLTA, "pads a head"),
    "heads to pad": ({"head": 12}, VOLTA, AMPERE, "pads a head of 12"),
}


@pytest.mark.parametrize(("options", "made_for", "gpu", "reason"), INEXACT.values(), ids=INEXACT)
def test_a_step_that_would_change_gets_a_note(
    options: dict[str, Any], made_for: str, gpu: str, reason: str
) -> None:
    trace = _traced(_step(**({"dtype": torch.float16} | options)), made_for)
    again, (note,) = retarget(trace, wavecast.device(gpu))
    assert again is trace
    assert reason in note
    assert "gpus= of wavecast.trace" in note
    major, minor = family(wavecast.device(made_for))
    assert f"made for compute capability {major}.{minor}" in note


def test_gradients_of_some_equal_attentions_are_known_by_their_values() -> None:
    def make_step() -> Step:
        attention = _Attention().cuda().half()
        x = torch.randn(2, 24, 32, device="cuda", dtype=torch.float16)

        def step() -> None:
            with torch.no_grad():
                teacher = attention(x)
            (attention(x) - teacher).square().mean().backward()

        return step

    trace, gpu = _traced(make_step, AMPERE), wavecast.device(TURING)
    again, notes = retarget(trace, gpu)
    assert (again.calls, notes) == (_traced(make_step, TURING).calls, ())
    _, (note,) = retarget(without_values(trace), gpu)
    assert "only some of its equal attentions" in note
    assert retarget(_traced(make_step, HOPPER), wavecast.device(AMPERE)).notes == ()


@contextmanager
def _only(*backends: SDPBackend) -> Iterator[None]:
    with sdpa_kernel(list(backends)):
        yield


def test_kernels_that_the_step_switched_off_stay_off() -> None:
    inner = _step(torch.float16)

    def make_step() -> Step:
        step = inner()

        def switched() -> None:
            with _only(SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
                step()

        return switched

    trace = _traced(make_step, HOPPER)
    for gpu in (AMPERE, TURING):
        again, notes = retarget(trace, wavecast.device(gpu))
        assert (again.calls, notes) == (_traced(make_step, gpu).calls, ())


def test_a_measured_trace_stays_as_it_is() -> None:
    trace = _traced(_step(torch.float16), HOPPER)
    measured = replace(trace, measurement=wavecast.Measurement("NVIDIA H100 80GB HBM3"))
    assert retarget(measured, wavecast.device(TURING)) == (measured, ())


def test_predictions_and_memory_use_the_kernels_of_their_gpu() -> None:
    make_step = _step(torch.float16)
    trace, expected = _traced(make_step, HOPPER), _traced(make_step, TURING)
    again, direct = wavecast.predict(trace, TURING), wavecast.predict(expected, TURING)
    assert [part.name for part in again.by_op()] == [part.name for part in direct.by_op()]
    assert (again.seconds, again.low_s, again.high_s) == (
        direct.seconds,
        direct.low_s,
        direct.high_s,
    )
    assert again.notes == ()
    needed, wanted = wavecast.memory(trace, TURING), wavecast.memory(expected, TURING)
    assert (needed.peak_bytes, needed.by_kind) == (wanted.peak_bytes, wanted.by_kind)


def test_predictions_and_memory_say_that_their_kernels_are_others() -> None:
    trace = _traced(_step(torch.bfloat16), HOPPER)
    prediction = wavecast.predict(trace, TURING)
    assert "several ops (math)" in prediction.notes[0]
    assert "several ops (math)" in repr(prediction)
    assert prediction.memory is not None
    assert prediction.memory.notes == prediction.notes
    assert wavecast.predict(trace, AMPERE).notes == ()
    assert "notes" not in repr(wavecast.predict(trace, AMPERE))


def test_a_step_is_traced_for_several_gpus_at_once() -> None:
    make_step = _step(torch.bfloat16)
    traces = wavecast.trace(make_step, gpus=[HOPPER, TURING, "h200", "rtx-2080-ti"], samples=2)
    assert [trace.capability for trace in traces.traces] == [(9, 0), (7, 5)]
    for gpu in (HOPPER, TURING):
        alone = wavecast.trace(make_step, gpu=gpu, samples=2)
        together = wavecast.predict(traces, gpu)
        assert together.seconds == wavecast.predict(alone, gpu).seconds
        assert together.throughput == wavecast.predict(alone, gpu).throughput
        assert together.notes == ()
        assert wavecast.memory(traces, gpu) == wavecast.memory(alone, gpu)
    # The first trace serves families for which none was made, if their kernels can take its place.
    assert wavecast.predict(traces, AMPERE).notes == ()
    assert wavecast.predict(traces, VOLTA).notes != ()
    assert wavecast.memory(traces).trace.capability == (9, 0)


def test_a_step_without_attention_is_traced_once_for_several_gpus() -> None:
    traced = []

    def make_step() -> Step:
        traced.append(1)
        layer = nn.Linear(8, 8).cuda()
        return lambda: layer(torch.ones(8, 8, device="cuda")).sum().backward()

    traces = wavecast.trace(make_step, gpus=list(GPUS))
    assert len(traced) == len(traces.traces) == 1
    assert wavecast.predict(traces, VOLTA).trace is traces.traces[0]


def test_only_one_way_to_name_gpus_is_taken() -> None:
    with pytest.raises(InvalidInput, match="only one of gpu, gpus and capability"):
        wavecast.trace(_step(torch.float16), gpu="l4", capability=(8, 9))
    with pytest.raises(InvalidInput, match="a list of at least one GPU"):
        wavecast.trace(_step(torch.float16), gpus=[])
    with pytest.raises(InvalidInput, match="a list of at least one GPU"):
        wavecast.trace(_step(torch.float16), gpus="l4")
    with pytest.raises(InvalidInput, match="has no traces"):
        wavecast.FamilyTraces(())
