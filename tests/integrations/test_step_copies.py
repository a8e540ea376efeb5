"""Copies of a training's step: traced without touching the training."""

from __future__ import annotations

import random
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import wavecast
from wavecast.errors import CaptureError

torch = pytest.importorskip("torch")
copies = pytest.importorskip("wavecast.integrations.training_watch")

Pair = namedtuple("Pair", "x y")


def training() -> tuple[Any, Any, Any]:
    """A model with tied weights and a buffer, its optimizer with a scheduler, and a batch."""
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)
    )
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
    return model, optimizer, copies.on_host([Pair(torch.randn(4, 8), "text")])


def loss(model: Any, batch: Any) -> Any:
    return model(batch[0].x).square().mean()


def traced(recipe: Any) -> wavecast.Trace:
    model, optimizer, batch = training()
    return wavecast.trace(copies.step_of(model, optimizer, batch, loss, recipe), gpu="l4")


def test_the_training_is_not_touched() -> None:
    model, optimizer, batch = training()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = list(map(id, model.parameters()))
    make_step = copies.step_of(model, optimizer, batch, loss, copies.StepRecipe())
    with copies.undisturbed():
        wavecast.trace(make_step, gpu="l4")
    assert list(map(id, model.parameters())) == parameters
    for name, tensor in model.state_dict().items():
        assert type(tensor) is torch.Tensor
        assert torch.equal(tensor, before[name])
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    loss(model, batch).backward()
    optimizer.step()  # it still trains
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_random_numbers_come_as_if_nothing_had_been_traced() -> None:
    def drawn() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = drawn()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    with copies.undisturbed():
        drawn()
    assert drawn() == expected


def test_autocast_of_the_training_is_left_and_comes_back() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with copies.undisturbed():
            assert not torch.is_autocast_enabled("cpu")
            assert torch.autocast_increment_nesting() == 1
            torch.autocast_decrement_nesting()
        assert torch.is_autocast_enabled("cpu")


def names(trace: wavecast.Trace) -> list[str]:
    return [call.op.base for call in trace]


def test_the_copy_has_the_memory_of_the_training() -> None:
    trace = traced(copies.StepRecipe())
    weights = sum(a.nbytes for a in trace.allocations if a.role == "parameter" and a.born is None)
    assert weights == pytest.approx(4 * (64 + 8 + 8 + 8 + 8), abs=5 * 512)  # rounded by tensor
    assert "aten._foreach_addcdiv_" in names(trace)


def test_clipping_scaling_and_accumulation_are_part_of_the_step() -> None:
    plain = traced(copies.StepRecipe())
    clipped = traced(copies.StepRecipe(clip_norm=1.0))
    limited = traced(copies.StepRecipe(clip_value=1.0))
    scaled = traced(copies.StepRecipe(autocast="fp16", clip_norm=1.0))
    twice = traced(copies.StepRecipe(accumulate=2))
    assert "aten._foreach_norm" not in names(plain)
    assert "aten._foreach_norm" in names(clipped)
    assert len(limited) > len(plain)
    assert "aten._amp_foreach_non_finite_check_and_unscale_" in names(scaled)
    assert {t.dtype for call in scaled for t in call.op.inputs} >= {"float16", "float32"}
    assert names(twice).count("aten.addmm") == 2 * names(plain).count("aten.addmm")


def test_only_batches_in_pinned_memory_do_not_wait() -> None:
    assert not any(call.syncs for call in traced(copies.StepRecipe(pinned=True)))
    assert any(call.syncs for call in traced(copies.StepRecipe(pinned=False)))


def test_an_optimizer_of_other_weights_is_refused() -> None:
    model, _, batch = training()
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=torch.tensor(0.1))
    make_step = copies.step_of(model, other, batch, loss, copies.StepRecipe())
    with pytest.raises(CaptureError, match="parameters that the model does not have"):
        wavecast.trace(make_step, gpu="l4")


def test_a_learning_rate_in_a_tensor_is_read() -> None:
    model, _, batch = training()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    make_step = copies.step_of(model, optimizer, batch, loss, copies.StepRecipe())
    assert len(wavecast.trace(make_step, gpu="l4"))
