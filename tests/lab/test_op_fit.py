"""Fits of op models: trees are the same after writing and reading, and chips are kept apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import relu, tensor

from lab.fit.boosting import grow
from lab.fit.learned import covered, is_short, old_lines, renewed, spread, with_rows_of_a_chip
from lab.fit.op_fit import shared_trees, trusted
from lab.measured.op_makers import OpRow
from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import batch_of, parts_of
from wavecast.predictors.learned.columns import ConvolutionRow, StreamRow
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.learned.model import Forest, OpModel, filter_families
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.learned.tiles import TimeLimits
from wavecast.traces.step import Op, Scalar, TensorSpec

times = st.floats(1e-7, 1.0)


@given(st.integers(0, 2**32 - 1))
def test_trees_read_from_a_file_answer_as_those_that_were_grown(seed: int) -> None:
    """Features are logarithms of whole numbers: many rows share a value, and files round."""
    drawn = np.random.default_rng(seed)
    features = np.log2(drawn.integers(1, 12, (300, 3)).astype(float))
    target = np.where(features[:, 0] > np.log2(5), 0.4, -0.4) + 0.1 * features[:, 1]
    forest = grow(features, target, np.ones(300), trees=10, least=1.0)
    again = Forest.of(forest.arrays())
    assert again(features) == pytest.approx(forest(features), abs=0.01)
    assert len(forest.feature) == 10


def test_a_feature_of_one_value_is_never_asked() -> None:
    features = np.column_stack((np.full(200, 3.0), np.arange(200.0)))
    forest = grow(features, np.arange(200.0) / 200, np.ones(200), trees=3, least=1.0)
    assert set(forest.feature.ravel().tolist()) == {1}


@given(times, times, times, st.floats(0.4, 2.7))
def test_the_factor_on_the_chips_time_is_recovered(
    apart_s: float, memory_s: float, chip_s: float, factor: float
) -> None:
    limits = TimeLimits(*(np.array([part_s]) for part_s in (apart_s, memory_s, chip_s)))
    seconds = limits.seconds(factor)
    if (factor * chip_s) ** 4 > 1e-3 * memory_s**4 and factor * chip_s > 1e-3 * apart_s:
        assert limits.factor(seconds, 0.1) == pytest.approx(factor, rel=1e-3)
    assert limits.seconds(0.0) == pytest.approx(apart_s + memory_s)


def test_an_op_without_work_for_the_chip_tells_nothing_of_it() -> None:
    """Groups of a convolution that follow each other count apart; one such row made a fit NaN."""
    limits = TimeLimits(np.array([2e-3]), np.array([0.0]), np.array([0.0]))
    assert limits.factor(np.array([3e-3]), 0.1) == 1.0
    assert limits.share() == 0.0


def test_memory_hides_what_one_chip_is_slow_at() -> None:
    """A kernel that uses the SMs badly slows a GPU with little bandwidth for each SM less."""
    shipped = Learned.shipped().models["stream"]
    plain = OpModel("stream", shipped.theta)
    op = relu(1 << 14, 1 << 14)
    part = batch_of([op], {}).parts["stream"]
    slower = {}
    for name in ("t4", "h200-sxm"):
        gpu = gpu_of(device(name))
        assert gpu is not None
        seconds = [plain.seconds(part.columns, gpu, added)[0] for added in (0.0, 1.0)]
        slower[name] = seconds[1] / seconds[0]
    assert 1 <= slower["t4"] < 1.1 < slower["h200-sxm"]


def test_a_row_has_the_kind_the_layout_and_whether_cudnn_searched() -> None:
    attrs: tuple[tuple[str, Scalar], ...] = (("stride", (1, 1)), ("padding", (1, 1)))
    image, weight = tensor(2, 8, 8, 8), tensor(8, 8, 3, 3)
    last = dataclasses.replace(image, strides=(512, 1, 64, 8))
    for first, searched in ((image, False), (last, True)):
        more = (*attrs, ("benchmark", True)) if searched else attrs
        op = Op("aten.convolution", (first, weight), (image,), more)
        row = parts_of(op)[0].row
        assert isinstance(row, ConvolutionRow)
        assert row.benchmarked == searched
        assert row.channels_last == searched
    forward, backward = (
        Op(name, (last, last)[: 1 + ("backward" in name)], (last,), (("kernel_size", (2, 2)),))
        for name in ("aten.avg_pool2d", "aten.avg_pool2d_backward")
    )
    pools = [stream_row(op) for op in (forward, backward)]
    assert [pool.backward for pool in pools] == [0, 1]
    assert {pool.channels_last for pool in pools} == {1}
    assert pools[0].kind == pools[1].kind != stream_row(relu(8, 8)).kind


def stream_row(op: Op) -> StreamRow:
    row = parts_of(op)[0].row
    assert isinstance(row, StreamRow)
    return row


def test_a_chip_known_after_cudnns_search_answers_without_it_too() -> None:
    """For the V100 only the fastest algorithms were published; most steps run cuDNN's default."""
    image, weight = tensor(32, 128, 28, 28), tensor(128, 128, 3, 3)
    attrs: tuple[tuple[str, Scalar], ...] = (
        *(("stride", (1, 1)), ("padding", (1, 1)), ("groups", 1)),
        ("precision", "ieee"),
    )
    gpu = gpu_of(device("v100-sxm-16gb"))
    assert gpu is not None
    model = Learned.shipped().models["convolution"]
    bare = dataclasses.replace(model, chips={})
    for searched in (False, True):
        op = Op(
            "aten.convolution",
            (image, weight),
            (image,),
            (*attrs, ("benchmark", True)) if searched else attrs,
        )
        part = batch_of([op], {}).parts["convolution"]
        assert model.seconds(part.columns, gpu) != pytest.approx(bare.seconds(part.columns, gpu))


def test_trees_are_trusted_as_far_as_they_predict_left_out_families() -> None:
    """Two targets: one that all families share, and one in which each family differs."""
    drawn = np.random.default_rng(0)
    families = np.repeat(np.arange(12.0), 60)[:, None]
    features = np.column_stack([families[:, 0], drawn.uniform(0, 1, 720)])
    ones, size = np.ones(720), {"trees": 60, "rate": 0.2, "least": 3.0}
    shared = np.where(features[:, 1] > 0.5, 0.3, -0.3)
    own = drawn.choice([-0.3, 0.3], 12)[families[:, 0].astype(int)]
    alike, apart = (trusted(features, left, ones, families, size) for left in (shared, own))
    assert alike.trust > 0.9
    assert apart.trust < 0.3
    assert apart.families.ravel().tolist() == list(range(12))
    assert apart(features) == pytest.approx(own, abs=0.02)


def test_a_family_with_few_rows_is_not_trusted() -> None:
    families = np.array([0.0] * 200 + [1.0] * 200 + [2.0] * 3)[:, None]
    features = np.column_stack([families[:, 0], np.linspace(0, 1, 403)])
    forest = trusted(
        features, 0.2 * families[:, 0], np.ones(403), families, {"trees": 5, "least": 1.0}
    )
    assert forest.families.ravel().tolist() == [0.0, 1.0]


def test_trees_of_grouped_convolutions_do_not_change_other_convolutions() -> None:
    drawn = np.random.default_rng(0)
    features = np.zeros((900, 22))
    features[:, 1] = np.where(np.arange(900) < 300, 2.0, 0.0)  # in groups of four
    features[:, 9:11] = drawn.uniform(0, 4, (900, 2))
    steep = np.where(np.floor(features[:, 9:11]).sum(axis=1) % 2, 0.5, -0.5)
    left = np.where(features[:, 1] > 0, steep, 0.0)
    plain, both = (
        shared_trees(features, left, np.ones(900), filter_families(name, features))
        for name in ("product", "convolution")
    )
    missed = [np.abs(forest(features) - left) for forest in (plain, both)]
    assert missed[1][:300].mean() < 0.5 * missed[0][:300].mean()
    assert missed[1][300:].mean() < 0.03


def test_ops_of_a_gpu_are_judged_by_the_range_of_the_others() -> None:
    """Two GPUs take 0.5 to 1.5 times the prediction, a third 0.9 to 1.1 times, or 1 to 3 times."""
    wide, narrow = np.linspace(0.5, 1.5, 201), np.linspace(0.9, 1.1, 201)
    ratios = {"t4": wide, "v100-sxm-16gb": wide, "h200-sxm": narrow}
    shares = [covered(*measured(ratios)), covered(*measured(ratios | {"h200-sxm": 2 * wide}))]
    low, high = spread(*measured({"t4": wide}))
    assert (low, high) == pytest.approx((0.55, 1.45), abs=0.01)
    assert shares[0] == pytest.approx((0.8 + 0.8 + 1.0) / 3, abs=0.01)
    assert shares[1] < 0.85


def measured(ratios: dict[str, np.ndarray]) -> tuple[list[OpRow], np.ndarray]:
    rows = [
        OpRow((relu(8),), gpu, 1e-3 * r, "made")
        for gpu, gpu_ratios in ratios.items()
        for r in gpu_ratios
    ]
    return rows, np.full(len(rows), 1e-3)


def test_new_rows_of_a_chip_teach_their_layout_and_leave_the_other() -> None:
    """Convolutions in channels last turn out to be faster by a third; those in NCHW do not."""
    gpu, models = device("h200-sxm"), dict(Learned.shipped().models)
    attrs: tuple[tuple[str, Scalar], ...] = (("stride", (1, 1)), ("padding", (1, 1)), ("groups", 1))

    def convolution(n: int, *, last: bool) -> Op:
        batch, side = 8 * (1 + n % 8), (14, 28, 56)[n % 3]
        strides = (64 * side * side, 1, 64 * side, 64) if last else None
        image = dataclasses.replace(tensor(batch, 64, side, side), strides=strides)
        weight = tensor(8 * (1 + n % 16), 64, 3, 3)
        out = tensor(batch, weight.shape[0], side, side)
        return Op("aten.convolution", (image, weight), (out,), attrs)

    def seconds(ops: list[Op], using: dict[str, OpModel]) -> np.ndarray:
        learned = dataclasses.replace(Learned.shipped(), models=using)
        answers = learned.predict_all(ops, gpu)
        return np.array([answer.seconds for answer in answers if answer is not None])

    first, last = ([convolution(n, last=layout) for n in range(96)] for layout in (False, True))
    rows = [
        OpRow((op,), gpu.id, s, "a") for op, s in zip(first, seconds(first, models), strict=True)
    ]
    more = [
        OpRow((op,), gpu.id, s / 1.5, "b")
        for op, s in zip(last, seconds(last, models), strict=True)
    ]
    grown = with_rows_of_a_chip(models, rows, more)
    assert np.median(seconds(last, grown) / seconds(last, models)) < 0.8
    assert np.median(seconds(first, grown) / seconds(first, models)) == pytest.approx(1.0, abs=0.05)
    assert all(grown[name] is models[name] for name in models if name != "convolution")
    left = with_rows_of_a_chip(models, rows, more, only=("depthwise",))
    assert all(left[name] is models[name] for name in models)


def test_a_model_fitted_alone_renews_its_own_groups_only() -> None:
    before = old_lines()
    group = before[0].partition(" = ")[0]
    after = renewed([f"{group} = {{ low = 0.9 }}", '"other" = { low = 0.2, high = 5.0 }'])
    assert after[-1].startswith('"other"')
    assert [line for line in after if line not in before] == [f"{group} = {{ low = 0.9 }}"]
    assert len(after) == len(before)


def test_attention_with_few_queries_is_in_no_fit() -> None:
    one, cached = (TensorSpec((8, 32, length, 128), "bfloat16") for length in (1, 4096))
    decode = Op("aten._scaled_dot_product_flash_attention", (one, cached, cached), (one,))
    prefill = Op(decode.name, (cached, cached, cached), (cached,))
    assert is_short(decode)
    assert not is_short(prefill)
