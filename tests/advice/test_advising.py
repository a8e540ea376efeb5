"""Advice: changes are made in the step's code, predicted, and put together where they help."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made import call, mm, relu
from torch import Tensor, nn

import wavecast
from wavecast.advice.catalogue import CHANGES, EDITS, GRAPHED, OF_JAX
from wavecast.advice.proposals import (
    LoaderAdvice,
    StepAdvice,
    Use,
    loader_advice,
    other_gpus,
    proposal,
)
from wavecast.advice.settings import StepSettings, allowed_names
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.changes.changed_code import CODE_CHANGES, changed
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.hardware.devices import device
from wavecast.planning.prices import Price, PriceBook
from wavecast.report.results.advice import advice_lines, advice_view, loader_lines
from wavecast.steps.prediction import Prediction
from wavecast.targets.sources import target_source
from wavecast.targets.targets import resolve
from wavecast.traces.script import LoaderTime, Loading
from wavecast.traces.step import Allocation, Phase, Role, Trace

GPU = "h100-sxm-80gb"


class HandAttention(nn.Module):
    def __init__(self, by_hand: bool, leaks: bool = False) -> None:
        super().__init__()
        self.by_hand, self.leaks = by_hand, leaks
        self.qkv = nn.Linear(64, 192)
        self.register_buffer("mask", torch.tril(torch.ones(128, 128)).view(1, 1, 128, 128))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.view(4, 128, 4, 16).transpose(1, 2) for t in self.qkv(x).split(64, dim=2))
        if not self.by_hand:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(16)
        scores = scores.masked_fill(self.mask[:, :, :128, :128] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        out = weights @ v
        return out + weights.mean() if self.leaks else out


def attention_step(by_hand: bool, leaks: bool = False) -> Callable[[], Any]:
    model = HandAttention(by_hand, leaks).cuda()
    update = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(4, 128, 64, device="cuda")

    def step() -> None:
        update.zero_grad()
        loss = model(x).sum()
        loss.backward()
        loss.item()
        update.step()

    return step


def kernels(trace: wavecast.Trace) -> list[str]:
    """The ops that compute something, without views."""
    views = ("view", "transpose", "expand", "new_empty", "alias", "slice", "detach", "split")
    apart = (*views, "eq", "_local_scalar_dense", "unsafe_view")
    return [c.op.base for c in trace if c.op.base.removeprefix("aten.").lstrip("_") not in apart]


def test_fused_attention_is_what_a_person_would_write() -> None:
    by_hand, by_torch = (lambda: attention_step(True)), (lambda: attention_step(False))
    fused, written = wavecast.trace(changed(by_hand, ["sdpa"])), wavecast.trace(by_torch)
    attention = [name for name in kernels(fused) if "attention" in name]
    assert attention == [name for name in kernels(written) if "attention" in name]
    assert len(attention) == 2  # forward and backward
    assert "aten._softmax" not in kernels(fused)
    peaks = [wavecast.memory(trace, GPU).peak_bytes for trace in (fused, written)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02)


def test_attention_whose_weights_are_used_is_left_alone() -> None:
    trace = wavecast.trace(changed(lambda: attention_step(True, leaks=True), ["sdpa"]))
    assert "aten._softmax" in kernels(trace)


def test_advice_names_what_helps_and_what_does_not() -> None:
    wanted = ["sdpa", "fused_optimizer", "fewer_waits", "cuda_graph", "channels_last", "padding"]
    advice = wavecast.advise(lambda: attention_step(True), GPU, samples=4, changes=wanted)
    by_name = {proposal.changes[-1].name: proposal for proposal in advice.proposals}
    assert by_name["sdpa"].verdict is Use.FASTER
    assert by_name["fused_optimizer"].verdict is Use.FASTER
    assert by_name["channels_last"].verdict is Use.NO_USE
    assert by_name["channels_last"].reason
    waits = by_name["fewer_waits"]
    assert any(line.startswith("tests/advice/test_advising.py:") for line in waits.lines)
    together = advice.together
    assert together is not None
    assert together.gain is not None
    assert together.gain >= max(proposal.gain or 0.0 for proposal in advice.proposals) - 1e-9
    sdpa = by_name["sdpa"]
    assert sdpa.gain is not None
    assert sdpa.gain_low is not None
    assert sdpa.gain_high is not None
    assert sdpa.gain_low <= sdpa.gain <= sdpa.gain_high


def test_a_trace_is_advised_on_as_far_as_it_goes() -> None:
    trace = wavecast.trace(lambda: attention_step(True), samples=4)
    advice = wavecast.advise(trace, GPU)
    tried = {change.name for proposal in advice.proposals for change in proposal.changes}
    assert tried == {*EDITS, GRAPHED}


def test_every_change_is_described_and_can_be_made() -> None:
    elsewhere = {*EDITS, *OF_JAX, GRAPHED, "batch", "compile_graphs", "lora", "qlora"}
    assert set(CHANGES) == (CODE_CHANGES - {"twice_the_batch", "few_samples"}) | elsewhere
    with pytest.raises(InvalidInput, match="there is no change 'magic'"):
        wavecast.advise(lambda: attention_step(True), GPU, changes=["magic"])


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(16, 8200)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def image_step(set_to_none: bool = True) -> Callable[[], Any]:
    model = Images().cuda()
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(64, 16, 32, 32, device="cuda"), torch.zeros(64, device="cuda").long()

    def step() -> None:
        update.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(model(x), y).backward()
        update.step()

    return step


def test_each_change_of_code_does_what_it_says() -> None:
    plain = wavecast.trace(image_step)

    def ops(*names: str, **options: Any) -> list[Any]:
        trace = wavecast.trace(changed(lambda: image_step(**options), names))
        return [call.op for call in trace]

    convolutions = [op for op in ops("channels_last") if op.base == "aten.convolution"]
    assert all(op.inputs[0].channels_last for op in convolutions)
    assert any(op.inputs[0].dtype == "bfloat16" for op in ops("bf16") if "convol" in op.base)
    assert any(op.attr("precision") == "tf32" for op in ops("tf32") if op.base == "aten.addmm")
    assert any("_fused_sgd" in op.base for op in ops("fused_optimizer"))
    assert not any("zero" in op.base for op in ops("set_to_none", set_to_none=False))
    forward = sum(call.op.base == "aten.convolution" for call in plain)
    again = sum(op.base == "aten.convolution" for op in ops("checkpointing"))
    half = sum(op.base == "aten.convolution" for op in ops("checkpointing_half"))
    assert (forward, half, again) == (4, 6, 8)
    losses = [op for op in ops("chunked_loss") if op.base == "aten._log_softmax"]
    assert {op.inputs[0].shape for op in losses} == {(8, 8200)}
    unscaled = [op.base for op in ops("fp16")]
    assert "aten._amp_foreach_non_finite_check_and_unscale_" in unscaled


def test_a_change_leaves_torch_as_it_was() -> None:
    before = nn.Module.__call__, torch.optim.SGD.__init__, torch.autograd.backward
    names = sorted(CODE_CHANGES - {"compile"})
    wavecast.trace(changed(image_step, names))
    assert (nn.Module.__call__, torch.optim.SGD.__init__, torch.autograd.backward) == before


def test_a_host_that_holds_a_change_back_is_named() -> None:
    """The GPU's time halves, and the host needs as long as before."""

    def step(rows: int) -> wavecast.Prediction:
        ran = [call(mm(rows, 4096, 4096)), *(call(relu(8)) for _ in range(700))]
        return wavecast.predict(wavecast.Trace(tuple(ran)), GPU)

    found = proposal(("channels_last",), step(1 << 14), step(1 << 13))
    assert found.gain is not None
    assert found.gpu_gain is not None
    assert found.gpu_gain > found.gain + 0.05
    assert found.is_held_back
    told = advice_lines(StepAdvice("step", found.before, (found,)))
    assert any("holds it back; the GPU's time changes by -" in line for line in told)


def odd_step() -> Callable[[], Any]:
    """A float32 step whose vocabulary is no multiple of eight, and whose copies make it wait."""
    model = nn.Linear(512, 50257).cuda()
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

    def step() -> None:
        update.zero_grad()
        x, y = torch.randn(2048, 512).cuda(), torch.zeros(2048).long().cuda()
        F.cross_entropy(model(x), y).backward()
        update.step()

    return step


def test_what_gains_nothing_alone_is_tried_beside_what_does() -> None:
    advice = wavecast.advise(odd_step, GPU, samples=2048, changes=["bf16", "padding"])
    alone = {proposal.name: proposal for proposal in advice.proposals}["padding"]
    assert alone.verdict is Use.NO_USE
    assert alone.reason == "50257 cost nothing without tensor cores"
    assert advice.together is not None
    assert advice.together.name == "bf16+padding"
    lines = [text for part in advice_view(advice).parts for text in part.lines]
    assert f"sizes padded: {CHANGES['padding'].code}" in lines


def test_copies_that_wait_do_not_keep_a_step_from_being_a_graph() -> None:
    advice = wavecast.advise(odd_step, GPU, samples=2048, changes=["async_copies", GRAPHED])
    names = {proposal.name for proposal in advice.proposals}
    assert names == {"async_copies", f"async_copies+{GRAPHED}"}
    assert all(proposal.after is not None for proposal in advice.proposals)
    assert "it changes nothing in this step" not in [
        proposal.reason for proposal in advice.proposals
    ]


def test_a_loader_that_is_too_slow_is_said_with_the_workers_that_keep_up() -> None:
    step = wavecast.predict(wavecast.Trace((call(mm(8192, 8192, 8192)),)), GPU)
    one_s = step.seconds
    timed = LoaderTime(seconds=4 * one_s, cpu_s=7.9 * one_s, batches=100, workers=2, cores=8)

    def told(found: LoaderAdvice | None) -> str:
        assert found is not None
        return loader_lines(StepAdvice("step", step, (), loader=found))[0]

    found = loader_advice(Loading(0.04, 1, 2, timed), step)
    assert found is not None
    assert found.waits == pytest.approx(0.75)
    assert told(found).startswith("data: 2 workers on 8 cores load a step's batches every ")
    assert told(found).endswith("in 75% of the iteration; DataLoader(..., num_workers=8) keeps up")
    few = loader_advice(Loading(0.04, 1, 2, timed), step, cores=4)
    assert "on as many cores; 4 cores load them every " in told(few)
    quick = replace(timed, seconds=one_s / 4, cpu_s=one_s / 2)
    assert "does not wait" in told(loader_advice(Loading(0.04, 1, 2, quick), step))
    alone = loader_advice(Loading(one_s / 2, 1, 0), step)
    assert alone is not None
    assert alone.waits < 0.01  # it loads while the GPU works: the host has issued one op
    assert loader_advice(None, step) is None


# The settings that a choice of GPUs searches, as far as the user allows them.


def settings(text: str, allowed: str = "", **options: object) -> StepSettings:
    target = resolve(text, 1, None, ModelOptions(**options))  # type: ignore[arg-type]
    return StepSettings(target, allowed_names(allowed), target_source)


def names(found: StepSettings) -> list[str]:
    return [
        way.name
        for setting in found.searched
        for way in (setting, setting.smaller)
        if way is not None
    ]


def test_by_default_nothing_changes_the_numbers() -> None:
    assert names(settings("hf:gpt2")) == ["", "checkpointing"]
    assert names(settings("hf:gpt2", checkpointing=True)) == [""]


def test_precision_is_what_the_gpu_has() -> None:
    found = settings("gpt2", "precision").searched
    assert [setting.name for setting in found] == ["", "bf16 autocast", "fp16 autocast"]
    for gpu, wanted in (("t4", "fp16"), ("l4", "bf16")):
        suited = [setting.changes for setting in found if setting.suits(device(gpu))]
        assert suited == [(), (wanted,)]


def test_adapters_are_searched_where_they_are_allowed() -> None:
    found = names(settings("hf:gpt2", "lora,qlora"))
    assert found[2:] == ["LoRA r=16", "LoRA r=16, checkpointing", "QLoRA with checkpointing"]
    assert names(settings("hf:gpt2", "lora", lora="r=8")) == ["", "checkpointing"]
    assert names(settings("hf:gpt2", "qlora", lora="r=8"))[2:] == ["QLoRA with checkpointing"]
    with pytest.raises(InvalidInput, match="adapters are for hf: models"):
        settings("resnet50", "lora")


def test_compiled_code_comes_last_and_only_if_allowed() -> None:
    assert settings("gpt2").compiled(()) is None
    way = settings("gpt2", "compile").compiled(("bf16",))
    assert way is not None
    assert way.name == "bf16 autocast, torch.compile"


def test_a_setting_is_traced_as_it_says() -> None:
    pytest.importorskip("torch")
    [_, narrow, _] = settings("dcgan", "precision").searched
    trace = narrow.trace_for(device("l4"), 2)
    assert any(t.dtype == "bfloat16" for op in trace.counts for t in op.inputs)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidInput, match="--allow speed: there are precision"):
        allowed_names("speed")


# The same step on another GPU, and on several.


DAY = datetime.date(2026, 8, 22)
BOOK = PriceBook(
    (
        Price("l4", 0.5, "any", "", DAY),
        Price("l4", 0.5, "any", "", DAY, gpus=8),
        Price("h100-sxm-80gb", 20.0, "any", "", DAY),
        Price("t4", 0.01, "any", "", DAY),
        Price("mi300x", 0.001, "any", "", DAY),
    ),
    DAY,
)


def _step(gib: int = 1) -> Prediction:
    calls = (
        call(mm(8192, 8192, 8192), module="net.0"),
        call(mm(8192, 8192, 8192), Phase.BACKWARD, "net.0"),
        call(relu(8192, 8192), Phase.OPTIMIZER),
    )
    held = (Allocation(gib << 30, None, None, Role.PARAMETER),)
    return wavecast.predict(Trace(calls, samples=8, allocations=held), "l4")


def test_the_fastest_the_cheapest_and_several_are_named() -> None:
    before = _step()
    found = {gpu.kind: gpu for gpu in other_gpus(before, BOOK)}
    assert found["fastest"].step.device.id == "h100-sxm-80gb"
    assert found["cheapest"].step.device.id == "t4"  # MI300X was never measured
    assert (found["several"].step.device.id, found["several"].step.gpus) == ("l4", 8)
    now, cheap = before.seconds / 8 * 1e6 * 0.5 / 3600, found["cheapest"].usd_per_million
    assert cheap is not None
    assert cheap < now
    whole = found["several"]
    assert whole.usd_per_million == pytest.approx((whole.sample_s or 0) * 1e6 * 4.0 / 3600)


def test_gpus_that_are_no_better_or_too_small_are_not_named() -> None:
    alone = replace(BOOK, offers=BOOK.offers[:2])
    assert [gpu.kind for gpu in other_gpus(_step(), alone)] == ["several"]
    assert "t4" not in {gpu.step.device.id for gpu in other_gpus(_step(17), BOOK)}


def test_each_is_told_in_a_line() -> None:
    before = _step()
    advice = StepAdvice(
        "net", before, (), None, BOOK.cheapest("l4"), tuple(other_gpus(before, BOOK))
    )
    lines = advice_lines(advice)
    assert any(line.startswith("the fastest other GPU: h100-sxm-80gb, ") for line in lines)
    [several] = [line for line in lines if line.startswith("several GPUs: 8 x l4, ")]
    assert "times the samples" in several
    assert " instead of $" in several
