"""Predicted workspaces, compared with those measured on an H200 and with general rules."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from wavecast import Device, device
from wavecast.footprint.convolution_workspaces import Convolution
from wavecast.footprint.memory import peak_bytes
from wavecast.footprint.reduction_workspaces import blas_bytes, recurrent_algorithm
from wavecast.footprint.replay import replay
from wavecast.footprint.workspaces import Constants, with_workspaces, workspaces_of
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, Scalar, TensorSpec, Trace

H200 = device("h200-sxm")
MIB = 1 << 20
Shape = tuple[int, ...]
ROUNDING = 0.01


def tensor(
    *shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None
) -> TensorSpec:
    return TensorSpec(shape, dtype, strides)


def taken(op: Op, gpu: Device = H200) -> int:
    workspaces = workspaces_of(op, gpu, Constants.shipped())
    return workspaces[-1].nbytes if workspaces else 0


def summed(source: TensorSpec, dim: int, name: str = "aten.sum.dim_IntList") -> Op:
    return Op(name, (source,), (source,), (("dim", (dim,)), ("keepdim", True)))


# Each measured by torch's allocator on the H200 (measurements/h200/suite).
@pytest.mark.parametrize(
    ("source", "dim", "nbytes"),
    [
        (tensor(6304, 3072), 0, 138412544),
        (tensor(2048, 3072), 0, 50332160),
        (tensor(4096, 2304, dtype="bfloat16"), 0, 75497984),
        (tensor(10014, 29, dtype="bfloat16"), 0, 37888),
        (tensor(512, 1280), 0, 0),
        (tensor(640, 30522), 0, 0),
        (tensor(4, 1280, 8, 8, dtype="bfloat16"), 2, 0),
    ],
)
def test_reductions_take_what_was_measured(source: TensorSpec, dim: int, nbytes: int) -> None:
    assert taken(summed(source, dim)) == pytest.approx(nbytes, rel=ROUNDING, abs=1024)


def attention(kind: str, *shape: int, dtype: str) -> Op:
    operand = tensor(*shape, dtype=dtype)
    name = f"aten._scaled_dot_product_{kind}_attention_backward.default"
    return Op(name, (operand,) * 4, (operand,) * 3)


@pytest.mark.parametrize(
    ("op", "nbytes"),
    [
        (attention("cudnn", 2, 32, 2048, 64, dtype="float16"), 34079232),
        (attention("cudnn", 64, 12, 197, 64, dtype="bfloat16"), 39337472),
        (attention("efficient", 64, 12, 197, 64, dtype="float32"), 50985984),
        (attention("efficient", 2, 8, 4096, 40, dtype="float32"), 17055744),
        (attention("efficient", 1, 8, 256, 160, dtype="float32"), 1582080),
    ],
    ids=str,
)
def test_attention_takes_what_was_measured(op: Op, nbytes: int) -> None:
    assert taken(op) == pytest.approx(nbytes, rel=0.02)


def embedding(indices: int, rows: int, width: int) -> Op:
    inputs = tensor(indices, width), tensor(indices, dtype="int64")
    attrs: tuple[tuple[str, Scalar], ...] = (("num_weights", rows),)
    return Op("aten.embedding_dense_backward.default", inputs, (tensor(rows, width),), attrs)


@pytest.mark.parametrize(
    ("op", "nbytes"),
    [
        (embedding(4096, 50257, 768), 14040576),
        (embedding(3200, 37000, 512), 7366144),
        (embedding(3840, 17188, 512), 8839168),
        (embedding(2048, 50257, 1024), 0),
    ],
)
def test_embeddings_sort_many_indices(op: Op, nbytes: int) -> None:
    workspaces = workspaces_of(op, H200, Constants.shipped())
    assert sum(
        workspace.nbytes for workspace in workspaces if not workspace.released_early
    ) == pytest.approx(nbytes, rel=0.01)


def test_rows_of_an_embedding_are_added_up_in_a_block_of_their_own() -> None:
    *_, places, rows = workspaces_of(embedding(22528, 20000, 1024), H200, Constants.shipped())
    assert (places.nbytes, rows.nbytes) == (178016, 91144192)  # as torch's allocator recorded it


def convolution(
    source: TensorSpec,
    weight: TensorSpec,
    output: TensorSpec,
    backward: bool = False,
    **attrs: Scalar,
) -> Op:
    every = {"stride": (1, 1), "padding": (1, 1), "transposed": False, "groups": 1, **attrs}
    if backward:
        every.setdefault("output_mask", (True, True, False))
        inputs, outputs = (output, source, weight), (source, weight)
        return Op("aten.convolution_backward.default", inputs, outputs, tuple(every.items()))
    return Op("aten.convolution.default", (source, weight), (output,), tuple(every.items()))


HALF = "bfloat16"
IMAGES = tensor(16, 128, 112, 112, dtype=HALF)
SQUARE = convolution(IMAGES, tensor(128, 128, 3, 3, dtype=HALF), IMAGES)


def test_tensor_cores_want_copies_in_channels_last() -> None:
    x, w, y = (t.nbytes for t in (*SQUARE.inputs, *SQUARE.outputs))
    assert taken(SQUARE) == x + w + y
    strides = (128 * 112 * 112, 1, 128 * 112, 128)
    last = replace(IMAGES, strides=strides)
    assert taken(convolution(last, SQUARE.inputs[1], last)) == 0


def test_channels_are_filled_up_to_what_tensor_cores_read() -> None:
    images = tensor(32, 3, 64, 64, dtype=HALF)
    output = tensor(32, 64, 64, 64, dtype=HALF)
    op = convolution(images, tensor(64, 3, 3, 3, dtype=HALF), output)
    filled = tensor(32, 8, 64, 64, dtype=HALF)
    assert Convolution.of(op, True).candidates()["images"] == filled.nbytes + output.nbytes


def test_a_pointwise_backward_keeps_a_weight_gradient_for_each_image() -> None:
    source, output = (tensor(64, c, 56, 56, dtype=HALF) for c in (256, 64))
    op = convolution(source, tensor(64, 256, 1, 1, dtype=HALF), output, True, padding=(0, 0))
    assert taken(op) == 4194304  # as measured


# The workspaces of vgg19 with 32 images in TF32: for image gradients, then weight gradients; MiB.
@pytest.mark.parametrize(
    ("channels", "side", "images", "weights"),
    [(512, 28, 107.0, 115.25), (256, 56, 198.25, 205.0), (128, 112, 392.56, 400.44)],
)
def test_a_backward_pass_is_two_convolutions_and_sums_weights_in_slices(
    channels: int, side: int, images: float, weights: float
) -> None:
    image = tensor(32, channels, side, side)
    weight = tensor(channels, channels, 3, 3)
    op = convolution(image, weight, image, True, precision="tf32")
    workspaces = workspaces_of(op, H200, Constants.shipped())
    assert [workspace.released_early for workspace in workspaces] == [True, False]
    assert [workspace.nbytes / MIB for workspace in workspaces] == pytest.approx(
        [images, weights], rel=0.001
    )
    only = convolution(
        image, weight, image, True, precision="tf32", output_mask=(True, False, False)
    )
    assert taken(only) / MIB == pytest.approx(images, rel=0.001)


def test_what_ends_within_its_call_is_replayed_but_not_counted_beside_what_follows() -> None:
    first = Allocation(100 * MIB, 0, 0, Role.WORKSPACE)
    second = Allocation(102 * MIB, 0, 1, Role.WORKSPACE)
    trace = Trace((product(Phase.FORWARD),), (first, second))
    assert peak_bytes(trace.allocations) == 102 * MIB
    peaks = replay(trace)
    assert peaks.allocated_bytes == 102 * MIB
    assert peaks.reserved_bytes == 202 * MIB  # the second does not fit into the first's segment


def recurrent(
    source: TensorSpec,
    hidden: int,
    mode: int = 2,
    layers: int = 1,
    both: bool = False,
    packed: int = 0,
    dropout: float = 0.0,
) -> Op:
    attrs: dict[str, Scalar] = {
        "mode": mode,
        "hidden_size": hidden,
        "num_layers": layers,
        "bidirectional": both,
        "batch_first": False,
        "dropout": dropout,
        "train": True,
    }
    states = (tensor(layers * (1 + both), packed, hidden),) if packed else ()
    return Op("aten._cudnn_rnn.default", (source, *states), (source,), tuple(attrs.items()))


# Requests to torch's allocator on the H200.
@pytest.mark.parametrize(
    ("op", "nbytes"),
    [
        (recurrent(tensor(128, 64, 1024), 1024, layers=3, dropout=0.2), 368575232),
        (recurrent(tensor(128, 176, 1024), 1024, layers=3, dropout=0.2), 793380480),
        (recurrent(tensor(128, 64, 1024, dtype=HALF), 1024, layers=3, dropout=0.2), 196870912),
        (recurrent(tensor(50, 32, 1024), 1024), 82706944),
        (recurrent(tensor(50, 128, 2048), 1024), 300418560),
        (recurrent(tensor(50, 128, 1024), 1024, both=True), 489686528),
        (recurrent(tensor(50, 128, 1024, dtype=HALF), 1024), 315622912),
        (recurrent(tensor(50, 128, 2048, dtype=HALF), 1024), 337118720),
        (recurrent(tensor(1628, 512, dtype=HALF), 512, both=True, packed=64), 46219776),
        (recurrent(tensor(831, 512), 512, both=True, packed=32), 55026176),
        (recurrent(tensor(5011, 1312), 1510, mode=1, both=True, packed=8), 232756224),
    ],
    ids=[
        *("three", "three of a large batch", "three half", "one", "wide", "both ways"),
        *("persistent", "persistent wide", "packed half", "packed", "plain"),
    ],
)
def test_recurrent_networks_take_what_was_measured(op: Op, nbytes: int) -> None:
    assert taken(op) == pytest.approx(nbytes, abs=512)  # which the allocator rounds to


def test_weights_stay_on_the_chip_of_one_small_layer_in_one_direction() -> None:
    source = tensor(50, 64, 1024, dtype=HALF)
    assert recurrent_algorithm(recurrent(source, 1024)) == "persistent"
    for other in (
        recurrent(source, 1024, layers=2),
        recurrent(source, 1024, both=True),
        recurrent(source, 1536),
        recurrent(replace(source, dtype="float32"), 1024),
        recurrent(tensor(3200, 1024, dtype=HALF), 1024),
        recurrent(source, 1024, mode=3),
        recurrent(tensor(50, 12, 1024, dtype=HALF), 1024),
        recurrent(tensor(50, 136, 1024, dtype=HALF), 1024),
    ):
        assert recurrent_algorithm(other) == "standard"


@pytest.mark.parametrize(
    ("mode", "forward", "backward"), [(0, 384, 256), (1, 384, 256), (2, 192, 128), (3, 192, 128)]
)
def test_small_weights_stay_on_the_chip_of_a_padded_batch(
    mode: int, forward: int, backward: int
) -> None:
    source = tensor(50, 64, 100)
    for name, most in (("aten._cudnn_rnn", forward), ("aten._cudnn_rnn_backward", backward)):
        for hidden, algorithm in ((most, "small"), (most + 1, "standard")):
            op = replace(recurrent(source, hidden, mode, layers=2, both=True), name=name)
            assert recurrent_algorithm(op) == algorithm
    packed = recurrent(tensor(3200, 100), 64, mode, packed=64)
    double = recurrent(tensor(50, 64, 100, dtype="float64"), 64, mode)
    assert recurrent_algorithm(packed) == recurrent_algorithm(double) == "standard"


def test_strict_float32_copies_nothing_forward() -> None:
    images = replace(IMAGES, dtype="float32")
    op = convolution(images, tensor(128, 128, 3, 3), images, precision="ieee")
    assert taken(op) == 0
    tf32 = convolution(images, tensor(128, 128, 3, 3), images, precision="tf32")
    assert taken(tf32) > 0
    assert taken(tf32, device("v100-sxm-32gb")) == 0  # it has no TF32 units


def last(*shape: int) -> TensorSpec:
    """A tensor in float32 whose channels lie next to each other."""
    _, channels, height, width = shape
    return tensor(*shape, strides=(height * width * channels, 1, width * channels, channels))


# Layers of AlexNet and SqueezeNet, compiled (measurements/h200/compiled/allocations.jsonl.gz).
@pytest.mark.parametrize(
    ("source", "weight", "output", "forward", "backward"),
    [
        ((128, 192, 13, 13), (384, 192, 3, 3), (128, 384, 13, 13), 52494352, 232980496),
        ((128, 384, 13, 13), (256, 384, 3, 3), (128, 256, 13, 13), 58916880, 261816336),
        ((64, 256, 27, 27), (32, 256, 1, 1), (64, 32, 27, 27), 53747728, 53747728),
        ((128, 3, 224, 224), (64, 3, 11, 11), (128, 64, 55, 55), 0, 0),
    ],
)
def test_strict_float32_copies_channels_last_tensors(
    source: tuple[int, ...],
    weight: tuple[int, ...],
    output: tuple[int, ...],
    forward: int,
    backward: int,
) -> None:
    tensors = last(*source), last(*weight), last(*output)
    assert taken(convolution(*tensors)) == pytest.approx(forward, abs=1024)
    assert taken(convolution(*tensors, backward=True)) == pytest.approx(backward, abs=1024)


def test_what_lies_scattered_is_copied() -> None:
    scattered = tensor(4, 256, 1280, strides=(256 * 1280, 1, 256))
    norm = Op("aten.native_layer_norm.default", (scattered, tensor(1280)), (scattered,))
    assert taken(norm) == scattered.nbytes
    assert taken(replace(norm, inputs=(tensor(4, 256, 1280),))) == 0


def product(phase: Phase, name: str = "aten.mm.default", stream: int = 0) -> Call:
    square = tensor(64, 64)
    return Call(Op(name, (square, square), (square,)), phase, stream=stream)


def test_each_thread_and_stream_keeps_a_buffer() -> None:
    forward, backward = product(Phase.FORWARD), product(Phase.BACKWARD)
    with_bias = product(Phase.FORWARD, "aten.addmm.default")
    assert blas_bytes(Trace((forward,)), H200) == (32 * MIB,)
    assert blas_bytes(Trace((forward, backward)), H200) == (32 * MIB, 32 * MIB)
    assert blas_bytes(Trace((with_bias, backward)), H200) == (32 * MIB, MIB, 32 * MIB)
    assert len(blas_bytes(Trace((forward, product(Phase.FORWARD, stream=1))), H200)) == 2
    assert blas_bytes(Trace((forward,)), device("a100-sxm-80gb")) == (8519680,)
    assert blas_bytes(Trace(()), H200) == ()


def step() -> Trace:
    calls = (product(Phase.FORWARD), Call(SQUARE, Phase.FORWARD), product(Phase.BACKWARD))
    return Trace(calls, allocations=(Allocation(1000, None, None, Role.PARAMETER),))


def test_workspaces_join_the_trace_and_live_as_long_as_their_call() -> None:
    complete = with_workspaces(step(), H200)
    added = [a for a in complete.allocations if a.role is Role.WORKSPACE]
    assert [(a.born, a.freed) for a in added] == [(None, None), (None, None), (1, 2)]
    assert peak_bytes(complete.allocations) == 1000 + 64 * MIB + taken(SQUARE)
    assert not complete.notes
    assert with_workspaces(complete, H200) is complete


def test_a_gpu_of_another_family_says_where_the_numbers_come_from() -> None:
    (note,) = with_workspaces(step(), device("a100-sxm-80gb")).notes
    assert "H200" in note


def test_a_gpu_without_cuda_has_unknown_workspaces() -> None:
    complete = with_workspaces(step(), device("mi300x"))
    assert complete.allocations == step().allocations
    assert "not known" in complete.notes[0]


@pytest.mark.parametrize(
    ("kind", "image", "weight", "out", "dtype", "mib"),
    [
        ("", (32, 3, 229, 229), (64, 3, 7, 7), (32, 64, 112, 112), "bfloat16", 25.65),
        ("", (64, 3, 224, 224), (384, 3, 16, 16), (64, 384, 14, 14), "bfloat16", 50.5),
        ("", (32, 256, 14, 14), (256, 256, 3, 3), (32, 256, 14, 14), "bfloat16", 0.0),
        ("volume", (4, 48, 65, 65, 65), (8, 48, 2, 2, 2), (4, 8, 64, 64, 64), "bfloat16", 116.58),
        ("volume", (48, 4, 65, 65, 65), (8, 4, 64, 64, 64), (48, 8, 2, 2, 2), "bfloat16", 233.15),
        ("depthwise", (64, 192, 28, 28), (192, 1, 7, 7), (64, 192, 28, 28), "bfloat16", 18.38),
        ("depthwise", (32, 192, 28, 28), (192, 1, 7, 7), (32, 192, 28, 28), "float32", 156.77),
        ("pixels", (32, 192, 28, 28), (192, 1, 9, 9), (32, 192, 28, 28), "bfloat16", 73.97),
        ("weight", (48, 3, 229, 229), (64, 3, 7, 7), (48, 64, 112, 112), "float32", 191.2),
        ("weight", (96, 192, 24, 24), (192, 192, 3, 3), (96, 192, 24, 24), "float32", 7.0),
    ],
)
def test_what_xla_chose_on_an_h200(
    kind: str, image: Shape, weight: Shape, out: Shape, dtype: str, mib: float
) -> None:
    """The workspaces in the HLO of measured steps (measurements/h200/jax)."""

    def laid_out(shape: Shape) -> TensorSpec:
        batch, *_ = (math.prod(shape[at + 1 :]) for at in range(len(shape)))
        steps = [math.prod(shape[at + 1 :]) * shape[1] for at in range(2, len(shape))]
        return TensorSpec(shape, dtype, None if kind == "volume" else (batch, 1, *steps))

    specs = [laid_out(shape) for shape in (image, weight, out)]
    backward = kind in ("depthwise", "weight")
    convolution = Convolution(
        backward=backward,
        tensor=True,
        source=specs[0],
        weight=specs[1],
        output=specs[2],
        stride=1,
        padding=0,
        groups=image[1] if kind in ("depthwise", "pixels") else 1,
        transposed=False,
        computes=(False, True, False),
    )
    assert convolution.tuned_bytes(132) / MIB == pytest.approx(mib, rel=0.07, abs=2.6)
