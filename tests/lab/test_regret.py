from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lab.score.regret import JobType, judge, table
from lab.steps.cluster_jobs import JOBS
from wavecast.planning.cost import Ranged


def job(batch: int, name: str = "LM", **measured_s: float) -> JobType:
    return JobType("gavel_sim", name, batch, measured_s)


def test_the_regret_is_what_the_choice_costs_more() -> None:
    measured = job(5, P100=1.0, V100=1.0)
    right = {"P100": Ranged(1.0, 0.9, 1.1), "V100": Ranged(1.0, 0.9, 1.1)}
    wrong = {"P100": Ranged(3.0, 2.9, 3.1), "V100": Ranged(1.0, 0.9, 1.1)}
    first, second = judge([(measured, right), (measured, wrong)])
    assert (first.chosen, first.plain) == ("P100", 0.0)
    assert (second.chosen, second.best) == ("V100", "P100")
    assert second.plain == pytest.approx(2.48 / 1.46 - 1)
    assert second.is_sure
    assert not second.holds_best


def test_a_factor_of_the_machine_comes_from_other_job_types() -> None:
    # The V100's machine is three times slower than predicted, as the other job type shows.
    fast = {"P100": Ranged(2.0), "V100": Ranged(1.0)}
    other = (job(16, "ResNet-50", P100=2.0, V100=3.0), fast)
    (found, _) = judge([(job(5, P100=2.0, V100=3.0), fast), other])
    assert found.plain > 0
    assert found.factored == 0
    assert found.is_odd


def test_the_table_has_a_row_for_each_job_type() -> None:
    fast = {"P100": Ranged(2.0), "V100": Ranged(1.0)}
    lines = list(table(judge([(job(5, P100=2.0, V100=1.0), fast)])))
    assert sum(line.startswith("| gavel: LM") for line in lines) == 1


@pytest.mark.parametrize("kind", ["LM", "Recommendation", "ResNet-18"])
def test_jobs_of_gavel_are_rebuilt(kind: str) -> None:
    import wavecast

    trace = wavecast.trace(lambda: JOBS["gavel_sim", kind](16, "fp32"), gpu="v100-sxm-16gb")
    assert wavecast.predict(trace, "v100-sxm-16gb").seconds > 0
