"""GraphSAGE takes means over neighbours of a graph like ogbn-arxiv, and learns from them."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import assert_learned, losses_of, small  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.graphs import GraphSAGE  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_the_graph_is_as_large_as_ogbn_arxiv() -> None:
    with torch.device("meta"):
        step = benchmark("graphsage").make_step(device="meta")
    shapes = [tuple(held.shape) for held in step.inputs]
    assert shapes == [(169_343, 128), (2, 2_315_598), (90_941,), (90_941,)]


def test_edges_join_nodes_of_the_graph_in_order_of_their_targets() -> None:
    _, (sources, targets), labelled, labels = small("graphsage", batch=50).inputs
    assert len(sources) == len(targets) == round(50 * 13.674)
    assert 0 <= int(sources.min()) <= int(sources.max()) < 50
    assert 0 <= int(targets[0]) <= int(targets[-1]) < 50
    assert bool((targets.diff() >= 0).all())
    assert len(labelled.unique()) == len(labels) == 27


def test_it_takes_the_mean_of_the_neighbours() -> None:
    model = GraphSAGE(layers=2, features=5, width=6, classes=3).eval()
    x, edges = torch.randn(4, 5), torch.tensor([[0, 1, 2, 2, 3], [1, 2, 1, 3, 1]])
    adjacency = torch.zeros(4, 4).index_put((edges[1], edges[0]), torch.ones(5))
    mean = adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)  # node 0 has no neighbour
    first, second = model.layers
    inner = model.between[0](first.own(x) + first.others(mean @ x))
    torch.testing.assert_close(model(x, edges), second.own(inner) + second.others(mean @ inner))


@pytest.mark.slow
def test_it_learns_the_class_that_most_neighbours_have_as_a_feature() -> None:
    step = small("graphsage", batch=200, layers=2, dropout=0.0)
    _, (sources, targets), labelled, _ = (held.clone() for held in step.inputs)

    def refill() -> tuple[Any, ...]:
        own = torch.randint(3, (200,))
        seen = torch.zeros(200, 3).index_add(0, targets, torch.eye(3)[own[sources]])
        features = torch.cat([torch.eye(3)[own], torch.randn(200, 5)], dim=1)
        return features, torch.stack([sources, targets]), labelled, seen.argmax(dim=1)[labelled]

    assert_learned(losses_of(step, 120, refill), guessing=math.log(3))
