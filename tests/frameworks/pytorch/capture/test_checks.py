"""A step is checked before it is predicted: it trains, calls agree, tensors have elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step, minimize, mlp, stepping, training
from torch import nn

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Trace

HERE = r"tests/frameworks/pytorch/capture/test_checks\.py:\d+"


def _traced(body: Callable[[Any, Any, Any], Any], train: bool = True) -> Trace:
    """The trace of a step with a model, an optimizer and a batch."""
    return capture(stepping(body, lambda: mlp().train(train)))


def test_a_usual_step_has_no_notes() -> None:
    assert capture(training(mlp)).notes == ()
    assert capture(training(mlp, dtype=torch.float16)).notes == ()


def test_an_optimizer_without_gradients_is_an_error() -> None:
    def forgot_backward(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum()
        optimizer.step()

    def other_model(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        (x.detach().requires_grad_() * 2).sum().backward()
        optimizer.step()

    for body in (forgot_backward, other_model):
        with pytest.raises(CaptureError, match=rf"steps at {HERE} has no gradient for any"):
            _traced(body)


def test_gradients_of_a_closure_count() -> None:
    def run(model: Any, optimizer: Any, x: Any) -> None:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    trace = capture(stepping(run, make_optimizer=lambda p: torch.optim.LBFGS(p, max_iter=1)))
    assert not [note for note in trace.notes if "backward pass" in note]


def test_gradients_from_elsewhere_are_noted() -> None:
    def by_hand(model: Any, optimizer: Any, x: Any) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    (note,) = _traced(by_hand).notes
    assert "an optimizer steps at" in note
    assert "no backward pass" in note


@pytest.mark.parametrize(
    ("body", "train", "is_noted"),
    [
        (lambda model, _, x: model(x), True, True),
        (lambda model, _, x: model(x), False, False),
        (lambda model, _, x: torch.no_grad()(model)(x), True, False),
        (lambda model, _, x: model(x).sum().backward(), True, False),
        (lambda model, _, x: x * 2, True, False),
    ],
    ids=["training mode", "evaluation", "no gradients", "backward", "no model"],
)
def test_a_model_in_training_mode_without_backward_is_noted(
    body: Any, train: bool, is_noted: bool
) -> None:
    notes = _traced(body, train).notes
    assert [note for note in notes if "in training mode but has no backward pass" in note] == list(
        notes
    )
    assert bool(notes) is is_noted


def test_calls_that_differ_are_noted_with_both_counts() -> None:
    def make_step() -> Step:
        layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(10)]).cuda()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        x, depths = torch.randn(4, 8, device="cuda"), iter((10, 2))
        return minimize(lambda: layers[: next(depths)](x).sum(), optimizer)

    (note,) = capture(make_step).notes
    assert note == (
        "the recorded call of the step ran 6 forward and 15 backward ops, but the call before ran "
        "22 and 79; only the recorded one is predicted"
    )


def test_batches_that_differ_are_noted_with_both_sizes() -> None:
    def make_step() -> Step:
        model = mlp().cuda()
        batches = iter([torch.randn(64, 8, device="cuda"), torch.randn(16, 8, device="cuda")])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return minimize(lambda: model(next(batches)).sum(), optimizer)

    (note,) = capture(make_step).notes
    assert "elements, but those of the call before have" in note


def test_what_the_first_call_creates_is_no_difference() -> None:
    def make_step() -> Step:
        model, scaler = mlp().cuda(), torch.amp.GradScaler("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(4, 8, device="cuda")

        def step() -> None:  # gradients are added up, and the scaler makes its scale
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    assert capture(make_step).notes == ()


def test_a_batch_of_length_zero_is_an_error() -> None:
    def make_step() -> Step:
        model = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 8)).cuda()
        tokens = torch.zeros(4, 0, dtype=torch.int64, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return minimize(lambda: model(tokens).sum(), optimizer)

    with pytest.raises(CaptureError, match=rf"5 of 5 .* without elements, the first at {HERE}"):
        capture(make_step)


def test_a_few_empty_tensors_are_noted_with_their_line() -> None:
    def body(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        model[0](x[:0])
        optimizer.step()

    (note,) = _traced(body).notes
    assert note.startswith("1 of 6 matmuls, convolutions, lookups and attention ops get tensors")
    assert "test_checks.py:" in note
