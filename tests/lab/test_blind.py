"""The blind test: no fit reads its steps, products have one dtype, and pages show its errors."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lab import pages
from lab.fit.host import LEASES
from lab.measured.figures import percent, recorded
from lab.measured.op_data import HELD_OUT
from lab.measured.timed import BLIND
from lab.places import DOCS
from lab.score import blind_torch
from lab.score.blind import figures_of, rows, table
from lab.scores import Table
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


def _on_pages(tables: Iterable[Table]) -> bool:
    return all(
        table.page and pages.section(table.page, table.mark) == table.text for table in tables
    )


@pytest.mark.parametrize("name", blind_torch.NAMES)
def test_the_page_shows_each_test_of_torch(name: str) -> None:
    assert _on_pages(blind_torch.tables([name]))


def test_the_page_shows_the_revisited_steps() -> None:
    assert _on_pages(blind_torch.of_revisited())


def test_the_readme_sums_up_all_blind_tests() -> None:
    assert _on_pages(blind_torch.of_all_tests())
