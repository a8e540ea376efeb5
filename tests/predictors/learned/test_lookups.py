"""Rows that are fetched and added by index: what physics says of the kernels that do it."""

from __future__ import annotations

import numpy as np
import pytest
from made import tensor

from wavecast.hardware.devices import device
from wavecast.predictors.learned import loop_kernels
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import StreamRow, columns_of
from wavecast.predictors.learned.fusions import FUSED_PARAMETERS, fused_s
from wavecast.predictors.learned.gpus import GpuFacts, gpu_of
from wavecast.predictors.learned.streams import STREAM_PARAMETERS, stream_limits
from wavecast.traces.step import Op, Scalar, TensorSpec


def our_gpu() -> GpuFacts:
    facts = gpu_of(device("h200-sxm"))
    assert facts is not None
    return facts


def row_of(op: Op) -> StreamRow:
    (part,) = parts_of(op)
    assert isinstance(part.row, StreamRow)
    return part.row


def seconds(op: Op) -> float:
    theta = {name: start for name, (start, _, _) in STREAM_PARAMETERS.items()}
    return float(stream_limits(columns_of([row_of(op)]), our_gpu(), theta).seconds()[0])


def index(*shape: int) -> TensorSpec:
    return tensor(*shape, dtype="int64")


def selected(rows: int, width: int, dim: int = 0) -> Op:
    out = tensor(rows, width)
    return Op("aten.index_select", (tensor(50_000, width), index(rows)), (out,), (("dim", dim),))


def test_a_row_in_one_piece_has_a_block() -> None:
    assert loop_kernels.fetched_rows(selected(1000, 16)) == (1000, 64)
    spread = TensorSpec((1000, 16), "int64", (1, 0))
    gather = Op("aten.gather", (tensor(50, 16), spread), (tensor(1000, 16),), (("dim", 0),))
    assert loop_kernels.fetched_rows(gather) == (1000, 64)
    elementwise = Op("aten.gather", (tensor(50, 16), index(1000, 16)), gather.outputs, gather.attrs)
    assert loop_kernels.fetched_rows(elementwise) is None
    assert loop_kernels.fetched_rows(selected(1000, 17)) is None  # rows begin anywhere
    assert loop_kernels.fetched_rows(selected(1000, 16, dim=1)) is None
    assert loop_kernels.blocks(selected(1000, 3000)) == 3 * 1000


@pytest.mark.parametrize("rows", [300_000, 1_500_000])
def test_narrow_rows_take_as_long_as_their_blocks(rows: int) -> None:
    """300,000 rows of 16 to 256 numbers took 182 us on our H200, five times as many 903 us."""
    times = [seconds(selected(rows, width)) for width in (16, 64)]
    assert times[1] < 1.2 * times[0]
    assert times[0] == pytest.approx(rows * 0.602e-9, rel=0.15)


def added(rows: int, places: int, width: int, dtype: str = "bfloat16") -> Op:
    target, values = tensor(places, width, dtype=dtype), tensor(rows, width, dtype=dtype)
    attrs: tuple[tuple[str, Scalar], ...] = (("accumulate", True),)
    return Op("aten.index_put", (target, index(rows), values), (target,), attrs)


@pytest.mark.parametrize(
    ("op", "measured_us"),
    [
        (added(4096, 8, 2816), 733),
        (added(16384, 4, 4096), 4154),
        (added(65536, 4, 2048, "float16"), 16432),
        (added(65536, 32, 768, "float32"), 1540),
    ],
)
def test_rows_of_one_place_are_added_one_after_the_other(op: Op, measured_us: float) -> None:
    assert seconds(op) == pytest.approx(measured_us * 1e-6, rel=0.3)


def test_single_elements_of_one_place_are_counted_one_by_one() -> None:
    """Biases of attention by relative position: 12 x 144 numbers at 144 x 144 took 99 us."""
    biases, indices = tensor(12, 144), index(144, 144)
    attrs: tuple[tuple[str, Scalar], ...] = (("accumulate", True),)
    op = Op("aten.index_put", (biases, indices, tensor(12, 144, 144)), (biases,), attrs)
    assert row_of(op).queued_clocks == loop_kernels.ADDED["single"] * 144
    assert seconds(op) == pytest.approx(99e-6, rel=0.4)


def test_the_largest_takes_more_additions_than_the_sum() -> None:
    spread = TensorSpec((1_500_000, 64), "int64", (1, 0))
    given = tensor(50_000, 64), spread, tensor(1_500_000, 64)
    total = Op("aten.scatter_add", given, given[:1], (("dim", 0),))
    largest = Op("aten.scatter_reduce", given, given[:1], (("dim", 0), ("reduce", "amax")))
    assert row_of(largest).atomic_adds > 2 * row_of(total).atomic_adds
    assert seconds(largest) > seconds(total)


def test_gradients_of_many_lookups_sort_them() -> None:
    def backward(lookup_count: int) -> StreamRow:
        given = tensor(lookup_count, 256), index(lookup_count)
        return row_of(Op("aten.embedding_dense_backward", given, (tensor(50_000, 256),)))

    few, many = backward(3000), backward(4000)
    assert few.serial_elements > 0 == many.serial_elements
    assert few.blocks == 0 < many.blocks
    assert few.elements == 3000 * 256  # the table is filled with zeros, many at a time


def test_loads_at_looked_up_places_take_one_number_each() -> None:
    names: dict[str, Scalar] = {
        **{"points": 184_800_000, "reduction": 1, "loads": 18.0, "arithmetic": 17.0},
        **{"read_bytes": 8_495_360, "write_bytes": 739_200_000},
    }
    theta = {name: start for name, (start, _, _) in FUSED_PARAMETERS.items()}

    def fused(looked_up: int) -> float:
        attrs = tuple({**names, "indirect_bytes": looked_up}.items())
        out = tensor(480_000, 385)
        (part,) = parts_of(Op("inductor.pointwise", (), (out,), attrs))
        return float(np.sum(fused_s(columns_of([part.row]), our_gpu(), theta)))

    assert fused(815_360) > 1.2 * fused(0)
