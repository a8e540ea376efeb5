"""Latent diffusion is the published network, reads times and words, and learns to predict noise."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import assert_learned, losses_of, small  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from wavecast.suite.models.diffusion import Stage, UNet, share_of_signal, sinusoids  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def published_inputs() -> tuple[Any, ...]:
    return torch.empty(1, 4, 64, 64), torch.zeros(1, dtype=torch.long), torch.empty(1, 77, 768)


def test_it_has_the_published_grids() -> None:
    shapes: list[tuple[int, ...]] = []
    with torch.device("meta"):
        model = UNet()
        for layer in [*model.down, *model.up]:
            layer.register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape[1:])))
        noise = model(*published_inputs())
    wide, half = (320, 64, 64), (640, 32, 32)
    quarter, eighth = (1280, 16, 16), (1280, 8, 8)
    down = [wide, wide, (320, 32, 32), half, half, (640, 16, 16), quarter, quarter, eighth]
    up = [eighth] * 3 + [quarter] * 4 + [(1280, 32, 32)] + [half] * 3 + [(640, 64, 64)] + [wide] * 3
    assert shapes == [*down, eighth, eighth, *up]
    assert tuple(noise.shape) == (1, 4, 64, 64)


def test_all_levels_but_the_last_attend() -> None:
    with torch.device("meta"):
        model = UNet()
    attends = [
        layer.transformer is not None
        for layer in [*model.down, *model.middle, *model.up]
        if isinstance(layer, Stage)
    ]
    assert attends == [True] * 6 + [False] * 2 + [True, False] + [False] * 3 + [True] * 9


def test_it_multiplies_as_often_as_published() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        UNet().eval()(*published_inputs())
    flops = {op.__name__: number for op, number in counter.get_flop_counts()["Global"].items()}
    # Kim et al., BK-SDM, 2023: 339 G per call, by a tool that counts layers but not the products
    # inside attention.
    layers = flops["convolution"] + flops["addmm"] + flops["mm"]
    assert layers / 2 == pytest.approx(339e9, rel=2e-3)


def test_the_signal_fades_as_published() -> None:
    kept = share_of_signal()
    assert kept.shape == (1000,)
    assert float(kept[0]) == pytest.approx(1 - 0.00085, rel=1e-6)
    assert float(kept[-1]) == pytest.approx(0.0047, abs=5e-5)
    assert bool((kept.diff() < 0).all())


def test_times_are_told_in_cosines_and_sines() -> None:
    encoded = sinusoids(torch.tensor([0, 7]), 4)
    expected = torch.tensor([[1.0, 1, 0, 0], [7.0, 0.07, 7, 0.07]])
    expected[1, :2], expected[1, 2:] = expected[1, :2].cos(), expected[1, 2:].sin()
    torch.testing.assert_close(encoded, expected)


def test_it_reads_the_time_and_the_words() -> None:
    model = small("latent-diffusion").model.eval()
    noisy, times, words = torch.randn(1, 4, 8, 8), torch.tensor([10]), torch.randn(1, 4, 16)
    noise = model(noisy, times, words)
    assert not torch.allclose(model(noisy, times + 500, words), noise, atol=1e-4)
    assert not torch.allclose(model(noisy, times, words.flip(2)), noise, atol=1e-4)


@pytest.mark.slow
def test_it_learns_to_tell_noise_from_even_latents() -> None:
    sizes: dict[str, Any] = {"latent": 4, "multipliers": (1, 1)}
    step = small("latent-diffusion", batch=8, learning_rate=2e-3, **sizes)

    def refill() -> tuple[Any, ...]:
        sign = torch.randint(2, (8, 1, 1, 1)) * 2.0 - 1
        return sign.expand(8, 4, 4, 4), torch.randn(8, 4, 16)

    # A network that predicts no noise has a loss equal to the noise's variance.
    assert_learned(losses_of(step, 40, refill), guessing=1.0)
