"""AlexNet, GoogLeNet and VGG have the layers that the per-layer papers count, and learn."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import assert_learned, count, losses_of, small  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.classics import GoogLeNet, Inception  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")

# Gianniti et al. 2019 and its slides, layer by layer; weights without groups.
ALEXNET = """\
layer,channels,side,weights
conv1,96,55,34944
relu1,96,55,0
norm1,96,55,0
pool1,96,27,0
conv2,256,27,614656
relu2,256,27,0
norm2,256,27,0
pool2,256,13,0
conv3,384,13,885120
relu3,384,13,0
conv4,384,13,1327488
relu4,384,13,0
conv5,256,13,884992
relu5,256,13,0
pool5,256,6,0
fc6,4096,1,37752832
relu6,4096,1,0
drop6,4096,1,0
fc7,4096,1,16781312
relu7,4096,1,0
drop7,4096,1,0
fc8,1000,1,4097000
"""


def published(name: str, **options: Any) -> tuple[Any, Any]:
    """The model without groups, which the papers did not count, and one image."""
    if name == "alexnet":
        options.setdefault("groups", 1)
    with torch.device("meta"):
        step = benchmark(name).make_step(1, device="meta", **options)
    return step.model, step.inputs[0]


def test_alexnet_is_the_published_layer_by_layer() -> None:
    model, x = published("alexnet")
    facts = []
    for layer in model:
        x = layer(x)
        if not isinstance(layer, nn.Flatten):
            shape = (*x.shape[1:], 1, 1)[:3]
            assert shape[1] == shape[2]
            facts.append((*shape[:2], count(layer)))
    rows = csv.DictReader(io.StringIO(ALEXNET))
    assert facts == [(int(r["channels"]), int(r["side"]), int(r["weights"])) for r in rows]


@pytest.mark.parametrize(
    ("name", "parameters", "activations", "products"),
    [
        ("alexnet", 62_378_344, 1_413_347, 1_135_256_096),
        ("googlenet", 13_378_280, 6_859_368, 1_591_044_096),
        ("vgg16", 138_357_544, 15_237_608, 15_470_264_320),
    ],
)
def test_they_have_the_sizes_of_the_per_layer_papers(
    name: str, parameters: int, activations: int, products: int
) -> None:
    model, image = published(name)
    stored = [image.numel()]

    def store(layer: Any, inputs: Any, output: Any) -> None:
        stored.append(output.numel())

    # Caffe's ReLU and dropout overwrite their inputs; an Inception's output is its Concat.
    kinds = (nn.Conv2d, nn.LocalResponseNorm, nn.MaxPool2d, nn.AvgPool2d, nn.Linear, Inception)
    for layer in model.modules():
        if isinstance(layer, kinds):
            layer.register_forward_hook(store)
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert count(model) == parameters
    assert sum(stored) == activations
    assert counter.get_total_flops() / 2 == products


def test_googlenet_has_the_published_pools_and_layers() -> None:
    model, _ = published("googlenet")
    layers = list(model.modules())
    pools = [layer for layer in layers if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d)]
    assert sum(pool.stride == 1 for pool in pools) == 9 + 1
    assert sum(pool.stride > 1 for pool in pools) == 4 + 2
    assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == 59
    assert sum(isinstance(layer, nn.Linear) for layer in layers) == 5
    dropouts = [layer.p for layer in layers if isinstance(layer, nn.Dropout)]
    assert sorted(dropouts) == [0.4, 0.7, 0.7]


def test_googlenet_answers_with_one_head_when_it_does_not_train() -> None:
    model = small("googlenet", batch=2).model.eval()
    assert model(torch.randn(2, 3, 80, 80)).shape == (2, 3)
    with torch.device("meta"):
        whole = GoogLeNet()
    assert count(whole) - count(whole.first_head) - count(whole.second_head) == 6_998_552


def test_channels_are_normalized_as_in_caffe() -> None:
    model, _ = published("alexnet")
    x = torch.rand(1, 7, 2, 2) * 100
    norm = next(layer for layer in model if isinstance(layer, nn.LocalResponseNorm))
    neighbours = x[:, 1:6].square().sum(dim=1)  # of channel 3
    expected = x[:, 3] / (1 + 1e-4 / 5 * neighbours) ** 0.75
    torch.testing.assert_close(norm(x)[:, 3], expected)


@pytest.mark.parametrize(
    ("name", "decay"), [("alexnet", 5e-4), ("googlenet", 2e-4), ("vgg16", 5e-4)]
)
def test_biases_learn_twice_as_fast_and_do_not_decay(name: str, decay: float) -> None:
    minimize: Any = small(name, batch=1).run
    weights, biases = minimize.optimizer.param_groups
    assert (weights["lr"], weights["weight_decay"]) == (0.01, decay)
    assert (biases["lr"], biases["weight_decay"]) == (0.02, 0)
    assert weights["momentum"] == biases["momentum"] == 0.9
    assert {parameter.dim() for parameter in biases["params"]} == {1}


@pytest.mark.parametrize(("name", "least"), [("alexnet", 67), ("googlenet", 80), ("vgg19", 32)])
def test_images_may_be_small(name: str, least: int) -> None:
    small(name, batch=1, image=least)()
    small(name, batch=1, image=least + 1)()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "learning_rate", "sizes", "heads"),
    [
        ("alexnet", 30, 0.002, {}, 1.0),
        ("googlenet", 60, 0.002, {}, 1.6),
        ("vgg16", 80, 0.001, {"width": 8}, 1.0),
        ("vgg19", 60, 0.0005, {"width": 16, "hidden": 64}, 1.0),
    ],
)
def test_it_learns_which_colour_is_brightest(
    name: str, steps: int, learning_rate: float, sizes: dict[str, Any], heads: float
) -> None:
    step = small(name, dropout=0.0, learning_rate=learning_rate, **sizes)
    images = step.inputs[0].shape

    def refill() -> tuple[Any, ...]:
        colours = torch.randint(3, images[:1])
        fresh = torch.randn(images)
        fresh[torch.arange(len(fresh)), colours] += 1
        return fresh, colours

    assert_learned(losses_of(step, steps, refill), guessing=heads * math.log(3))
