"""The learned op models: bounds, order, determinism, fallback, and real measurements."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import copy_to_gpu, mm, relu, tensor

from lab.measured.op_makers import recurrent
from wavecast import ops
from wavecast.hardware.devices import Fact, device
from wavecast.ops import Unit
from wavecast.predictors.attainable import Attainable, bound
from wavecast.predictors.learned.batch import batch_of, parts_of
from wavecast.predictors.learned.columns import (
    ROW_TYPES,
    ProductRow,
    RecurrentRow,
    columns_of,
)
from wavecast.predictors.learned.convolutions import WINOGRAD_GAIN
from wavecast.predictors.learned.gpus import CODES, gpu_of, joined
from wavecast.predictors.learned.model import NOTHING, REACH, Forest
from wavecast.predictors.learned.predictor import UNSEEN, Learned, restored, stored
from wavecast.traces.step import Op, Scalar, TensorSpec

LEARNED = Learned.shipped()
GPUS = [
    device(name) for name in ("gtx-1080-ti", "t4", "rtx-3090", "rtx-4090", "l4", "h100-sxm-80gb")
]
gpus = st.sampled_from(GPUS)
dtypes = st.sampled_from(["float32", "float16", "bfloat16"])


def convolution(
    n: int, c: int, size: int, filters: int, taps: int, dtype: str = "float32", groups: int = 1
) -> Op:
    image, weight = (
        tensor(n, c, size, size, dtype=dtype),
        tensor(filters, c // groups, taps, taps, dtype=dtype),
    )
    attrs: tuple[tuple[str, Scalar], ...] = (
        ("stride", (1, 1)),
        ("padding", (taps // 2, taps // 2)),
        ("groups", groups),
    )
    return Op(
        "aten.convolution", (image, weight), (tensor(n, filters, size, size, dtype=dtype),), attrs
    )


def seconds(op: Op, gpu: str = "rtx-3090") -> float:
    answer = LEARNED.predict(op, device(gpu))
    assert answer is not None
    return answer.seconds


@given(
    st.integers(1, 64),
    st.integers(1, 512),
    st.integers(1, 128),
    st.integers(1, 512),
    st.sampled_from([1, 3, 5, 7]),
    dtypes,
    gpus,
)
def test_convolutions_are_no_faster_than_winograd_allows(
    n: int, c: int, size: int, filters: int, taps: int, dtype: str, gpu: object
) -> None:
    op = convolution(n, c, size, filters, taps, dtype)
    answer, least = LEARNED.predict(op, gpu), bound(op, gpu)  # type: ignore[arg-type]
    assert answer is not None
    assert least is not None
    if least.unit is not None:
        assert answer.low_s >= least.seconds / WINOGRAD_GAIN * (1 - 1e-9)
    assert 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf


def test_bytes_beyond_the_size_of_l2_come_from_memory() -> None:
    gpu, op = device("rtx-3090"), relu(1 << 28)
    assert gpu.l2_bytes is not None
    assert seconds(op) >= (2 * (4 << 28) - gpu.l2_bytes) / gpu.memory_bytes_per_s


def test_large_products_reach_a_usual_share_of_the_rate() -> None:
    for gpu in GPUS:
        least = bound(mm(8192, 8192, 8192), gpu)
        assert least is not None
        assert 0.3 < least.seconds / seconds(mm(8192, 8192, 8192), gpu.id) <= 1.0, gpu.id


def test_half_precision_in_nchw_pays_for_the_conversion() -> None:
    plain = convolution(32, 256, 56, 256, 3, "float16")
    strides = 256 * 56 * 56, 1, 256 * 56, 256
    inputs = tuple(dataclasses.replace(t, strides=strides) for t in plain.inputs[:1])
    last = dataclasses.replace(plain, inputs=(*inputs, *plain.inputs[1:]))
    assert seconds(plain) > 1.1 * seconds(last)


def test_kinds_without_a_model_get_attainable_shares_and_a_wide_range() -> None:
    signal = tensor(64, 1024, dtype="complex64")
    op = Op("aten._fft_c2c", (signal,), (signal,), (("dim", (1,)),))
    answer, base = LEARNED.predict(op, GPUS[0]), Attainable.shipped().predict(op, GPUS[0])
    assert answer is not None
    assert base is not None
    assert answer.source == "attainable"
    assert answer.seconds == base.seconds
    assert answer.high_s == pytest.approx(UNSEEN * base.high_s)


def test_an_op_that_was_not_in_the_fit_is_marked_as_unseen() -> None:
    known, rare = (
        LEARNED.predict(Op(name, (t := tensor(1 << 20),), (t,)), GPUS[0])
        for name in ("aten.relu", "aten.i0")
    )
    assert known is not None
    assert rare is not None
    assert known.source == "learned"
    assert "unseen" in rare.source
    assert rare.high_s / rare.seconds > known.high_s / known.seconds


def test_a_gpu_whose_sms_are_not_known_gets_attainable_shares() -> None:
    unknown = dataclasses.replace(device("gb200"), sm_count=None)
    answer = LEARNED.predict(mm(1024, 1024, 1024), unknown)
    assert answer is not None
    assert answer.source == "attainable"


def test_copies_to_the_gpu_go_over_the_link() -> None:
    answer = LEARNED.predict(copy_to_gpu(1 << 24), device("h100-sxm-80gb"))
    assert answer is not None
    assert answer.source == "attainable"


def test_copies_of_pinned_memory_are_as_fast_as_the_link() -> None:
    pageable = copy_to_gpu(1 << 24)
    pinned = dataclasses.replace(pageable, attrs=(("pin_memory", True),))
    measured_s = {"h200-sxm": 1.25e-3}  # 64 MiB at 54 GB/s
    for gpu, expected_s in measured_s.items():
        assert seconds(pinned, gpu) == pytest.approx(expected_s, rel=0.15)
        assert seconds(pageable, gpu) > 3.0 * seconds(pinned, gpu)
    assert seconds(pageable, "p100-pcie-16gb") == seconds(pinned, "p100-pcie-16gb")


def test_groups_of_long_filters_follow_each_other() -> None:
    """Positions of wav2vec 2.0 in 16 bits: 12.8 ms on our H200, where 16 ordinary groups take 1."""
    image, weight = (tensor(8, 768, 499, dtype="float16"), tensor(768, 48, 128, dtype="float16"))
    attrs: tuple[tuple[str, Scalar], ...] = (("padding", (64,)), ("groups", 16))
    out = tensor(8, 768, 500, dtype="float16")
    long = Op("aten.convolution", (image, weight), (out,), attrs)
    assert seconds(long, "h200-sxm") == pytest.approx(12.8e-3, rel=0.25)
    short = dataclasses.replace(long, inputs=(image, tensor(768, 48, 31, dtype="float16")))
    assert seconds(short, "h200-sxm") < 0.5e-3


def test_groups_of_large_filters_of_images_run_together() -> None:
    """Two groups of 7 x 7 points backward: 86 us on our H200."""
    image, weight = tensor(32, 128, 9, 9, dtype="bfloat16"), tensor(128, 64, 7, 7, dtype="bfloat16")
    attrs: tuple[tuple[str, Scalar], ...] = (
        *(("padding", (3, 3)), ("groups", 2)),
        ("output_mask", (True, True, False)),
    )
    op = Op("aten.convolution_backward", (image, image, weight), (image, weight), attrs)
    assert seconds(op, "h200-sxm") == pytest.approx(86e-6, rel=0.6)


def test_the_learned_factor_is_bounded() -> None:
    gpu = gpu_of(device("rtx-3090"))
    assert gpu is not None
    for op, name in (
        (mm(640, 640, 640), "product"),
        (convolution(8, 64, 56, 64, 3), "convolution"),
    ):
        model = LEARNED.models[name]
        part = batch_of([op], {}).parts[name]
        bare = dataclasses.replace(model, forest=NOTHING, generations={})
        ratio = model.seconds(part.columns, gpu) / bare.seconds(part.columns, gpu)
        assert np.all(np.abs(np.log(ratio)) <= REACH + 1e-9)


def test_a_chips_trees_count_on_that_chip_only_and_are_bounded() -> None:
    part = batch_of([mm(640, 640, 640)], {}).parts["product"]
    anywhere = np.full(14, np.inf)
    far = Forest(
        np.zeros((1, 1), np.int64), np.zeros((1, 1)), np.full((1, 2), 5.0), -anywhere, anywhere
    )
    bare = dataclasses.replace(LEARNED.models["product"], chips={}, steps={})
    known = dataclasses.replace(bare, chips={"cores.Hopper.132": far})
    for name, factor in (("h200-sxm", math.exp(REACH)), ("h100-pcie-80gb", 1.0), ("t4", 1.0)):
        gpu = gpu_of(device(name))
        assert gpu is not None
        ratio = known.seconds(part.columns, gpu) / bare.seconds(part.columns, gpu)
        assert ratio == pytest.approx(factor)
    other_units = dataclasses.replace(bare, chips={"tensor.Hopper.132": far})
    gpu = gpu_of(device("h200-sxm"))
    assert gpu is not None
    assert other_units.seconds(part.columns, gpu) == bare.seconds(part.columns, gpu)


def test_a_chips_trees_count_little_for_filters_they_were_not_fitted_on() -> None:
    """The chip's trees were fitted on 3 x 3 filters and count a quarter for others.

    The rest is the term of the chip's generation. It is all that counts for groups.
    """
    anywhere = np.full(22, np.inf)
    seen = Forest(
        np.zeros((1, 1), np.int64),
        np.zeros((1, 1)),
        np.full((1, 2), 0.4),
        -anywhere,
        anywhere,
        families=np.array([[3.0, 0.0, 0.0]]),
        trust=0.25,
    )
    bare = dataclasses.replace(LEARNED.models["convolution"], chips={}, steps={})
    known = dataclasses.replace(bare, chips={"cores.Volta.80": seen}, steps={"cores.7": -0.2})
    gpu = gpu_of(device("v100-sxm-16gb"))
    assert gpu is not None
    for side, groups, offset in ((3, 1, 0.4), (4, 1, 0.1 - 0.15), (3, 2, -0.2)):
        image, weight = tensor(8, 64, 28, 28), tensor(64, 64 // groups, side, side)
        attrs = (("stride", (1, 1)), ("padding", (1, 1)), ("groups", groups))
        op = Op("aten.convolution", (image, weight), (image,), attrs)
        part = batch_of([op], {}).parts["convolution"]
        ratio = known.seconds(part.columns, gpu) / bare.seconds(part.columns, gpu)
        assert np.log(ratio) == pytest.approx(offset)


def test_a_chip_is_known_if_ops_of_all_kinds_were_measured_on_it() -> None:
    assert LEARNED.knows_chip(device("h200-sxm"))
    assert not LEARNED.knows_chip(device("v100-sxm-16gb"))  # neither attention nor depthwise
    assert not LEARNED.knows_chip(device("rtx-4090"))
    models = {name: dataclasses.replace(m, chips={}) for name, m in LEARNED.models.items()}
    assert not dataclasses.replace(LEARNED, models=models).knows_chip(device("h200-sxm"))


def test_how_well_a_gpu_is_known_depends_on_the_chips_that_were_measured() -> None:
    expected = {
        **{"h200-sxm": "measured", "h100-sxm-80gb": "measured", "h100-pcie-80gb": "unseen"},
        **{"v100-sxm-16gb": "partly", "a100-sxm-80gb": "partly", "rtx-a6000": "partly"},
        **{"rtx-3090": "unseen", "rtx-4090": "unseen", "rtx-2080-ti": "unseen"},
        **{"k80": "unseen", "mi300x": "foreign", "rx-6800": "foreign"},
    }
    assert {gpu: LEARNED.familiarity(device(gpu)) for gpu in expected} == expected
    nothing = dataclasses.replace(device("rtx-3090"), sm_count=None)
    assert LEARNED.gpu(nothing) is None
    assert LEARNED.familiarity(nothing) is None


def test_facts_that_a_device_lacks_are_said_to_be_assumed() -> None:
    card = device("rtx-3090")
    assert LEARNED.assumptions(card) == ()
    bare = dataclasses.replace(card, boost_clock_hz=None, l2_bytes=None, tdp_w=None)
    assert LEARNED.assumptions(bare) == (
        "its clock is not known; 1.6 GHz is assumed",
        "its power limit is not known; 300 W is assumed",
        "the size of its L2 is not known; 48 KiB for each SM is assumed",
    )
    [said] = LEARNED.assumptions(dataclasses.replace(bare, sm_count=None))
    assert said == "its number of SMs is not known, so that no op model can be used"


def test_gpus_of_another_vendor_are_said_not_to_be_verified() -> None:
    assert LEARNED.assumptions(device("mi300x")) == (
        "not verified: no op of AMD's GPUs is in the fit",
    )


def test_terms_of_a_generation_count_on_chips_without_trees() -> None:
    bare = dataclasses.replace(LEARNED.models["product"], chips={}, steps={})
    fitted = dataclasses.replace(
        bare, chips={"tensor.Turing.40": NOTHING}, steps={"tensor.7": 0.2, "cores.7": -0.1}
    )
    half = batch_of([mm(640, 640, 640, "float16")], {}).parts["product"]
    single = batch_of([mm(640, 640, 640)], {}).parts["product"]
    for name, part, offset in (
        ("titan-rtx", half, 0.2),
        ("v100-sxm-16gb", half, 0.2),
        ("titan-rtx", single, -0.1),
        ("t4", half, 0.0),  # its tensor cores are known
        ("t4", single, -0.1),
        ("rtx-3090", half, 0.0),
    ):
        gpu = gpu_of(device(name))
        assert gpu is not None
        ratio = fitted.seconds(part.columns, gpu) / bare.seconds(part.columns, gpu)
        assert np.log(ratio) == pytest.approx(offset)


def test_unaligned_rows_slow_fast_tensor_cores_and_hardly_slow_ones() -> None:
    def slowdown(name: str) -> float:
        gpu = gpu_of(device(name))
        assert gpu is not None
        model = dataclasses.replace(LEARNED.models["product"], forest=NOTHING, chips={}, steps={})
        part = batch_of([mm(4096, 4095, 4096, "float16"), mm(4096, 4096, 4096, "float16")], {})
        seconds = model.seconds(part.parts["product"].columns, gpu)
        return float(seconds[0] / seconds[1])

    assert slowdown("h200-sxm") > 3
    assert 1 <= slowdown("rtx-3090") < 1.3


def test_cards_for_consumers_run_tensor_cores_at_half_rate_and_keep_them_busy() -> None:
    for name, half in (("rtx-3090", True), ("rtx-a6000", False), ("rtx-2080-ti", True)):
        gpu = gpu_of(device(name))
        assert gpu is not None
        tensor_gain, plain_gain = (
            gpu.rates[CODES[unit]] / gpu.nominal_rates[CODES[unit]]
            for unit in (Unit.FP16_TENSOR, Unit.FP32)
        )
        assert (tensor_gain / plain_gain > 1.1) == half


def test_rows_of_several_gpus_get_the_trees_of_their_chips() -> None:
    facts = [gpu_of(device(name)) for name in ("h200-sxm", "t4", "a100-sxm-80gb")]
    known = [gpu_facts for gpu_facts in facts if gpu_facts is not None]
    part = batch_of([mm(640, 640, 640), mm(64, 64, 64), mm(4096, 4096, 64)], {}).parts["product"]
    model = LEARNED.models["product"]
    together = model.seconds(part.columns, joined(known, np.arange(3)))
    for row, gpu in enumerate(known):
        assert together[row] == pytest.approx(model.seconds(part.columns, gpu)[row])


def test_a_fit_is_stored_and_restored() -> None:
    fitted = {name: dataclasses.replace(m, steps={}) for name, m in LEARNED.models.items()}
    again = restored(stored(fitted), fitted)
    ops_ = [mm(640, 640, 640), convolution(8, 64, 56, 64, 3), relu(512, 512)]
    for name in ("h200-sxm", "t4", "rtx-4090"):
        gpu = gpu_of(device(name))
        assert gpu is not None
        batch = batch_of(ops_, fitted["stream"].families)
        assert np.array_equal(batch.seconds(again, gpu), batch.seconds(fitted, gpu))
    assert any(model.chips for model in again.values())


def test_every_part_has_the_columns_of_its_model() -> None:
    for op in (
        mm(8, 8, 8),
        relu(8, 8),
        convolution(2, 8, 8, 8, 3),
        convolution(2, 8, 8, 8, 3, groups=8),
    ):
        for part in parts_of(op):
            assert type(part.row) is ROW_TYPES[part.model]
            columns = columns_of([part.row, part.row])
            assert {name: values.tolist() for name, values in columns.items()} == {
                name: [float(value)] * 2 for name, value in part.row._asdict().items()
            }


@pytest.mark.parametrize("layers", [1, 3])
def test_a_recurrent_layer_is_its_steps_and_the_products_over_all_of_them(layers: int) -> None:
    steps, batch, inputs, hidden = 7, 5, 32, 16
    forward = recurrent(2, steps, batch, inputs, hidden, layers)
    backward = recurrent(2, steps, batch, inputs, hidden, layers, output_mask=(True, True))
    data = recurrent(2, steps, batch, inputs, hidden, layers, output_mask=(True, False))
    models = [[part.model for part in parts_of(op)] for op in (forward, data, backward)]
    assert models == [["recurrent", *["product"] * count] for count in (1, 1, 2)]
    for op in (forward, backward):
        flops = 0.0
        for part in parts_of(op):
            row = part.row
            if isinstance(row, ProductRow):
                flops += 2 * row.batch * row.m * row.n * row.k
            elif isinstance(row, RecurrentRow):  # each step multiplies the state
                flops += 2 * row.steps * row.batch * layers * row.gates * row.hidden**2
        assert flops == pytest.approx(ops.cost_of(op).flops, rel=0.15)  # type: ignore[union-attr]


def test_a_forest_adds_up_its_trees_and_fades_beyond_their_range() -> None:
    forest = Forest(
        np.array([[0, 1], [1, 0]]),
        np.array([[0.5, 0.5], [0.5, 0.5]]),
        np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 10.0, 20.0, 30.0]]),
        np.array([0.0, -np.inf]),
        np.array([1.0, np.inf]),
    )
    said = forest(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 99.0]]))
    assert said.tolist() == [0.0, 21.0, 12.0, 33.0, 33.0]
    beyond = forest(np.array([[2.0, 0.0], [4.0, 0.0], [99.0, 0.0]]))
    assert beyond.tolist() == pytest.approx([21.0 / 2, 21.0 / 8, 0.0])


def test_more_trees_add_up_with_the_first() -> None:
    features = np.linspace(0.0, 1.0, 40)[:, None]
    first, more = (
        Forest(
            np.zeros((1, 1), np.int64),
            np.array([[at]]),
            np.array([[0.0, answer]]),
            np.array([-np.inf]),
            np.array([np.inf]),
        )
        for at, answer in ((0.3, 1.0), (0.6, 10.0))
    )
    assert first.and_then(more)(features).tolist() == (first(features) + more(features)).tolist()
    assert first.and_then(NOTHING) is first
    assert NOTHING.and_then(more) is more


def test_later_trees_may_look_at_later_features() -> None:
    def split(feature: int, features: int) -> Forest:
        bounds = np.full(features, -np.inf), np.full(features, np.inf)
        return Forest(np.array([[feature]]), np.array([[0.5]]), np.array([[0.0, 1.0]]), *bounds)

    rows = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert split(0, 1)(rows).tolist() == [0.0, 0.0, 1.0]
    assert split(0, 1).and_then(split(1, 2))(rows).tolist() == [0.0, 1.0, 2.0]


# Published measurements, which are in the fit: mistakes of a factor show here, not the accuracy.
MEASURED = {
    # vidur (Agrawal et al., MLSys 2024), fp16
    "a40, a projection": ("a40", mm(2048, 4096, 12288, "float16"), 1.80e-3),
    "a40, few rows": ("a40", mm(128, 22016, 8192, "float16"), 0.711e-3),
    # DeepBench (Baidu), fp32; NeuSight (Lee et al., ASPLOS 2025), fp32
    "t4, a sum": ("t4", Op("aten.add.Tensor", (t := tensor(16384, 768), t), (t,)), 0.632e-3),
    "t4, a batched product": (
        "t4",
        Op("aten.bmm", (tensor(1024, 512, 512), tensor(1024, 512, 64)), (tensor(1024, 512, 64),)),
        10.07e-3,
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_ops_are_met_roughly(name: str) -> None:
    gpu, op, measured_s = MEASURED[name]
    answer = LEARNED.predict(op, device(gpu))
    assert answer is not None
    assert answer.low_s <= measured_s <= answer.high_s
    assert 0.6 < answer.seconds / measured_s < 1.6


@pytest.mark.parametrize("share", [0.6, 0.75, 0.9])
def test_large_products_run_at_the_rate_that_was_measured_on_this_very_gpu(share: float) -> None:
    """The rate is written into a device file by `wavecast calibrate`."""
    plain = device("v100-sxm-16gb")
    rate = share * plain.fp32_flops
    known = dataclasses.replace(plain, measured={"fp32_flops": Fact(rate, "calibrate")})
    side = TensorSpec((8192, 8192), "float32")
    product = Op("aten.mm", (side, side), (side,), (("precision", "ieee"),))
    answer = Learned.shipped().predict(product, known)
    assert answer is not None
    assert 2 * 8192**3 / answer.seconds == pytest.approx(rate, rel=0.02)
    untouched = Learned.shipped().predict(product, plain)
    assert untouched is not None
    assert untouched.seconds != pytest.approx(answer.seconds, rel=0.001)


def test_where_the_gpu_of_the_fit_was_calibrated_a_rate_counts_relative_to_it() -> None:
    """Products alone run slower than products in steps, by the same factor on both cards."""
    ours = device("h200-sxm")
    others = {name: fact for name, fact in ours.measured.items() if not name.endswith("_flops")}
    plain = dataclasses.replace(ours, measured=others)
    rate = ours.measured["bf16_tensor_flops"].value
    slower = dataclasses.replace(ours, measured={"bf16_tensor_flops": Fact(0.8 * rate, "mine")})
    side = TensorSpec((8192, 8192), "bfloat16")
    product = Op("aten.mm", (side, side), (side,))
    as_fitted, nominal, mine = (LEARNED.predict(product, card) for card in (ours, plain, slower))
    assert as_fitted is not None
    assert nominal is not None
    assert mine is not None
    assert as_fitted.seconds == pytest.approx(nominal.seconds, rel=1e-6)
    assert mine.seconds == pytest.approx(as_fitted.seconds / 0.8, rel=0.1)
    assert 2 * 8192**3 / as_fitted.seconds > 1.05 * rate
