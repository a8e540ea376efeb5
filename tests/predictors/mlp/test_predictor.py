"""Habitat's networks: the ops they answer, their answers, and their files."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from made import mm, relu, tensor, unknown, view

from lab.measured.op_makers import op_of
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.predictors.mlp import (
    DEVICE_FEATURES,
    KINDS,
    Bmm,
    Conv2d,
    Linear,
    Lstm,
    Mlp,
    MlpModel,
    MlpNetwork,
    device_features,
    features_of,
    layer_of,
    layer_type,
    read_model,
    rounded,
    sample,
    write_model,
)
from wavecast.traces.step import Op

V100, T4, A100 = (device(name) for name in ("v100-pcie-32gb", "t4", "a100-pcie-40gb"))
every_kind = pytest.mark.parametrize("kind", KINDS)


def network(
    kind: str, width: int = 8, seed: int = 0, constant_ms: float | None = None
) -> MlpNetwork:
    """Random weights, or zero weights with a constant output."""
    draw = np.random.default_rng(seed)
    inputs = len(layer_type(kind).names()) + len(DEVICE_FEATURES)
    sizes = [inputs, width, width, 1]
    weights = [
        (draw.normal(size=(out, n)).astype(np.float32), draw.normal(size=out).astype(np.float32))
        for n, out in pairwise(sizes)
    ]
    if constant_ms is not None:
        flat = np.zeros_like(weights[-1][0]), np.full(1, constant_ms, np.float32)
        weights[-1] = flat
    return MlpNetwork(np.zeros(inputs), np.full(inputs, 1e-3), tuple(weights))


def ranges(kind: str) -> dict[str, tuple[float, float]]:
    of_layer = {name: (float(a), float(b)) for name, (a, b) in layer_type(kind).ranges().items()}
    numbers = [device_features(gpu) for gpu in (V100, T4)]
    of_gpu = zip(DEVICE_FEATURES, zip(*(n for n in numbers if n), strict=True), strict=True)
    return of_layer | {name: (min(values), max(values)) for name, values in of_gpu}


def model(
    kind: str, target: str = "forward", ms: float | None = 1000.0, **changes: Any
) -> MlpModel:
    stored = MlpModel(kind, target, network(kind, constant_ms=ms), 0.5, 2.0, ranges(kind))
    return dataclasses.replace(stored, **changes)


EVERY = Mlp.of([model(kind) for kind in KINDS])


@every_kind
@pytest.mark.parametrize("target", ["forward", "backward"])
def test_an_op_is_read_as_the_layer_that_it_runs(kind: str, target: str) -> None:
    for layer in islice(sample(kind, 0), 50):
        assert layer_of(op_of(layer, target)) == layer


def test_products_of_backward_passes_are_linear_layers() -> None:
    assert layer_of(mm(64, 32, 16)) == Linear(False, 64, 32, 16)
    adding = Op("aten.baddbmm", (tensor(2, 3, 5), tensor(2, 3, 4), tensor(2, 4, 5)), ())
    assert layer_of(adding) == Bmm(2, 3, 4, 5)


def with_attrs(op: Op, **attrs: Any) -> Op:
    kept = tuple((name, value) for name, value in op.attrs if name not in attrs)
    return dataclasses.replace(op, attrs=(*kept, *attrs.items()))


CONV = op_of(Conv2d(False, 2, 8, 16, 16, 3, 1, 1))
LSTM = op_of(Lstm(True, False, 2, 4, 8, 16, 1))
MATRIX = tensor(4, 4)
NO_LAYERS = {
    "grouped": with_attrs(CONV, groups=2),
    "transposed": with_attrs(CONV, transposed=True),
    "dilated": with_attrs(CONV, dilation=(2, 2)),
    "uneven stride": with_attrs(CONV, stride=(1, 2)),
    "sizes that do not fit": with_attrs(CONV, padding=(0, 0)),
    "one-dimensional": Op("aten.convolution", (tensor(2, 3, 8), tensor(4, 3, 3)), (MATRIX,)),
    "no filters": Op("aten.convolution", (tensor(2, 3, 8, 8),), (MATRIX,)),
    "gru": with_attrs(LSTM, mode=3),
    "projected": with_attrs(LSTM, proj_size=4),
    "packed": dataclasses.replace(LSTM, inputs=(tensor(8, 8), *LSTM.inputs[1:])),
    "sum of matrices": Op("aten.addmm", (MATRIX, MATRIX, MATRIX), (MATRIX,)),
    "view": view(4, 4),
    "relu": relu(4, 4),
    "unknown": unknown(),
    "no rows": mm(0, 4, 4),
}


@pytest.mark.parametrize("op", NO_LAYERS.values(), ids=NO_LAYERS)
def test_other_ops_are_not_read_as_layers(op: Op) -> None:
    assert layer_of(op) is None
    assert EVERY.predict(op, V100) is None


def test_a_batch_first_lstm_is_the_same_layer() -> None:
    swapped = tensor(2, 4, 8)
    first = dataclasses.replace(LSTM, inputs=(swapped, *LSTM.inputs[1:]))
    assert layer_of(with_attrs(first, batch_first=True)) == layer_of(LSTM)


@every_kind
def test_the_answer_is_that_of_the_network(kind: str) -> None:
    op = op_of(next(sample(kind, 0)))
    answer = Mlp.of([model(kind, ms=500.0)]).predict(op, V100)
    assert answer is not None
    assert answer.source == "mlp"
    assert answer.seconds == pytest.approx(0.5)
    assert (answer.low_s, answer.high_s) == pytest.approx((0.25, 1.0))


gpus = st.sampled_from([V100, T4])
layers = st.builds(
    lambda kind, seed: next(sample(kind, seed)), st.sampled_from(sorted(KINDS)), st.integers(0, 999)
)


def test_an_answer_shorter_than_all_training_times_does_not_count() -> None:
    op = op_of(Linear(True, 64, 64, 64))
    assert Mlp.of([model("linear", ms=0.03, least_s=2e-5)]).predict(op, V100) is not None
    assert Mlp.of([model("linear", ms=0.01, least_s=2e-5)]).predict(op, V100) is None
    assert Mlp.of([model("linear", ms=-1.0)]).predict(op, V100) is None


def test_layers_outside_the_training_data_are_not_answered() -> None:
    assert EVERY.predict(op_of(Linear(True, 3500, 64, 64)), V100) is not None
    assert EVERY.predict(op_of(Linear(True, 3501, 64, 64)), V100) is None


def test_a_layer_measured_on_one_gpu_is_answered_on_that_gpu_alone() -> None:
    wide, narrow = {"batch": (1.0, 128.0)}, {"batch": (1.0, 8.0)}
    boxes = {V100.id: wide, T4.id: narrow, "p4": narrow}
    mlp = Mlp.of([model("bmm", by_gpu=boxes)])
    small, large = (op_of(Bmm(batch, 64, 64, 64), "forward") for batch in (8, 64))
    # On the V100 such layers were measured; elsewhere only where two GPUs were.
    assert mlp.predict(large, V100) is not None
    assert mlp.predict(large, T4) is None
    assert mlp.predict(large, A100) is None
    assert all(mlp.predict(small, gpu) is not None for gpu in (V100, T4, A100))
    assert mlp.ratio(large, V100, T4) is None
    assert Mlp.of([model("bmm")]).predict(large, A100) is not None


def test_the_shipped_lstm_networks_are_silent_where_they_were_off_by_hundreds_of_times() -> None:
    """LSTMs of several layers were measured on the H200 alone."""
    lstm = Lstm(True, False, 32, 50, 512, 512, 2)
    mlp = Mlp.shipped()
    for direction in ("forward", "backward"):
        op = op_of(lstm, direction)
        assert mlp.predict(op, device("h200-sxm")) is not None
        assert [mlp.predict(op, gpu) for gpu in (V100, T4, A100)] == [None] * 3


def test_gpus_far_from_the_training_data_are_not_answered() -> None:
    op = op_of(Linear(True, 64, 64, 64))
    assert EVERY.predict(op, A100) is not None  # 1.7 times the bandwidth of the V100
    assert EVERY.predict(op, device("h200-sxm")) is None
    assert EVERY.predict(op, device("mi100")) is None
    assert EVERY.predict(op, dataclasses.replace(V100, sm_count=None)) is None


def test_only_true_float32_is_answered() -> None:
    half = mm(64, 64, 64, "float16")
    assert EVERY.predict(half, V100) is None
    tf32, ieee = mm(64, 64, 64, precision="tf32"), mm(64, 64, 64, precision="ieee")
    assert EVERY.predict(ieee, A100) is not None
    assert EVERY.predict(tf32, A100) is None
    assert EVERY.predict(tf32, V100) is not None  # it has no TF32 and computes in float32


def test_a_backward_pass_has_a_network_that_answers_for_all_gradients_only() -> None:
    conv = Conv2d(False, 2, 8, 16, 16, 3, 1, 1)
    backward = op_of(conv, "backward")
    both = Mlp.of([model("conv2d"), model("conv2d", "backward", ms=700.0)])
    answer = both.predict(backward, V100)
    assert answer is not None
    assert answer.seconds == pytest.approx(0.7)
    assert EVERY.predict(backward, V100) is None
    weights_alone = with_attrs(backward, output_mask=(False, True, False))
    assert both.predict(weights_alone, V100) is None


def test_a_network_computes_each_answer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    answering = MlpNetwork.milliseconds

    def counting(self: MlpNetwork, features: Any) -> Any:
        asked.append(len(features))
        return answering(self, features)

    monkeypatch.setattr(MlpNetwork, "milliseconds", counting)
    mlp, op = Mlp.of([model("linear")]), op_of(Linear(True, 8, 8, 8))
    assert mlp.predict_all([op, op], V100) == [mlp.predict(op, V100)] * 2
    assert asked == [1]


def test_a_ratio_is_the_quotient_of_two_answers() -> None:
    """A network whose answer is the number of SMs."""
    sums = np.zeros((1, 8), np.float32)
    sums[0, 6] = 1
    counting = MlpNetwork(np.zeros(8), np.ones(8), ((sums, np.zeros(1, np.float32)),))
    mlp = Mlp.of([dataclasses.replace(model("linear"), network=counting)])
    op = op_of(Linear(True, 8, 8, 8))
    assert mlp.ratio(op, T4, V100) == pytest.approx(80 / 40)
    assert mlp.ratio(op, V100, T4) == pytest.approx(40 / 80)
    assert mlp.ratio(op, T4, device("h200-sxm")) is None
    assert mlp.ratio(relu(8), T4, V100) is None


def test_the_backward_ratio_is_the_forward_one_if_only_that_was_trained() -> None:
    backward = op_of(Conv2d(False, 2, 8, 16, 16, 3, 1, 1), "backward")
    assert EVERY.ratio(backward, T4, V100) == 1


def card(kind: str = "bmm") -> dict[str, Any]:
    return {
        "kind": kind,
        "target": "forward",
        "low": 1.2,
        "high": 3.0,
        "least_s": 2e-5,
        "vendors": ["NVIDIA"],
        "left_out": {"t4": 12.5},
        "ranges": {name: list(ends) for name, ends in ranges(kind).items()},
    }


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, written = tmp_path / "mlp-bmm.npz", network("bmm")
    write_model(path, written, card())
    loaded = read_model(path)
    assert (loaded.kind, loaded.target, loaded.least_s) == ("bmm", "forward", 2e-5)
    assert (loaded.low, loaded.high) == (1.0, 3.0)  # the answer itself is within its range
    assert loaded.ranges == ranges("bmm")
    numbers = device_features(V100)
    assert numbers is not None
    rows = np.array([features_of(layer, numbers) for layer in islice(sample("bmm", 0), 20)])
    assert loaded.network.milliseconds(rows) == pytest.approx(written.milliseconds(rows), rel=0.02)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [(b"", ""), (b"not a zip", 'kind = "bmm"'), (b"", "= ="), (b"\x80\x04K\x01.", "")],
)
def test_files_that_are_not_models_are_refused(arrays: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(arrays)
    path.with_suffix(".toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"not a model|is not TOML"):
        read_model(path)


def test_ranges_by_gpu_are_read_as_they_were_written(tmp_path: Path) -> None:
    boxes = {"h200-sxm": {"batch": (1.0, 64.0)}, 'a "b"': {"batch": (2.0, 3.0)}}
    write_model(tmp_path / "bmm.npz", network("bmm"), {**card(), "by_gpu": boxes})
    (read,) = Mlp.read([tmp_path / "bmm.npz"]).models.values()
    assert read.by_gpu == boxes


@pytest.mark.parametrize("wrong", [{"p4": {"height": [1, 2]}}, {"p4": {"batch": [1]}}, 3])
def test_wrong_ranges_by_gpu_are_refused(wrong: object, tmp_path: Path) -> None:
    path = tmp_path / "bmm.npz"
    write_model(path, network("bmm"), {**card(), "by_gpu": wrong})
    with pytest.raises(InvalidInput, match="not a model"):
        read_model(path)


def test_objects_in_a_file_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, mean=np.array([{"a": 1}], dtype=object))
    path.with_suffix(".toml").write_text("")
    with pytest.raises(InvalidInput, match="not a model"):
        read_model(path)


WRONG = [1, "x", [], [[]], {}, float("nan"), float("inf"), True, "9" * 5000]


@pytest.mark.parametrize("field", ["kind", "target", "low", "high", "least_s", "vendors", "ranges"])
@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:10])
def test_a_card_with_a_wrong_type_is_refused_or_read(
    field: str, value: object, tmp_path: Path
) -> None:
    path = tmp_path / "mlp-bmm.npz"
    write_model(path, network("bmm"), card())
    text = path.with_suffix(".toml").read_text().splitlines()
    ranges_at = text.index("[ranges]")
    keep = [row for row in text[: ranges_at - 1] if not row.startswith(f"{field} ")]
    shown = {"nan": "nan", "inf": "inf", "True": "true"}.get(str(value), json.dumps(value))
    tail = text[ranges_at:] if field != "ranges" else []
    wrong = f"{field} = {'{}' if value == {} else shown}"
    path.with_suffix(".toml").write_text("\n".join([wrong, *keep, *tail]) + "\n")
    try:
        model = read_model(path)
    except InvalidInput:
        return
    # A text that is a kind, a number that is a bound.
    assert isinstance(model.kind, str)
    assert isinstance(model.low, float)
    assert math.isfinite(model.high)


def test_arrays_that_unpack_to_too_much_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mlp-bmm.npz"
    write_model(path, network("bmm"), card())
    np.savez_compressed(path, mean=np.zeros(1 << 25))  # 256 MiB
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InvalidInput, match=r"not a model.*bytes"):
        read_model(path)
    np.savez_compressed(path, mean=np.zeros(3), scale=np.zeros(3), matrix0=np.zeros((1, 2)))
    with pytest.raises(InvalidInput, match="not a model"):
        read_model(path)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_network_is_read_as_it_was_rounded(tmp_path: Path, bits: int) -> None:
    draw = np.random.default_rng(0)
    sizes = [(5, 3), (4, 5), (1, 4)]
    weights = tuple(
        (draw.normal(size=size).astype(np.float32), draw.normal(size=size[0]).astype(np.float32))
        for size in sizes
    )
    weights[1][0][2] = 0  # a row of zeros has no largest weight to divide by
    network = MlpNetwork(np.zeros(3), np.ones(3), weights)
    expected = rounded(network, bits)
    names = "abc"
    card = {
        **{"kind": "linear", "target": "forward", "low": 0.5, "high": 2.0, "least_s": 0.0},
        **{"vendors": ["NVIDIA"], "ranges": {name: [0.0, 1.0] for name in names}},
    }
    write_model(tmp_path / "network.npz", network, card, bits)
    restored = read_model(tmp_path / "network.npz").network
    for (matrix, bias), (wanted, wanted_bias), (exact, _) in zip(
        restored.weights, expected.weights, weights, strict=True
    ):
        assert np.array_equal(matrix, wanted)
        assert np.array_equal(bias, wanted_bias)
        assert np.abs(matrix - exact).max() <= np.abs(exact).max() / 2 ** (7 if bits == 8 else 10)


def test_shipped_networks_are_small_and_name_their_data() -> None:
    folder = Path(__file__).parents[3] / "src" / "wavecast" / "data" / "models"
    shipped = sorted(folder.glob("mlp-*.npz"))
    assert len(shipped) == len(Mlp.shipped().models) == 6
    for path in shipped:
        assert path.stat().st_size < 1.3e6
        text = path.with_suffix(".toml").read_text()
        for key in ("fitted", "data_sha256", "rows", "gpus", "configuration_error", "[left_out]"):
            assert key in text
    for (kind, target), network_model in Mlp.shipped().models.items():
        assert (network_model.kind, network_model.target) == (kind, target)
        names = (*layer_type(kind).names(), *DEVICE_FEATURES)
        assert tuple(network_model.ranges) == names
        assert network_model.network.weights[0][0].shape[1] == len(names)


@pytest.mark.parametrize("ms", [math.inf, math.nan])
def test_an_answer_that_is_not_finite_does_not_count(ms: float) -> None:
    networks = Mlp.of([model("linear", ms=ms)])
    op = op_of(Linear(True, 64, 64, 64))
    assert networks.predict(op, V100) is None
    assert networks.ratio(op, V100, V100) is None


def test_a_network_that_overflows_gives_no_warning() -> None:
    weights = ((np.full((1, 1), 3e38, np.float32), np.zeros(1, np.float32)),) * 2
    network = MlpNetwork(np.zeros(1), np.ones(1), weights)
    assert network.milliseconds(np.array([[10.0]])).tolist() == [math.inf]
