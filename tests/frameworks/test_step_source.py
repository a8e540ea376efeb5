"""The source of steps: what is traced, how often, and which GPUs a trace serves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wavecast
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.predictors.attention_kernels import FEWER_KERNELS, Query, supports
from wavecast.targets.sources import StepSource, target_source
from wavecast.targets.targets import Target, resolve
from wavecast.traces.step import Trace

HOPPER, AMPERE, TURING, VOLTA, PASCAL = map(
    wavecast.device, ("h100-sxm-80gb", "a100-sxm-80gb", "t4", "v100-sxm-16gb", "p4")
)


class _Counted:
    """A source of one attention, whose traces are counted."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.asked: list[tuple[str | None, int | None]] = []
        self.source = StepSource(self._trace_at, batch=2)
        self._dtype = dtype

    def _trace_at(self, gpu: Device | None, batch: int | None) -> Trace:
        self.asked.append((None if gpu is None else gpu.id, batch))

        def make_step() -> Callable[[], Any]:
            shape = (batch or 2, 4, 24, 16)
            query = torch.randn(shape, device="cuda", dtype=self._dtype, requires_grad=True)
            attend = nn.functional.scaled_dot_product_attention
            return lambda: attend(query, query, query).sum().backward()

        return wavecast.trace(make_step, gpu=gpu)


def test_a_trace_is_made_once_for_each_batch_and_serves_all_gpus_for_which_it_is_exact() -> None:
    counted = _Counted(torch.float16)
    for _, gpu in itertools.product(range(2), (HOPPER, AMPERE)):
        counted.source.on(gpu)
        counted.source.on(gpu, 2)
        counted.source.on(gpu, 4)
    assert counted.asked == [(HOPPER.id, None), (HOPPER.id, 4)]


def test_a_family_that_runs_other_ops_gets_its_own_trace() -> None:
    counted = _Counted(torch.bfloat16)
    traces = counted.source.families([TURING, AMPERE, HOPPER])
    assert counted.asked == [(TURING.id, None), (AMPERE.id, None)]
    names = {op.name for op in traces.on(HOPPER).counts}
    assert any("cudnn" in name for name in names)
    assert counted.source.on(HOPPER).counts == traces.on(HOPPER).counts
    assert not wavecast.predict(traces, HOPPER).notes


def test_attention_of_several_ops_serves_families_without_more_kernels() -> None:
    counted = _Counted(torch.bfloat16)
    counted.source.families([VOLTA, TURING, PASCAL])
    assert counted.asked == [(VOLTA.id, None)]


def test_where_one_family_has_no_kernel_those_with_fewer_have_none() -> None:
    sizes = (1, 4, 8, 12, 16, 64, 128, 136, 256, 264)
    switches = itertools.product((False, True), repeat=5)
    for dtype, head, value, (mask, grad, causal, grouped, four) in itertools.product(
        ("float32", "float16", "bfloat16"), sizes, sizes, switches
    ):
        query = Query(dtype, head, value, 8, 16, mask, grad, 0.0, causal, grouped, four)
        for traced, others in FEWER_KERNELS.items():
            for backend in ("flash", "efficient", "cudnn"):
                if not supports(backend, query, traced):
                    assert not any(supports(backend, query, other) for other in others)


def test_a_saved_trace_is_the_same_for_all_gpus_and_has_one_batch(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    wavecast.trace(lambda: lambda: torch.ones(4, device="cuda") * 2, samples=4).save(path)
    target = resolve(str(path))
    source = target_source(target)
    assert source.on() is source.on(TURING) is target.trace
    with pytest.raises(InvalidInput, match="is a trace, which is fixed"):
        target.changed(batch=8)


def test_options_of_a_target_hold_at_other_batches() -> None:
    names: list[str] = []

    def tracing(step: Target) -> Any:
        names.append(step.name)
        return nullcontext()

    source = target_source(resolve("alexnet", 4, "bf16"), tracing)
    assert source.on(batch=8).samples == 8
    assert source.on(batch=4) is source.on()
    assert names == ["alexnet, batch 8, bf16", "alexnet, batch 4, bf16"]
