"""The blind steps: every one has its trace, none has a product of mixed dtypes, errors as shown."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.blind import FOLDER, rows
from training.host import LEASES
from training.op_data import HELD_OUT
from wavecast import ops
from wavecast.ops import Kind

ROWS = list(rows(on_their_hosts=False))


def test_no_fit_reads_them() -> None:
    assert FOLDER.name in HELD_OUT
    assert FOLDER.name not in LEASES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_products_are_of_one_dtype(row: object) -> None:
    for call in row.found.trace:  # type: ignore[attr-defined]
        if ops.kind(call.op) is Kind.MATMUL:
            assert len({each.dtype for each in call.op.inputs}) == 1


def test_the_gpus_time_is_met_as_the_page_says() -> None:
    assert len(ROWS) == 28
    assert statistics.mean(abs(row.gpu_error) for row in ROWS) < 0.13
    assert statistics.mean(row.within for row in ROWS) > 0.85
