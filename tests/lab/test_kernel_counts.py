"""The number of kernels of an op agrees with the counts in measured traces."""

from __future__ import annotations

import statistics

import pytest
from made import tensor

from lab.fit.kernel_counts import counts
from lab.measured import campaigns
from wavecast import ops
from wavecast.ops.costs import COUNTED, SORTING, UNSORTED_LOOKUPS
from wavecast.traces.step import Op

SEEN = counts(
    campaigns.traces("suite")[name]
    for name in ("dlrm-b512-fp32", "a3c-b4-fp32", "bert-base-b8-bf16", "nmt-b32-fp32")
)


VARIED = {
    "aten.embedding_dense_backward": (2, 32),  # more where it sorts
    "aten._scaled_dot_product_cudnn_attention": (2, 3),  # one more for dropout
    "aten._pack_padded_sequence": (5, 17),  # one for every two lengths
}


@pytest.mark.parametrize("name", sorted(SEEN.keys() & COUNTED.keys() - VARIED.keys()))
def test_an_op_has_the_kernels_that_were_seen(name: str) -> None:
    assert statistics.median(SEEN[name]) == COUNTED[name]


@pytest.mark.parametrize(("name", "seen"), VARIED.items())
def test_where_kernels_vary_the_count_is_among_those_seen(name: str, seen: tuple[int, int]) -> None:
    fewest, most = seen
    assert fewest <= COUNTED[name] <= most
    assert all(fewest <= count <= most for count in SEEN[name])


def test_enough_ops_are_compared() -> None:
    assert len(SEEN.keys() & COUNTED.keys()) >= 10


@pytest.mark.parametrize(("lookups", "kernels"), [(UNSORTED_LOOKUPS, 2), (4096, SORTING)])
def test_the_gradient_of_an_embedding_sorts_many_lookups(lookups: int, kernels: int) -> None:
    places = tensor(lookups, dtype="int64")
    op = Op("aten.embedding_dense_backward", (tensor(lookups, 8), places), (tensor(100, 8),))
    assert ops.kernels(op) == kernels


def test_an_op_on_an_empty_tensor_has_no_kernel() -> None:
    assert ops.kernels(Op("aten.masked_fill.Scalar", (tensor(0),), (tensor(0),))) == 0
