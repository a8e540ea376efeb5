"""WGAN-GP bounds the gradient of its critic, and its generator learns to imitate real images."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import SMALL, count, small  # noqa: E402

import wavecast  # noqa: E402
from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.generation import gradient_penalty  # noqa: E402
from wavecast.targets.targets import resolve  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_generator_and_critic_have_14_layers_each() -> None:
    with torch.device("meta"):
        both = benchmark("wgan").make_step(device="meta").model
    kinds = (torch.nn.Conv2d, torch.nn.Linear)
    layers = [sum(isinstance(each, kinds) for each in half.modules()) for half in both.values()]
    assert layers == [14, 14]
    assert [count(half) for half in both.values()] == [8_540_483, 7_490_816]


def test_it_makes_images_of_the_size_it_judges() -> None:
    step = small("wgan-gp", batch=3, image=16)
    with torch.no_grad():
        images = step.model["generator"](torch.randn(3, 8))
    assert images.shape == step.inputs[0][0].shape
    assert float(images.abs().max()) <= 1
    assert step.model["critic"](images).shape == (3,)


def test_the_penalty_is_the_square_of_how_far_a_slope_is_from_one() -> None:
    weight = torch.full((3, 8, 8), 3 / 192**0.5, requires_grad=True)

    def plane(images: Any) -> Any:
        return (weight * images).sum(dim=(1, 2, 3))

    real, fake = torch.rand(2, 5, 3, 8, 8)
    penalty = gradient_penalty(plane, real, fake)
    assert penalty.item() == pytest.approx(4)  # (3 - 1)²
    penalty.backward()  # 2(3 - 1) along the weight, whose norm is 3
    torch.testing.assert_close(weight.grad, 4 / 3 * weight.detach())


def test_the_penalty_of_the_critic_has_the_gradient_of_its_differences() -> None:
    critic = small("wgan-gp").model["critic"].double()
    real, fake = torch.rand(2, 2, 3, 8, 8, dtype=torch.float64)
    weight = critic.blocks[0].first.weight

    def penalty() -> Any:
        torch.manual_seed(1)
        return gradient_penalty(critic, real, fake)

    (slope,) = torch.autograd.grad(penalty(), weight)
    with torch.no_grad():
        weight[0, 0, 1, 1] += 1e-6
    above = float(penalty().detach())
    with torch.no_grad():
        weight[0, 0, 1, 1] -= 2e-6
    below = float(penalty().detach())
    assert (above - below) / 2e-6 == pytest.approx(float(slope[0, 0, 1, 1]), rel=1e-4)


def test_a_step_has_five_critic_steps_and_counts_their_images() -> None:
    with torch.device("meta"):
        (real,) = benchmark("wgan-gp").make_step(device="meta").inputs
    assert real.shape == (5, 64, 3, 64, 64)
    assert (resolve("wgan-gp").samples, resolve("wgan-gp").unit) == (320, "images")


def test_the_gradient_of_the_gradient_is_in_the_trace() -> None:
    def convolutions(penalties: int) -> int:
        sizes = {**SMALL["wgan-gp"], "critic_steps": penalties}
        traced = wavecast.trace(lambda: benchmark("wgan-gp").make_step(2, "fp32", **sizes))
        return sum(call.op.base == "aten.convolution" for call in traced.calls)

    # The critic has 4 convolutions, the generator 4 and a linear layer for the noise. A critic step
    # runs the generator once and the critic three times. The second gradient of the penalty goes
    # forward through each convolution of the critic once more.
    assert convolutions(2) - convolutions(1) > 4 + 3 * 4
