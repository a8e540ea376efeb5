"""Schedules of many jobs: each can be carried out, and is as good as it says."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from wavecast.errors import InvalidInput
from wavecast.planning.cost import Ranged, exactly
from wavecast.planning.schedule.bounds import bound_by_starts, relax_over_time
from wavecast.planning.schedule.jobs import (
    Aims,
    Fleet,
    Job,
    JobSchedule,
    PlannedRun,
    Pool,
    RunOption,
)
from wavecast.planning.schedule.planned import cost_against_time, make_plan, with_room
from wavecast.planning.schedule.planner import Effort, NoRoom, improve, make_schedule, seat
from wavecast.planning.schedule.validation import faults

QUICK = Effort(limit_s=2.0, workers=1)
RULES = Effort(limit_s=0.0)
HOUR = 3600.0


def option(pool: str, hours: float, gpus: int = 1, usd: float = 0.0) -> RunOption:
    return RunOption(pool, gpus, exactly(hours * HOUR), usd or hours * gpus)


WINDOWS = ((), (), ((0.0, 40 * HOUR), (50 * HOUR, 1e9)), ((0.0, 60 * HOUR),))


def drawn(number: int) -> tuple[Fleet, list[Job]]:
    """A random instance: pools with windows and limits, jobs with several options.

    Pools may close for good, so that some jobs find no room.
    """
    chance = random.Random(number)
    pools = tuple(
        Pool(
            f"p{index}",
            f"p{index}",
            gpus=chance.choice((1, 3, 8, 12, 16)),
            gpus_per_node=chance.choice((1, 4, 8)),
            usd_per_hour=chance.uniform(0.5, 4),
            power_w=300.0,
            power_limit_w=chance.choice((None, None, 1500.0)),
            windows=chance.choice(WINDOWS),
        )
        for index in range(chance.randint(1, 3))
    )
    fleet = Fleet(pools, chance.choice((None, None, 2400.0)))
    jobs = []
    for index in range(chance.randint(1, 12)):
        found = []
        for pool, gpus in itertools.product(pools, (1, 2, 4, 8)):
            if fleet.holds(pool.name, gpus) and chance.random() < 0.7:
                hours = chance.uniform(0.2, 30) / gpus**0.9
                seconds = Ranged(hours * HOUR, hours * HOUR * 0.8, hours * HOUR * 1.2)
                found.append(RunOption(pool.name, gpus, seconds, hours * gpus))
        if found:
            due = chance.choice((None, chance.uniform(1, 60) * HOUR))
            submit = chance.uniform(0, 10) * HOUR
            jobs.append(Job(f"j{index}", tuple(found), "", submit, due))
    return fleet, jobs


def check_instance(number: int, effort: Effort) -> None:
    fleet, jobs = drawn(number)
    terms = ("cost", "makespan", "completion", "tardiness")
    aims = Aims(**{random.Random(number).choice(terms): 1.0})
    robust = number % 3 == 0
    possible: list[Job] = []
    for job in jobs:
        with suppress(InvalidInput):
            possible += with_room(fleet, [job], robust)
    if not possible:
        return
    try:
        made = make_schedule(fleet, possible, aims, robust=robust, effort=effort)
    except NoRoom:
        assert any(pool.windows for pool in fleet.pools)
        return
    assert faults(fleet, possible, made.runs, robust=robust) == [], number
    assert 0 <= made.gap <= 1


@pytest.mark.parametrize("number", range(60))
def test_random_schedules_can_be_carried_out(number: int) -> None:
    check_instance(number, RULES)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_two_thousand_random_schedules_can_be_carried_out(part: int) -> None:
    for number in range(100 * part, 100 * part + 100):
        check_instance(number, Effort(limit_s=0.3, workers=1) if number % 10 == 0 else RULES)


def small() -> tuple[Fleet, list[Job]]:
    fleet = Fleet((Pool("slow", "slow", 2, 2), Pool("fast", "fast", 1, 1)))
    hours = ((4, 2), (3, 1), (6, 2), (2, 1), (5, 3))
    jobs = [
        Job(f"j{n}", (option("slow", a, usd=a), option("fast", b, usd=3 * b)))
        for n, (a, b) in enumerate(hours)
    ]
    return fleet, jobs


def best_of_all(fleet: Fleet, jobs: list[Job], aims: Aims) -> float:
    """The least value over all options and all orders."""
    return min(
        aims.value(seat(fleet, chosen))
        for options in itertools.product(*(job.options for job in jobs))
        for chosen in itertools.permutations(list(zip(jobs, options, strict=True)))
    )


@pytest.mark.parametrize(
    "aims", [Aims(makespan=1), Aims(completion=1), Aims(cost=1), Aims(cost=1, makespan=2)]
)
def test_the_search_finds_what_trying_everything_finds(aims: Aims) -> None:
    fleet, jobs = small()
    made = make_schedule(fleet, jobs, aims, effort=Effort(10.0, 1))
    assert made.value == pytest.approx(best_of_all(fleet, jobs, aims))
    assert made.bound <= made.value + 1e-6
    assert made.gap < 0.01


def test_the_bound_holds_without_a_search() -> None:
    fleet, jobs = small()
    for aims in (Aims(makespan=1), Aims(cost=1)):
        bound = make_schedule(fleet, jobs, aims, effort=RULES).bound
        assert 0 < bound <= best_of_all(fleet, jobs, aims) + 1e-9


def test_a_job_that_fits_into_a_machine_is_not_spread() -> None:
    fleet = Fleet((Pool("p", "p", 8, 4),))
    jobs = [Job(f"j{n}", (option("p", 1, 3),)) for n in range(3)]
    made = make_schedule(fleet, jobs, Aims(makespan=1), effort=QUICK)
    # Three jobs of three GPUs have nine: two machines of four hold one each.
    assert made.makespan_s == pytest.approx(2 * HOUR)


def test_many_jobs_are_divided_among_the_pools() -> None:
    fleet, jobs = small()
    effort = Effort(limit_s=2.0, workers=1, most_whole=2)
    made = make_schedule(fleet, jobs, Aims(makespan=1), effort=effort)
    assert faults(fleet, jobs, made.runs) == []
    assert made.method in ("CP-SAT by pools", "greedy")


def test_robust_plans_keep_deadlines_that_others_may_miss() -> None:
    fleet = Fleet((Pool("a", "a", 1, 1), Pool("b", "b", 1, 1)))
    unsure = RunOption("a", 1, Ranged(8 * HOUR, 6 * HOUR, 12 * HOUR), 1.0)
    sure = RunOption("b", 1, exactly(9 * HOUR), 5.0)
    jobs = [Job("j", (unsure, sure), "j", 0.0, 10 * HOUR)]
    plain = make_plan(fleet, jobs, Aims(cost=1), effort=QUICK)
    robust = make_plan(fleet, jobs, Aims(cost=1), robust=True, effort=QUICK)
    assert (plain.jobs[0].run.option.pool, robust.jobs[0].run.option.pool) == ("a", "b")
    assert plain.jobs[0].outlook is not None
    assert (plain.jobs[0].outlook.in_time or 0) < 1
    assert robust.jobs[0].reason == "in between; a ($4.00 cheaper) would miss the deadline"


def test_deadlines_that_cannot_be_met_are_explained() -> None:
    fleet = Fleet((Pool("p", "p", 1, 1),))
    jobs = [Job(f"j{n}", (option("p", 4),), "", 0.0, 5 * HOUR) for n in range(2)]
    plan = make_plan(fleet, jobs, Aims(cost=1), effort=QUICK)
    assert plan.schedule.proves_impossible
    assert "late, by 3.0 h at most" in plan.unmet[0]
    assert plan.unmet[1] == "these deadlines would also be met with one more p"
    hopeless = [Job("long", (option("p", 9),), "", 0.0, 5 * HOUR)]
    told = make_plan(fleet, hopeless, Aims(cost=1), effort=QUICK).unmet[0]
    assert "cannot meet its deadline even alone" in told
    assert "4.0 h later would be met" in told


def test_what_would_meet_deadlines_is_what_holds_them_up() -> None:
    """More GPUs are of no use where their power is limited, or the hours in which they are had."""

    def remedy(pool: Pool, fleet_w: float | None = None) -> str:
        jobs = [Job(f"j{n}", (option(pool.name, 4),), "", 0.0, 9 * HOUR) for n in range(3)]
        plan = make_plan(Fleet((pool,), fleet_w), jobs, Aims(cost=1), effort=QUICK)
        assert "late" in plan.unmet[0]
        return plan.unmet[1].removeprefix("these deadlines would also be met with ")

    pool = Pool("p", "p", 8, 8, power_w=100.0)
    assert remedy(replace(pool, power_limit_w=150.0)) == "a power limit of 0.20 kW for p (0.15 now)"
    assert remedy(pool, 150.0) == "a power limit of 0.20 kW for the cluster (0.15 now)"
    closed = replace(pool, gpus=1, windows=((0.0, 4 * HOUR), (6 * HOUR, 99 * HOUR)))
    assert remedy(closed) == "2 more GPUs of p"
    late = replace(pool, windows=((6 * HOUR, 99 * HOUR),))
    assert remedy(late) == "p at all hours from 0 to 4.0 h"
    both = replace(late, power_limit_w=150.0)
    assert remedy(both) == "no single change of the cluster was found to meet these deadlines"


def test_ways_that_take_too_long_for_the_hours_of_a_pool_are_left_out() -> None:
    fleet = Fleet((Pool("short", "short", 4, 4, windows=((0.0, 8 * HOUR),)), Pool("p", "p", 1, 1)))
    unsure = RunOption("short", 1, Ranged(7 * HOUR, 6 * HOUR, 9 * HOUR), 1.0)
    jobs = [Job("j", (unsure, option("p", 8, usd=50.0)))]
    plain, robust = (
        make_plan(fleet, jobs, Aims(cost=1), robust=robust, effort=QUICK)
        for robust in (False, True)
    )
    assert [plan.jobs[0].run.option.pool for plan in (plain, robust)] == ["short", "p"]
    # The GPUs are gone before the job ends in some draws: it has no deadline, and may not run.
    seen = plain.jobs[0].outlook
    assert seen is not None
    assert 0.5 < (seen.in_time or 0) < 1
    assert seen.end_high_s <= 8 * HOUR
    with pytest.raises(InvalidInput, match=r"takes 9.0 h at least with the high ends of ranges"):
        make_plan(fleet, [Job("j", (unsure,))], Aims(cost=1), robust=True, effort=QUICK)


def test_jobs_that_do_not_all_find_room_are_refused_with_what_would_help() -> None:
    fleet = Fleet((Pool("p", "p", 1, 1, windows=((0.0, 9 * HOUR),)),))
    jobs = [Job(f"j{n}", (option("p", 4),)) for n in range(3)]
    with pytest.raises(InvalidInput) as refused:
        make_plan(fleet, jobs, Aims(cost=1), effort=QUICK)
    assert "no plan was found in which all 3 jobs run while p can be had" in str(refused.value)
    assert "p at all hours from 0 to 12.0 h; or one more p" in str(refused.value)
    assert cost_against_time(fleet, jobs, QUICK) == []
    assert make_plan(fleet, jobs[:2], Aims(cost=1), effort=QUICK).schedule.makespan_s == 8 * HOUR


def test_a_search_finds_room_where_no_rule_does() -> None:
    # Only 3 + 3 and 2 + 2 + 2 hours fill two GPUs for six; longest first takes 3 + 2, 3 + 2, 2.
    pool = Pool("p", "p", 2, 1, windows=((0.0, 6 * HOUR),))
    jobs = [Job(f"j{n}", (option("p", hours),)) for n, hours in enumerate((3, 3, 2, 2, 2))]
    made = make_schedule(Fleet((pool,)), jobs, Aims(cost=1), effort=QUICK)
    assert faults(Fleet((pool,)), jobs, made.runs) == []
    with pytest.raises(NoRoom):
        make_schedule(Fleet((pool,)), jobs, Aims(cost=1), effort=RULES)


def test_a_job_without_a_place_is_refused_with_the_reason() -> None:
    fleet = Fleet((Pool("p", "p", 1, 1),))
    with pytest.raises(InvalidInput, match="can run nowhere: p: does not fit"):
        with_room(fleet, [Job("j", (), impossible=("p: does not fit",))])


def test_the_validator_finds_what_is_wrong() -> None:
    fleet = Fleet((Pool("p", "p", 4, 4, power_w=100.0, windows=((0.0, 9 * HOUR),)),), 350.0)
    job = Job("j", (option("p", 2, 4),), "", HOUR)
    other = Job("k", (option("p", 2, 1),))

    def told(*runs: PlannedRun) -> str:
        return " ".join(faults(fleet, [job, other], runs))

    good = PlannedRun(other, other.options[0], 0.0, 2 * HOUR, (0,))
    assert "j is planned 0 times" in told(good)
    early = PlannedRun(job, job.options[0], 0.0, 2 * HOUR, (0,))
    assert "before it is submitted" in told(good, early)
    both = PlannedRun(job, job.options[0], HOUR, 3 * HOUR, (0,))
    text = told(good, both)
    assert "5 GPUs of p run" in text
    assert "machine 0 of p runs 5 GPUs" in text
    assert "W are drawn" in text
    late = PlannedRun(job, job.options[0], 8 * HOUR, 10 * HOUR, (0,))
    assert "when p cannot be had" in told(good, late)
    short = PlannedRun(job, job.options[0], 3 * HOUR, 4 * HOUR, (0,))
    assert "has 3600 s and needs 7200 s" in told(good, short)


def test_equal_schedules_differ_not_by_the_time_of_the_search() -> None:
    made = [JobSchedule(Aims(cost=1), (), 0.0, 1.0, "", solve_s=n) for n in (1.0, 2.0)]
    assert made[0] == made[1]


@pytest.mark.parametrize("number", range(40))
def test_no_schedule_beats_the_bound_that_knows_of_waiting(number: int) -> None:
    fleet, jobs = drawn(number)
    aims = Aims(completion=1.0, cost=number % 2)
    try:
        best = make_schedule(fleet, jobs, replace(aims, tardiness=1e-9), effort=RULES)
    except NoRoom:
        jobs = []
    if not jobs:
        fleet, jobs = small()
        best = make_schedule(fleet, jobs, replace(aims, tardiness=1e-9), effort=RULES)
    for until_h in (1.0, best.makespan_s / HOUR):
        found = relax_over_time(fleet, jobs, aims, until_h * HOUR, most=30)
        assert found is not None
        bound, order = found
        assert 0 < bound <= aims.value(best.runs) * (1 + 1e-9)
        assert {job.name for job, _ in order} == {job.name for job in jobs}
        by_starts = bound_by_starts(fleet, jobs, aims, until_h * HOUR, most_entries=20_000)
        assert by_starts <= aims.value(best.runs) * (1 + 1e-9)


def test_the_bound_is_exact_for_jobs_that_queue_for_one_gpu() -> None:
    fleet = Fleet((Pool("p", "p", 1, 1, 1.0),))
    jobs = [Job(f"j{n}", (option("p", 1.0),)) for n in range(8)]
    found = relax_over_time(fleet, jobs, Aims(completion=1), 8 * HOUR, most=81)
    assert found is not None
    # One after the other they end after 4.5 h on average; shares count from the begin of a tenth.
    assert found[0] == pytest.approx(4.45, abs=0.01)
    made = make_schedule(fleet, jobs, Aims(completion=1), effort=Effort(0.4, 1))
    assert made.gap < 0.02


def test_the_bound_by_starts_is_close_for_jobs_that_queue_for_one_gpu() -> None:
    fleet = Fleet((Pool("p", "p", 1, 1, 1.0),))
    jobs = [Job(f"j{n}", (option("p", 1.0),)) for n in range(8)]
    coarse, fine = (
        bound_by_starts(fleet, jobs, Aims(completion=1), 8 * HOUR, most_entries=entries)
        for entries in (2_000, 100_000)
    )
    assert coarse < fine <= 4.5 + 1e-9
    assert fine == pytest.approx(4.5, abs=0.1)


@pytest.mark.parametrize("aims", [Aims(completion=1), Aims(completion=1, cost=2)])
def test_the_bound_by_starts_holds_and_is_close_to_the_best(aims: Aims) -> None:
    fleet, jobs = small()
    best = best_of_all(fleet, jobs, aims)
    bound = bound_by_starts(fleet, jobs, aims, 12 * HOUR, most_entries=100_000)
    assert 0.85 * best < bound <= best + 1e-9


def test_small_changes_make_no_schedule_worse_and_keep_it_possible() -> None:
    for number in range(6):
        fleet, jobs = drawn(number)
        aims = Aims(completion=1.0, tardiness=1.0)
        first = seat(fleet, [(job, job.options[0]) for job in jobs])
        better = improve(fleet, first, aims, 0.05)
        assert aims.value(better) <= aims.value(first)
        assert faults(fleet, jobs, better) == []
