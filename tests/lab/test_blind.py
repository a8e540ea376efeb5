"""The blind test: no fit reads its steps, products have one dtype, and pages show its errors."""

from __future__ import annotations

import pytest

from lab.fit.host import LEASES
from lab.measured.figures import percent
from lab.measured.op_data import HELD_OUT
from lab.measured.timed import BLIND
from lab.places import DOCS, ROOT
from lab.score.blind import BlindRow, figures_of, rows, table
from wavecast import ops
from wavecast.ops import Kind

ROWS = list(rows())


def test_no_fit_reads_them() -> None:
    assert BLIND.name in HELD_OUT
    assert BLIND.name not in LEASES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_products_are_of_one_dtype(row: BlindRow) -> None:
    for call in row.found.trace:
        if ops.kind(call.op) is Kind.MATMUL:
            assert len({tensor.dtype for tensor in call.op.inputs}) == 1


def test_the_pages_show_the_errors() -> None:
    assert "\n".join(table()) in (DOCS / "appendix" / "accuracy-blind.md").read_text()
    scores = figures_of(ROWS)
    cells = (percent(scores.mean), percent(scores.worst), percent(scores.in_range))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"models never seen: {scores.count} steps | {' | '.join(cells)} |" in readme
