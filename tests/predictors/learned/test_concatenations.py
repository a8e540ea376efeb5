"""The kernels of `cat`: which one torch takes, and how its time follows from its inputs."""

from __future__ import annotations

import pytest
from made import tensor

from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import ConcatenationRow
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.learned.streams import CONTIGUOUS, PIECES, STRIDED
from wavecast.traces.step import Op, TensorSpec

TOKENS = (64, 16, 2048, 128)
KEPT, NEW = tensor(64, 16, 2047, 128, dtype="bfloat16"), tensor(64, 16, 1, 128, dtype="bfloat16")
VIEW = TensorSpec(KEPT.shape, "bfloat16", (16 * 2048 * 128, 2048 * 128, 128, 1))
LAST = TensorSpec((8, 64, 32, 32), "float32", (65536, 1, 2048, 64))
WIDER = TensorSpec((8, 128, 32, 32), "float32", (131072, 1, 4096, 128))


def cat(*inputs: TensorSpec, out: TensorSpec, dim: int) -> Op:
    return Op("aten.cat", inputs, (out,), (("dim", dim),))


def seconds(op: Op, gpu: str = "h200-sxm") -> float:
    estimate = Learned.shipped().predict(op, device(gpu))
    assert estimate is not None
    return estimate.seconds


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (cat(KEPT, NEW, out=tensor(*TOKENS, dtype="bfloat16"), dim=-2), PIECES),
        (cat(VIEW, NEW, out=tensor(*TOKENS, dtype="bfloat16"), dim=-2), STRIDED),
        (cat(tensor(8, 3), tensor(8, 5), out=tensor(8, 8), dim=1), CONTIGUOUS),
        (cat(LAST, LAST, out=WIDER, dim=1), CONTIGUOUS),
    ],
)
def test_how_inputs_are_stored_chooses_the_kernel(op: Op, inputs: float) -> None:
    (part,) = parts_of(op)
    assert isinstance(part.row, ConcatenationRow)
    assert part.row.inputs == inputs


@pytest.mark.parametrize(
    "op",
    [
        cat(KEPT, tensor(64, 16, 1, 128), out=tensor(*TOKENS), dim=2),
        cat(*[tensor(2, 2, 2, 2, 2)] * 2, out=tensor(2, 2, 2, 2, 4), dim=4),
        cat(LAST, tensor(8, 64, 32, 32), out=WIDER, dim=1),
    ],
    ids=["types", "dimensions", "layouts"],
)
def test_inputs_that_no_kernel_takes_together_are_copies(op: Op) -> None:
    assert [part.model for part in parts_of(op)] == ["stream"]


def test_a_view_of_a_cache_takes_several_times_as_long_as_the_cache() -> None:
    """Measured: 0.64 TB/s with views (decodes, second round), 4 TB/s for contiguous tensors."""
    out = tensor(*TOKENS, dtype="bfloat16")
    whole, view = (seconds(cat(kept, NEW, out=out, dim=-2)) for kept in (KEPT, VIEW))
    moved = 2 * out.nbytes
    assert 0.5e12 < moved / view < 0.8e12
    assert moved / whole > 3 * moved / view


def test_short_inputs_beside_a_long_one_cost_their_empty_blocks() -> None:
    long, short = tensor(64, 512, 7, 7), tensor(64, 32, 7, 7)
    few = seconds(cat(long, *[short] * 4, out=tensor(64, 640, 7, 7), dim=1))
    many = seconds(cat(long, *[short] * 16, out=tensor(64, 1024, 7, 7), dim=1))
    assert many / few > 1024 / 640


def test_attention_of_one_query_takes_as_long_as_reading_keys_and_values() -> None:
    """Measured: 8.3 ms for a step of 24 layers that reads 26 GB (decodes, second round)."""
    query, pairs = tensor(64, 16, 1, 128, dtype="bfloat16"), tensor(*TOKENS, dtype="bfloat16")
    op = Op("aten._scaled_dot_product_cudnn_attention", (query, pairs, pairs), (query,))
    assert 24 * seconds(op) == pytest.approx(6.0e-3, rel=0.1)


def test_a_place_in_a_static_cache_costs_its_own_size() -> None:
    cache, index = tensor(*TOKENS, dtype="bfloat16"), TensorSpec((1,), "int64")
    op = Op("aten.index_copy_", (cache, index, NEW), (cache,), (("dim", 2),))
    assert seconds(op) < 1e-5
