"""DLRM has the published tables, multiplies every pair of features, and learns from the pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import assert_learned, count, losses_of, small  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.recommendation import CRITEO_KAGGLE, DLRM  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_it_has_the_published_parts() -> None:
    with torch.device("meta"):
        model = DLRM()
    assert (len(CRITEO_KAGGLE), sum(CRITEO_KAGGLE)) == (26, 33_762_577)
    assert count(model.tables) == 540_201_232
    assert [layer.in_features for layer in model.bottom[::2]] == [13, 512, 256, 64]
    assert [layer.in_features for layer in model.top[::2]] == [16 + 27 * 26 // 2, 512, 256]


def test_its_data_have_the_published_shape() -> None:
    with torch.device("meta"):
        step = benchmark("dlrm").make_step(device="meta")
    assert [tuple(held.shape) for held in step.inputs] == [(2048, 13), (2048, 26), (2048,)]


def test_every_category_is_in_its_table() -> None:
    categories = small("dlrm", batch=500).inputs[1]
    assert (categories.amax(dim=0) + 1).tolist() == [5, 7, 3]
    assert categories.amin(dim=0).tolist() == [0, 0, 0]


def test_it_multiplies_every_pair_of_features_once() -> None:
    model = small("dlrm").model
    numbers, categories = torch.randn(2, 4), torch.tensor([[4, 0, 1], [2, 6, 2]])
    logits = model(numbers, categories)
    for row in range(2):
        dense = model.bottom(numbers[row])
        rows = [table.weight[at] for table, at in zip(model.tables, categories[row], strict=True)]
        features = [dense, *rows]
        pairs = [features[i] @ features[j] for i in range(4) for j in range(i)]
        expected = model.top(torch.cat([dense, torch.stack(pairs)]))
        torch.testing.assert_close(logits[row : row + 1], expected)


@pytest.mark.slow
def test_it_learns_that_two_categories_must_agree() -> None:
    step = small("dlrm", batch=64, tables=(3, 3, 3), learning_rate=0.3)

    def refill() -> tuple[Any, ...]:
        categories = torch.randint(3, (64, 3))
        agree = torch.rand(64) < 0.5
        categories[agree, 1] = categories[agree, 0]
        return torch.randn(64, 4), categories, (categories[:, 0] == categories[:, 1]).float()

    assert_learned(losses_of(step, 150, refill), guessing=math.log(2))
