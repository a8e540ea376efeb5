"""The user's own `torch.distributed.pipelining` code, traced as one rank of four."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

import wavecast
from wavecast.errors import CaptureError, InvalidInput
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Trace

pipelining = pytest.importorskip("torch.distributed.pipelining")

RANKS, COUNT, SAMPLES, WIDE = 4, 8, 32, 64
OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)
asks_other_ranks = pytest.mark.skipif(OLD, reason="stages of this torch exchange their shapes")
HERE = r"test_pipelines\.py:\d+"
Step = Callable[[], Any]


def _block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE))


def _loss(y: Any, target: Any) -> Any:
    return ((y - target) ** 2).mean()


def _shapes(given: bool) -> dict[str, Any]:
    part = torch.empty(SAMPLES // COUNT, WIDE, device="meta", requires_grad=True)
    return {"input_args": part, "output_args": part} if given else {}


def _make(schedule: str, stages: int, given: bool) -> Callable[[], Step]:
    """A step of a pipeline whose ranks have so many stages each."""

    def make_step() -> Step:
        dist.init_process_group("nccl")
        rank, last = dist.get_rank(), stages * RANKS - 1
        gpu = torch.device("cuda", rank)
        torch.cuda.set_device(gpu)
        model = nn.ModuleList(_block() for _ in range(stages)).to(gpu)
        places = [rank + RANKS * index for index in range(stages)]
        parts = [
            pipelining.PipelineStage(module, place, last + 1, gpu, **_shapes(given))
            for module, place in zip(model, places, strict=True)
        ]
        run = getattr(pipelining, schedule)(parts if stages > 1 else parts[0], COUNT, loss_fn=_loss)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(SAMPLES, WIDE, device=gpu)

        def step() -> None:
            optimizer.zero_grad()
            given_here = {"target": x} if last in places else {}
            run.step(*([x] if rank == 0 else []), **given_here)
            optimizer.step()

        return step

    return make_step


def _traced(schedule: str, rank: int = 0, stages: int = 1, given: bool = False) -> Trace:
    return wavecast.trace(_make(schedule, stages, given), ranks=RANKS, rank=rank, samples=SAMPLES)


def _exchanged(trace: Trace) -> list[str]:
    return [call.op.name for call in trace if call.op.name in ("nccl.send", "nccl.recv")]


@pytest.mark.parametrize("schedule", ["Schedule1F1B", "ScheduleGPipe"])
@pytest.mark.parametrize("given", [False, True])
def test_the_first_stage_sends_activations_and_receives_gradients(
    schedule: str, given: bool
) -> None:
    trace = _traced(schedule, given=given)
    names = _exchanged(trace)
    assert names.count("nccl.send") == names.count("nccl.recv") == COUNT
    warm = RANKS if schedule == "Schedule1F1B" else COUNT
    assert names[:warm] == ["nccl.send"] * warm
    assert names[warm] == "nccl.recv"
    for call in trace:
        if call.op.name.startswith("nccl."):
            [tensor] = call.op.inputs or call.op.outputs
            assert tensor.shape == (SAMPLES // COUNT, WIDE)
            assert (call.op.attr("ranks"), call.op.attr("stride")) == (2, 1)


@asks_other_ranks
def test_a_stage_in_the_middle_and_the_last_need_their_shapes() -> None:
    middle, last = (_traced("Schedule1F1B", rank, given=True) for rank in (1, RANKS - 1))
    assert _exchanged(middle).count("nccl.recv") == 2 * COUNT
    assert _exchanged(last).count("nccl.recv") == _exchanged(last).count("nccl.send") == COUNT
    with pytest.raises(CaptureError, match=rf"stage 1 .* at .*{HERE}.*input_args and output_args"):
        _traced("Schedule1F1B", 1)


@asks_other_ranks
@pytest.mark.parametrize("schedule", ["ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"])
def test_interleaved_stages_are_traced_with_a_note(schedule: str) -> None:
    trace = _traced(schedule, stages=2)
    names = _exchanged(trace)
    # Stage 0 sends activations; stage 4 sends activations, and gradients to the last rank.
    assert names.count("nccl.send") == names.count("nccl.recv") == 3 * COUNT
    assert {call.op.attr("stride") for call in trace if call.op.name == "nccl.recv"} == {1, 3}
    assert any("stage 4 of the pipeline was assumed to receive" in note for note in trace.notes)


def test_the_time_until_others_send_is_said_to_be_missing() -> None:
    trace = _traced("Schedule1F1B")
    step = wavecast.predict(trace, "h100-sxm-80gb", parallel=Parallel(pipeline=RANKS))
    assert (step.gpus, step.samples) == (RANKS, SAMPLES)
    assert any("bubble" in note for note in step.notes)
    assert wavecast.memory(trace, "h100-sxm-80gb", parallel=Parallel(pipeline=RANKS)).fits


def test_code_without_a_pipeline_gets_none() -> None:
    def make_step() -> Step:
        dist.init_process_group("nccl")
        x = torch.zeros(8, device="cuda")
        return lambda: dist.all_reduce(x)

    trace = wavecast.trace(make_step, ranks=RANKS)
    with pytest.raises(InvalidInput, match="no pipeline, unless the code itself is one"):
        wavecast.predict(trace, "h100-sxm-80gb", parallel=Parallel(pipeline=RANKS))


def test_a_model_that_torch_would_cut_itself_is_refused_with_the_line() -> None:
    def make_step() -> Step:
        dist.init_process_group("nccl")
        model = nn.Sequential(*(_block() for _ in range(RANKS))).cuda()
        x = torch.randn(4, WIDE, device="cuda")
        split = {f"{i}": pipelining.SplitPoint.BEGINNING for i in range(1, RANKS)}
        pipelining.pipeline(model, mb_args=(x,), split_spec=split)
        return lambda: None

    with pytest.raises(CaptureError, match=rf"cut it into stages at .*{HERE}.*PipelineStage"):
        wavecast.trace(make_step, ranks=RANKS)
