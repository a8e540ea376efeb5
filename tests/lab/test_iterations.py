"""Iterations timed before any profiler ran: which files are read, and what fits may use."""

from __future__ import annotations

import json
import statistics

import pytest

import wavecast
from lab.fit.host import LEASES, host_bound, machine_factor, read, reference_of
from lab.measured import timed
from lab.measured.op_data import HELD_OUT
from lab.measured.timed import (
    FOLDER,
    all_machines,
    asked_of,
    blind_trace,
    machines,
    suite_steps,
    unseen_machines,
)
from lab.places import DOCS
from lab.score.iterations import (
    AT_START,
    REFERENCE,
    THROUGHOUT,
    IterationRow,
    hosts_of,
    noise,
    table,
)
from wavecast import suite
from wavecast.hardware.kept_hosts import factor_of

MACHINES = machines()


def test_no_fit_of_ops_reads_them() -> None:
    assert FOLDER.name in HELD_OUT
    assert FOLDER.name not in LEASES


def test_every_benchmark_comes_in_every_precision_and_the_order_is_drawn_once() -> None:
    names = [name for name, _ in suite_steps()]
    assert names == [name for name, _ in suite_steps()]
    assert len(names) == len(set(names))
    pairs = {(name.split()[0], name.split()[2]) for name in names}
    assert pairs == {(b.name, p) for b in suite.benchmarks() for p in suite.PRECISIONS}


def test_the_files_have_what_was_timed() -> None:
    assert [(machine.name, len(machine.steps)) for machine in MACHINES] == [
        ("third", 69),
        ("fourth", 67),
        ("fifth", 50),
        ("eighth", 120),
        ("ninth", 120),
    ]
    for machine in MACHINES:
        assert all(step.seconds > 0 and step.gpu_s > 0 and step.asked for step in machine.steps)


@pytest.mark.slow
def test_machines_that_judge_are_in_no_fit() -> None:
    unseen = unseen_machines()
    assert [(m.name, len(m.steps), m.profiled) for m in unseen] == [
        ("tenth", 120, False),
        ("eleventh", 120, False),
    ]
    names = {machine.name for machine in unseen}
    assert not names & {machine.name for machine in all_machines()}
    assert not names & set(read().leases)


def test_machines_profiled_by_mistake_are_used_for_costs_only() -> None:
    slowed = {machine.name for machine in all_machines() if machine.profiled}
    assert slowed == {"sixth", "seventh"}
    assert not slowed & {machine.name for machine in MACHINES}
    assert slowed <= set(read().leases)


def test_several_timings_count_by_their_median(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads((FOLDER / "eighth.json").read_text(encoding="utf-8"))
    name, step = next(iter(whole["steps"].items()))
    whole["steps"] = {name: step | {"timings_s": [0.1, 0.4, 0.2]}}
    monkeypatch.setattr(timed, "documents", lambda _: {"eighth": whole})
    monkeypatch.setattr(timed, "busy_s", lambda: {name: 0.01})
    (step_read,) = timed.machines()[0].steps
    assert step_read.seconds == 0.2
    assert step_read.apart == pytest.approx((3.0 + 0.5) / 2)


def test_the_files_count_how_often_steps_need_host_costs() -> None:
    kept = [
        (step, trace)
        for machine in MACHINES
        for step in machine.steps
        if (trace := blind_trace(step.name)) is not None
    ]
    assert len(kept) == 47
    # When the files were written, recomputed ops were counted as backward ones, and views that
    # `linear` makes without autograd as views of Python code.
    plain = [(s, t) for s, t in kept if "checkpointed" not in s.name and "infer" not in s.name]
    for step, trace in plain[::4]:
        assert asked_of(trace) == step.asked, step.name


def test_a_small_step_of_the_suite_is_counted_as_it_is_traced() -> None:
    pytest.importorskip("torch")
    step = next(s for m in MACHINES for s in m.steps if s.name == "dlrm b512 fp32")
    make = dict(suite_steps())[step.name]
    assert asked_of(wavecast.trace(make, gpu="h200-sxm")) == step.asked


def test_a_host_that_is_calibrated_throughout_is_the_median_of_all_times() -> None:
    for machine in MACHINES:
        every = [machine.start["cuda"], *machine.beside]
        for name, seconds in machine.throughout.items():
            assert seconds == statistics.median(times[name] for times in every)


def test_a_machines_host_is_predicted_without_its_own_steps() -> None:
    machine, *others = MACHINES
    fitted = read()
    slow = fitted.where(fitted.leases != machine.name)
    hosts = hosts_of(machine, fitted, others)
    assert hosts == hosts_of(machine, slow, others)
    assert not hosts[REFERENCE].known
    assert hosts[AT_START].known
    assert hosts[THROUGHOUT].known


def test_the_reference_is_met_by_the_machines_it_is_from() -> None:
    reference = reference_of(MACHINES)["cuda"]
    factors = [
        factor_of(machine.throughout, reference) / machine_factor(machine) for machine in MACHINES
    ]
    assert statistics.geometric_mean(factors) == pytest.approx(1.0, abs=0.05)
    assert all(0.9 < factor < 1.1 for factor in factors)


def test_a_factor_is_of_steps_that_wait_for_the_host() -> None:
    for machine in MACHINES:
        assert 15 < len(host_bound(machine)) < len(machine.steps)
        assert 0.7 < machine_factor(machine) < 1.4


def test_the_page_says_how_hosts_and_steps_vary() -> None:
    page = DOCS / "appendix" / "accuracy-hosts.md"
    assert "\n".join(noise()) in page.read_text(encoding="utf-8")
    assert [all(s.apart is None for s in machine.steps) for machine in MACHINES] == [1, 0, 0, 0, 0]


def test_machines_in_no_fit_have_a_line_of_their_own() -> None:
    rows = [
        IterationRow("a", THROUGHOUT, True, e, e < 0.15, 2.0, unseen=e > 0.1) for e in (0.1, 0.2)
    ]
    rows += [IterationRow("a", THROUGHOUT, False, 0.3, within=False, host_over_gpu=2.0)]
    lines = list(table(rows))
    assert lines[2].startswith(f"| {THROUGHOUT}: the suite | 2 | 15.0%")
    title = f"{THROUGHOUT}: the suite, machines in no fit"
    assert lines[3] == f"| {title} | 1 | 20.0% | 20.0% | +20.0% | 20% | 0% |"


def test_the_table_has_a_line_for_each_host_and_machine() -> None:
    rows = [
        IterationRow(machine, host, of_suite, error, within=error < 0.15, host_over_gpu=2.0)
        for machine in ("a", "b")
        for host in (REFERENCE, THROUGHOUT)
        for of_suite in (True, False)
        for error in (-0.1, 0.2)
    ]
    lines = list(table(rows))
    assert f"| {REFERENCE}: the suite | 4 | 15.0% | 15.0% | +5.0% | 20% | 50% |" in lines
    line = f"| {THROUGHOUT}: the suite, b machine | 2 | 15.0% | 15.0% | +5.0% | 20% | 50% |"
    assert line in lines
    assert len(lines) == 2 + 2 + 4
