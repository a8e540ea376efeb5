"""The blind test: no fit reads its steps, products have one dtype, and pages show its errors."""

from __future__ import annotations

from lab.fit.host import LEASES
from lab.measured.figures import percent
from lab.measured.op_data import HELD_OUT
from lab.measured.timed import BLIND
from lab.places import DOCS, H200, ROOT
from lab.score import blind_3, blind_4, blind_5, blind_tests, pages
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
    scores = figures_of(rows())
    cells = (percent(scores.mean), percent(scores.worst), percent(scores.in_range))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"models never seen: {scores.count} steps | {' | '.join(cells)} |" in readme


def test_the_page_shows_each_test_as_its_predictions_were_committed() -> None:
    page = DOCS / "appendix" / "accuracy-blind.md"
    found = {
        "third test": list(blind_3.steps()),
        "fourth test": list(blind_4.steps(H200 / "blind_4")),
        "fifth test": [step for half in blind_5.HALVES for step in blind_4.steps(half)],
    }
    for mark, steps in found.items():
        assert pages.section(page, mark) == "\n".join(blind_3.table(steps))


def test_the_readme_sums_up_all_blind_tests() -> None:
    assert pages.section(blind_tests.README, blind_tests.MARK) == blind_tests.table()
