"""The blind test: no fit reads its steps, products have one dtype, and pages show its errors."""

from __future__ import annotations

import pytest

from lab.figures import percent, recorded
from lab.fit.host import LEASES
from lab.measured.op_data import HELD_OUT
from lab.measured.timed import BLIND
from lab.places import DOCS
from lab.score.blind import figures_of, rows, table
from wavecast import ops
from wavecast.ops import Kind


def test_no_fit_reads_them() -> None:
    assert BLIND.name in HELD_OUT
    assert BLIND.name not in LEASES


def test_products_are_of_one_dtype() -> None:
    products = [
        (row.name, {tensor.dtype for tensor in call.op.inputs})
        for row in rows()
        for call in row.prediction.trace
        if ops.kind(call.op) is Kind.MATMUL
    ]
    assert products
    assert [(name, dtypes) for name, dtypes in products if len(dtypes) > 1] == []


def test_the_pages_show_the_errors() -> None:
    assert "\n".join(table()) in (DOCS / "appendix" / "accuracy-blind.md").read_text()
    scores, kept = figures_of(rows()), recorded()["h200 GPU time, blind models"]
    assert scores.count == kept.count
    assert scores.cells()[0] == percent(kept.mean)
    assert scores.in_range == pytest.approx(kept.in_range, abs=1e-5)
