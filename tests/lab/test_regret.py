from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from lab.measured.cluster_jobs import JobType, job_types
from lab.score.regret import GPUS, judge, ratios, table
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
    assert not found.is_settled  # a V100 is not slower than a P100


def test_the_table_has_a_row_for_each_job_type() -> None:
    fast = {"P100": Ranged(2.0), "V100": Ranged(1.0)}
    regrets = judge([(job(5, P100=2.0, V100=1.0), fast)])
    assert sum(line.startswith("| gavel_sim LM | 1 ") for line in table(regrets)) == 1
    assert any("V100 1000 / 1000" in line for line in ratios(regrets))


def test_measurements_that_differ_settle_nothing(tmp_path: Path) -> None:
    columns = "set,job_type,batch,gpu,n_gpu,placement,iterations_per_s,sync_s"
    rows = [columns]
    for source, v100 in (("gavel_sim", 2), ("gavel_phys", 4)):
        rows += [f"{source},LM,5,P100,1,consolidated,2,", f"{source},LM,5,V100,1,,{v100},"]
    (tmp_path / "throughputs.csv").write_text("\n".join(rows), encoding="utf-8")
    found = job_types(tmp_path, JOBS, GPUS)
    assert [one.source for one in found] == ["gavel_sim", "gavel_phys"]
    assert {one.spread for one in found} == {2.0}
    fast = {"P100": Ranged(0.5), "V100": Ranged(0.25)}
    regrets = judge([(one, fast) for one in found])
    assert not any(regret.is_settled for regret in regrets)
    # By the first table the P100 is cheaper; by the second, the V100 is.
    assert any("paying by another: 2, mean regret" in line for line in table(regrets))


@pytest.mark.parametrize("kind", ["LM", "Recommendation", "ResNet-18"])
def test_jobs_of_gavel_are_rebuilt(kind: str) -> None:
    import wavecast

    trace = wavecast.trace(lambda: JOBS["gavel", kind](16, "fp32"), gpu="v100-sxm-16gb")
    assert wavecast.predict(trace, "v100-sxm-16gb").seconds > 0
