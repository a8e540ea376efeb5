"""A machine's host factor comes from other families of models, and from no other machine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lab.measured.public_steps.case import Case
from lab.score.machine_hosts import FACTORS, HostRow, judged, table


def row(family: str, measured_s: float, gpu: str = "rtx-2080-ti", set: str = "torchcnn") -> HostRow:
    """A step that waits for the host all the time."""
    case = Case(
        set=f"{set} infer",
        gpu=gpu,
        model=family,
        family=family,
        precision="fp32",
        batch=1,
        layout="",
        measured_s=measured_s,
        make_step=lambda: lambda: None,
    )
    return HostRow(case, 1.0, FACTORS * 1.0)


def test_the_family_itself_and_other_machines_do_not_count() -> None:
    slow, fast = float(FACTORS[-1]), float(FACTORS[2])
    rows = [row("vgg", slow), row("resnet", fast), row("alexnet", fast), row("vgg", slow, "t4")]
    rows.append(row("resnet", slow, "t4"))
    factors = {
        (judged_row.case.family, judged_row.case.gpu): factor
        for judged_row, factor, _ in judged(rows)
    }
    assert factors["vgg", "rtx-2080-ti"] == pytest.approx(fast)
    assert factors["vgg", "t4"] == pytest.approx(slow)


def test_the_table_shows_both_errors() -> None:
    measured = float(FACTORS[2])
    rows = [row("vgg", measured), row("resnet", measured)]
    lines = list(table(rows))
    before = abs(1.0 / measured - 1)
    assert lines[-1].startswith(f"| torchcnn rtx-2080-ti | 2 | {before:.1%}")
    assert f"| 0.0% | 0.0% | {measured:.2f} |" in lines[-1]
