"""Lines through timed layers: published coefficients, and our own fits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import wavecast
from wavecast.errors import InvalidInput, UnknownName
from wavecast.runs.regression.complexities import (
    Category,
    LayerCategory,
    Network,
    NetworkLayer,
    Pass,
    caffe_net,
)
from wavecast.runs.regression.layer_times import read_caffe_time
from wavecast.runs.regression.least_squares import Method
from wavecast.runs.regression.per_layer import (
    LayerTime,
    LayerWork,
    PerLayer,
    published,
    timed_network,
)

# Predictions with the slides' coefficients: batch, forward and backward in ms.
PREDICTED = {
    "alexnet": {
        1: (2.066, 3.807),
        8: (5.187, 10.528),
        16: (8.753, 18.210),
        32: (15.886, 33.573),
        50: (23.910, 50.856),
        64: (30.152, 64.299),
        128: (58.683, 125.751),
    },
    "googlenet": {
        1: (13.489, 24.534),
        8: (19.541, 37.553),
        16: (26.457, 52.433),
        32: (40.289, 82.192),
        50: (55.851, 115.671),
        64: (67.954, 141.710),
        128: (123.284, 260.747),
    },
    "vgg16": {
        1: (9.023, 17.725),
        8: (50.121, 104.901),
        16: (97.090, 204.530),
        32: (191.028, 403.789),
        50: (296.709, 627.956),
        64: (378.905, 802.308),
        128: (754.659, 1599.344),
    },
}
# Table 3, columns t_l in percent: Conv/FC, Norm, Pool, ReLU/Drop.
TABLE_3 = {
    "alexnet": ((83.11, 5.16, 5.36, 6.37), (80.29, 3.95, 10.94, 4.82)),
    "googlenet": ((69.80, 2.62, 16.35, 11.23), (67.67, 2.09, 22.18, 8.07)),
    "vgg16": ((89.23, 0.0, 2.50, 8.27), (88.56, 0.0, 6.04, 5.40)),
}
GROUPS = (("Conv/FC",), ("Norm",), ("Pool S=1", "Pool S>1"), ("ReLU/Drop",))


def shares(name: str, batch: int, which: Pass) -> list[float]:
    of_category = published("quadro-m6000").predict(caffe_net(name), batch).shares(which)
    return [
        100 * sum(of_category.get(Category(name_of_category), 0.0) for name_of_category in group)
        for group in GROUPS
    ]


def made_times(name: str, batches: tuple[int, ...], noise: float = 0.0) -> list[LayerTime]:
    """Layers timed by the published coefficients, with noise."""
    model, rng = published("quadro-m6000"), random.Random(3)

    def took(layer: NetworkLayer, batch: int, which: Pass) -> float:
        assert layer.category is not None
        line = model.lines[layer.category, which]
        return line.seconds(layer.ops(which, batch)) * rng.uniform(1 - noise, 1 + noise)

    return [
        LayerTime(layer, batch, took(layer, batch, Pass.FORWARD), took(layer, batch, Pass.BACKWARD))
        for batch in batches
        for layer in caffe_net(name).layers
        if layer.category is not None
    ]


@pytest.mark.parametrize(
    ("name", "batch"), [(name, batch) for name, rows in PREDICTED.items() for batch in rows]
)
def test_published_coefficients_predict_the_published_times(name: str, batch: int) -> None:
    predicted = published("Quadro M6000").predict(caffe_net(name), batch)
    forward, backward = PREDICTED[name][batch]
    assert 1e3 * predicted.forward_s == pytest.approx(forward, abs=5e-4)
    assert 1e3 * predicted.backward_s == pytest.approx(backward, abs=5e-4)
    assert predicted.seconds == predicted.forward_s + predicted.backward_s
    assert predicted.unpredicted == ()


@pytest.mark.parametrize(("column", "which"), list(enumerate(Pass)))
def test_googlenet_at_batch_50_has_the_printed_shares(column: int, which: Pass) -> None:
    predicted = shares("googlenet", 50, which)
    assert predicted == pytest.approx(TABLE_3["googlenet"][column], abs=0.05)
    assert shares("googlenet", 64, which) != pytest.approx(TABLE_3["googlenet"][column], abs=0.05)


@pytest.mark.parametrize(("name", "bound"), [("alexnet", 6.5), ("vgg16", 2.7)])
@pytest.mark.parametrize("batch", [32, 50, 128])
def test_shares_of_the_nets_never_seen_are_near_the_printed(
    name: str, bound: float, batch: int
) -> None:
    for column, which in enumerate(Pass):
        assert shares(name, batch, which) == pytest.approx(TABLE_3[name][column], abs=bound)


def test_a_pass_may_be_named_by_its_text() -> None:
    [layer, *_] = caffe_net("alexnet").layers
    time = published("quadro-m6000").predict(caffe_net("alexnet"), 8)
    for which in Pass:
        text: Any = str(which)
        assert layer.ops(text) == layer.ops(which)
        assert LayerTime(layer, 1, 1.0, 2.0).seconds(text) == LayerTime(layer, 1, 1.0, 2.0).seconds(
            which
        )
        assert time.shares(text) == time.shares(which) != {}
    with pytest.raises(ValueError, match="sideways"):
        layer.ops("sideways")  # type: ignore[arg-type]


def test_iterations_multiply() -> None:
    model, net = published("quadro-m6000"), caffe_net("alexnet")
    assert model.predict(net, 32, 90_000).forward_s == pytest.approx(
        90_000 * model.predict(net, 32).forward_s
    )


def test_a_fit_recovers_the_coefficients_that_made_the_times() -> None:
    for method in Method:
        model = PerLayer(method).fit(made_times("googlenet", (16, 64)))
        for key, line in published("quadro-m6000").lines.items():
            assert model.lines[key].fixed_s == pytest.approx(line.fixed_s, rel=1e-6)
            assert model.lines[key].per_unit_s == pytest.approx(line.per_unit_s, rel=1e-6)


def test_an_ordinary_fit_has_the_measured_shares_at_the_mean_batch() -> None:
    # Least squares with an intercept leave residuals that add to 0 in each category (PL-8).
    batches = (8, 24, 118)
    times = made_times("googlenet", batches, noise=0.3)
    model = PerLayer(Method.ORDINARY).fit(times)
    predicted = model.predict(caffe_net("googlenet"), 50)
    for which in Pass:
        seconds = {
            category: sum(
                time.seconds(which) or 0.0 for time in times if time.layer.category is category
            )
            for category in Category
        }
        whole = sum(seconds.values())
        for category, share in predicted.shares(which).items():
            assert share == pytest.approx(seconds[category] / whole, rel=1e-9)


def test_a_model_of_one_net_names_the_layers_of_another_that_it_cannot_know() -> None:
    model = PerLayer().fit(made_times("vgg16", (8, 16)))
    predicted = model.predict(caffe_net("alexnet"), 32)
    assert predicted.unpredicted == tuple(
        f"{name} (Norm, {which})" for name in ("norm1", "norm2") for which in Pass
    )


def test_measured_layers_sum_to_their_network() -> None:
    times = made_times("alexnet", (32,))
    measured = timed_network("AlexNet", times)
    assert 1e3 * measured.forward_s == pytest.approx(15.886, abs=5e-4)
    with pytest.raises(InvalidInput, match="one batch"):
        timed_network("AlexNet", made_times("alexnet", (8, 16)))


def test_directions_that_were_not_timed_are_left_out() -> None:
    times = [
        LayerTime(time.layer, time.batch, time.forward_s, None)
        for time in made_times("alexnet", (8, 16))
    ]
    model = PerLayer().fit(times)
    assert {which for _, which in model.lines} == {Pass.FORWARD}
    assert model.predict(caffe_net("alexnet"), 8).backward_s == 0
    assert any("backward" in layer for layer in model.predict(caffe_net("alexnet"), 8).unpredicted)


def test_a_category_with_too_few_layers_is_left_out_by_name() -> None:
    model = PerLayer().fit(made_times("alexnet", (8,)))
    assert [text.split(":")[0] for text in model.left_out] == ["Norm forward", "Norm backward"]
    assert model.left_out[0].endswith(
        "needs three timed layers or more, and there are 2; time another batch"
    )
    assert {category for category, _ in model.lines} == {"Conv/FC", "Pool S>1", "ReLU/Drop"}
    assert "norm1 (Norm, forward)" in model.predict(caffe_net("alexnet"), 8).unpredicted
    assert PerLayer().fit(made_times("alexnet", (8, 16))).left_out == ()


def test_a_fit_without_a_line_is_refused_with_what_to_do() -> None:
    times = made_times("alexnet", (8,))
    with pytest.raises(InvalidInput, match="no timed layer"):
        PerLayer().fit([])
    same = [time for time in times if time.layer.name == "relu1"] * 3
    with pytest.raises(InvalidInput, match="the same amount of work"):
        PerLayer().fit(same)


def test_lines_that_would_give_a_negative_time_refuse() -> None:
    def layer(side: int) -> NetworkLayer:
        return NetworkLayer(f"relu{side}", LayerCategory.RELU, (8, side, side), (8, side, side))

    times = [
        LayerTime(layer(side), 1, seconds, seconds)
        for side, seconds in ((100, 1e-3), (200, 5e-3), (300, 12e-3))
    ]
    tiny = Network("tiny", (8, 2, 2), (layer(2),))
    with pytest.raises(InvalidInput, match="below 0"):
        PerLayer(Method.ORDINARY).fit(times).predict(tiny, 1)
    assert PerLayer().fit(times).predict(tiny, 1).seconds >= 0


def test_work_can_be_counted_otherwise_and_is_never_mixed() -> None:
    net = caffe_net("alexnet")
    works = {
        batch: LayerWork(
            "made", batch, {(x, w): float(x.ops(w, batch)) for x in net.layers for w in Pass}
        )
        for batch in (8, 16, 32)
    }
    times = [
        LayerTime(time.layer, time.batch, time.forward_s, time.backward_s, works[time.batch])
        for time in made_times("alexnet", (8, 16))
    ]
    model = PerLayer().fit(times)
    assert model.unit == "made"
    predicted = model.predict(net, 32, work=works[32])
    assert 1e3 * predicted.forward_s == pytest.approx(15.886, abs=5e-4)
    with pytest.raises(InvalidInput, match="in made, not in operations"):
        model.predict(net, 32)
    with pytest.raises(InvalidInput, match="at batch 8"):
        model.predict(net, 32, work=works[8])
    with pytest.raises(InvalidInput, match="one unit"):
        PerLayer().fit([*times, *made_times("alexnet", (8,))])


def test_a_line_has_its_mean_error() -> None:
    exact = PerLayer(Method.ORDINARY).fit(made_times("googlenet", (16, 64)))
    assert all(line.error == pytest.approx(0, abs=1e-9) for line in exact.lines.values())
    noisy = PerLayer(Method.ORDINARY).fit(made_times("googlenet", (16, 64), noise=0.1))
    assert all((line.error or 0) > 1e-3 for line in noisy.lines.values())


def test_a_sum_costs_nothing_backward() -> None:
    shape = (8, 4, 4)
    layers = tuple(
        NetworkLayer(f"sum{n}", LayerCategory.SUM, (n, 4, 4), (n, 4, 4)) for n in (1, 2, 3)
    )
    model = PerLayer().fit(
        [LayerTime(layer, 1, 1e-5 * (1 + i), None) for i, layer in enumerate(layers)]
    )
    predicted = model.predict(Network("sums", shape, layers), 1)
    assert (predicted.backward_s, predicted.unpredicted) == (0, ())


def test_the_paper_s_gpu_has_its_coefficients_under_its_name_in_the_registry() -> None:
    assert published("quadro-m6000-12gb") is published("Quadro M6000")
    assert wavecast.device("quadro-m6000-12gb").memory_bytes <= 12 * 1024**3


def test_coefficients_that_are_not_published_are_refused() -> None:
    with pytest.raises(UnknownName, match="quadro-m6000"):
        published("h100")


LOG = """\
I1107 15:24:09.123456  4242 caffe.cpp:355] Use GPU with device ID 0
I1107 15:24:11.500000  4242 caffe.cpp:397] Average time per layer:
I1107 15:24:11.500010  4242 caffe.cpp:400]       data\tforward: 0.00135 ms.
I1107 15:24:11.500020  4242 caffe.cpp:403]       data\tbackward: 0.00131 ms.
I1107 15:24:11.500030  4242 caffe.cpp:400]      conv1\tforward: 4.26304 ms.
I1107 15:24:11.500040  4242 caffe.cpp:403]      conv1\tbackward: 3.97971 ms.
I1107 15:24:11.500050  4242 caffe.cpp:400]      relu1\tforward: 0.45344 ms.
I1107 15:24:11.500060  4242 caffe.cpp:403]      relu1\tbackward: 0.66147 ms.
I1107 15:24:11.500070  4242 caffe.cpp:400] data_data_0_split\tforward: 0.0021 ms.
I1107 15:24:11.500080  4242 caffe.cpp:400]      extra\tforward: 1.5 ms.
I1107 15:24:11.500090  4242 caffe.cpp:408] Average Forward pass: 24.9 ms.
I1107 15:24:11.500100  4242 caffe.cpp:410] Average Backward pass: 44.2 ms.
"""


def test_a_caffe_time_log_gives_the_times_of_its_layers(tmp_path: Path) -> None:
    path = tmp_path / "time.log"
    path.write_text(LOG)
    times = read_caffe_time(path, caffe_net("alexnet"), batch=64)
    assert [(time.layer.name, time.batch) for time in times] == [("conv1", 64), ("relu1", 64)]
    assert [time.forward_s for time in times] == pytest.approx([4.26304e-3, 0.45344e-3])
    assert [time.backward_s for time in times] == pytest.approx([3.97971e-3, 0.66147e-3])
    assert times.elsewhere_s[Pass.FORWARD] == pytest.approx(1.5e-3)
    assert "norm1" in times.untimed
    assert "loss" not in times.untimed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("4.26304 ms", "nan ms", "line 5: nan ms is not a time"),
        ("4.26304 ms", "-4.2 ms", "line 5: -4.2 ms is not a time"),
        ("4.26304 ms", "4.2.6 ms", r"line 5: '4.2.6' is not a time"),
        ("relu1\tforward", "conv1\tforward", "line 7: conv1 forward is listed twice"),
        ("Average time per layer:", "something", "not a log of `caffe time`"),
        ("Average Forward pass", "Aver", "cut off"),
        ("conv1", "other", "twice|none of the timed"),
    ],
)
def test_a_malformed_caffe_log_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = tmp_path / "time.log"
    path.write_text(
        LOG.replace(old, new).replace("relu1", "strange" if old == "conv1" else "relu1")
    )
    with pytest.raises(InvalidInput, match=said):
        read_caffe_time(path, caffe_net("alexnet"), batch=64)


def test_a_second_list_of_layers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "time.log"
    path.write_text(LOG + LOG)
    with pytest.raises(InvalidInput, match="second list"):
        read_caffe_time(path, caffe_net("alexnet"), batch=64)
    with pytest.raises(InvalidInput, match="cannot read"):
        read_caffe_time(tmp_path / "none.log", caffe_net("alexnet"), batch=64)
