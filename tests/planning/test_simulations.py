"""Policies by simulation, and the capacity that is found with them."""

from __future__ import annotations

import random

import pytest

from wavecast.errors import InvalidInput
from wavecast.planning.capacity import DAY_S, CapacitySearch, buy_or_rent, from_trace, weekly
from wavecast.planning.cost import Purchase, Ranged, exactly
from wavecast.planning.schedule.jobs import Aims, Fleet, Job, Pool, RunOption
from wavecast.planning.schedule.policies import NAMES, policy_of
from wavecast.planning.schedule.simulator import Simulation, simulate

HOUR = 3600.0


def workload(count: int = 40) -> tuple[Fleet, list[Job]]:
    chance = random.Random(1)
    fleet = Fleet((Pool("a", "a", 8, usd_per_hour=1.0), Pool("b", "b", 4, usd_per_hour=4.0)))
    jobs = []
    for n in range(count):
        hours, gain = chance.uniform(0.1, 6), chance.uniform(1, 6)
        gpus = chance.choice((1, 1, 2, 4))
        options = (
            RunOption("a", gpus, exactly(hours * HOUR), hours * gpus),
            RunOption("b", gpus, exactly(hours / gain * HOUR), 4 * hours / gain * gpus),
        )
        jobs.append(Job(f"j{n}", options, "", n * 600.0, n * 600.0 + 12 * HOUR))
    return fleet, jobs


def used_at_once(found: Simulation, pool: str) -> int:
    runs = [outcome for outcome in found.outcomes if outcome.option.pool == pool]
    moments = [run.start_s for run in runs]
    return max(
        (sum(o.option.gpus for o in runs if o.start_s <= m < o.end_s - 1e-6) for m in moments),
        default=0,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_ends_all_jobs(name: str) -> None:
    fleet, jobs = workload()
    found = simulate(fleet, jobs, policy_of(name, fleet, Aims(completion=1)), restart_s=10)
    assert sorted(outcome.job.name for outcome in found.outcomes) == sorted(
        job.name for job in jobs
    )
    for one in found.outcomes:
        assert one.start_s >= one.job.submit_s
        if not one.stops:
            assert one.end_s - one.start_s == pytest.approx(one.option.seconds.value)
    if not any(outcome.stops for outcome in found.outcomes):
        assert used_at_once(found, "a") <= 8
        assert used_at_once(found, "b") <= 4
    assert 0 < found.utilisation <= 1


def test_fifo_is_as_computed_by_hand() -> None:
    fleet = Fleet((Pool("p", "p", 2, usd_per_hour=1.0),))
    times = ((2, 1), (1, 2), (1, 1))
    jobs = [
        Job(f"j{n}", (RunOption("p", g, exactly(h * HOUR), 0),)) for n, (h, g) in enumerate(times)
    ]
    found = simulate(fleet, jobs, policy_of("fifo", fleet, Aims(cost=1)))
    # The second waits for both GPUs, and the third does not pass it.
    assert {o.job.name: o.end_s / HOUR for o in found.outcomes} == {"j0": 2, "j1": 3, "j2": 4}
    assert found.mean_completion_s == pytest.approx(3 * HOUR)
    assert found.usd == pytest.approx(5.0)
    short = simulate(fleet, jobs, policy_of("shortest", fleet, Aims(cost=1)))
    assert short.makespan_s == pytest.approx(3 * HOUR)


def test_a_stop_costs_what_it_is_said_to_cost() -> None:
    fleet = Fleet((Pool("p", "p", 1),))
    long = Job("long", (RunOption("p", 1, exactly(10 * HOUR), 0),))
    short = Job("short", (RunOption("p", 1, exactly(HOUR), 0),), "", HOUR)
    policy = policy_of("shortest", fleet, Aims(cost=1), stops=True, round_s=HOUR)
    found = simulate(fleet, [long, short], policy, restart_s=600)
    ends = {outcome.job.name: (outcome.end_s, outcome.stops) for outcome in found.outcomes}
    assert ends["long"][1] == 1
    assert ends["long"][0] == pytest.approx(11 * HOUR + 600, abs=HOUR)
    assert ends["short"][0] < 3.1 * HOUR


def test_ours_ends_sooner_than_fifo() -> None:
    fleet, jobs = workload(80)
    found = {
        name: simulate(fleet, jobs, policy_of(name, fleet, Aims(makespan=1)))
        for name in ("fifo", "ours")
    }
    assert found["ours"].makespan_s < found["fifo"].makespan_s


@pytest.mark.parametrize(
    ("aims", "late_h", "late_end_h", "last_h"),
    [(Aims(makespan=1), 4, 5, 5), (Aims(completion=1), 0.5, 1.5, 3)],
)
def test_ours_stops_jobs_for_the_longest_or_the_smallest_rest(
    aims: Aims, late_h: float, late_end_h: float, last_h: float
) -> None:
    fleet = Fleet((Pool("p", "p", 2),))

    def job(name: str, hours: float, submit_h: float = 0.0) -> Job:
        return Job(name, (RunOption("p", 1, exactly(hours * HOUR), 0),), "", submit_h * HOUR)

    jobs = [
        job("early 1", 2),
        job("early 2", 2.5 if aims.completion else 2),
        job("late", late_h, 1),
    ]
    policy = policy_of("ours", fleet, aims, stops=True, round_s=60)
    found = simulate(fleet, jobs, policy)
    assert sum(outcome.stops for outcome in found.outcomes) >= 1
    ends = {outcome.job.name: outcome.end_s / HOUR for outcome in found.outcomes}
    assert ends["late"] == pytest.approx(late_end_h, abs=0.1)
    assert max(ends.values()) == pytest.approx(last_h, abs=0.1)


def test_gavels_fifo_moves_the_first_jobs_to_the_first_pool() -> None:
    fleet = Fleet((Pool("fast", "fast", 1), Pool("slow", "slow", 1)))
    options = RunOption("fast", 1, exactly(HOUR), 0), RunOption("slow", 1, exactly(10 * HOUR), 0)
    jobs = [Job(name, options) for name in ("a", "b")]
    policy = policy_of("gavel-fifo", fleet, Aims(makespan=1), round_s=360)
    found = simulate(fleet, jobs, policy)
    # After an hour the second job leaves the slow GPU, on which it did a tenth.
    assert found.makespan_s == pytest.approx(1.9 * HOUR, abs=720)
    assert [outcome.stops for outcome in found.outcomes] == [0, 1]


def test_jobs_that_are_late_anyway_do_not_delay_others() -> None:
    fleet = Fleet((Pool("p", "p", 1),))
    option = (RunOption("p", 1, exactly(2 * HOUR), 1.0),)
    jobs = [
        Job("hopeless", option, "", 0.0, HOUR),
        Job("possible", option, "", 0.0, 2 * HOUR),
    ]
    found = simulate(fleet, jobs, policy_of("in-time", fleet, Aims(cost=1)))
    assert [outcome.job.name for outcome in found.outcomes] == ["possible", "hopeless"]
    assert found.deadlines_met == 0.5


def test_a_job_takes_as_few_gpus_as_meet_its_deadline() -> None:
    fleet = Fleet((Pool("p", "p", 4),))
    options = tuple(RunOption("p", n, exactly(8 * HOUR / n), 8.0 + n) for n in (1, 2, 4))
    job = Job("j", options, "", 0.0, 5 * HOUR)
    [done] = simulate(fleet, [job], policy_of("in-time", fleet, Aims(cost=1))).outcomes
    assert done.option.gpus == 2


def test_pools_with_windows_are_refused() -> None:
    fleet = Fleet((Pool("p", "p", 1, windows=((0.0, 1.0),)),))
    with pytest.raises(InvalidInput, match="always available"):
        simulate(fleet, [], policy_of("fifo", fleet, Aims(cost=1)))


def test_the_capacity_found_is_the_least_that_keeps_the_promise() -> None:
    fleet = Fleet((Pool("a", "a", 64, 1, 1.0), Pool("b", "b", 64, 1, 10.0)))
    seconds = Ranged(6 * HOUR, 5 * HOUR, 7.2 * HOUR)
    options = tuple(RunOption(pool, 1, seconds, 6.0) for pool in ("a", "b"))
    job = Job("j", options, "j", 0.0, 12 * HOUR)
    search = CapacitySearch(fleet, weekly([job], [100.0], weeks=2, draws=3), 0.95, (1, 1))
    found = search.plan()
    assert found.best is not None
    assert set(found.best.counts) == {"a"}
    count = found.best.counts["a"]
    assert found.best.in_time >= found.best.in_time_low >= 0.95
    assert search.judged((count - 1, 0)).in_time_low < 0.95
    instead = found.without["a"]
    assert instead is not None
    assert set(instead.counts) == {"b"}
    assert instead.usd_per_week > found.best.usd_per_week
    # 100 jobs of six hours a week are 3.6 GPUs that never rest.
    assert count >= 4


def test_a_simulation_that_is_cut_short_says_what_the_whole_one_says() -> None:
    fleet = Fleet((Pool("a", "a", 64, 1, 1.0),))
    job = Job(
        "j", (RunOption("a", 1, Ranged(6 * HOUR, 4 * HOUR, 9 * HOUR), 6.0),), "j", 0.0, 9 * HOUR
    )
    forecast = weekly([job], [60.0], weeks=1, draws=20)
    for promise in (0.5, 0.9, 0.97):
        search = CapacitySearch(fleet, forecast, promise, (1,))
        said = [search.keeps((count,)) for count in range(1, 9)]
        assert said == [search.judged((count,)).in_time_low >= promise for count in range(1, 9)]
        assert len(set(said)) == 2


def test_days_are_drawn_from_days_that_were_drawn() -> None:
    days = 20
    jobs = [Job(f"j{n}", (), "", n * DAY_S + 60.0, n * DAY_S + 120.0) for n in range(days)]
    forecast = from_trace(jobs, 60)
    assert forecast.draw(0) == jobs
    shares = []
    for number in range(1, 60):
        drawn = forecast.draw(number)
        assert [job.submit_s for job in drawn] == [job.submit_s for job in jobs]
        assert all((job.deadline_s or 0) - job.submit_s == 60.0 for job in drawn)
        shares.append(len({job.name.partition("-")[2] for job in drawn}) / days)
    # One draw has 64% of the days on average, a draw of a draw 47%.
    assert sum(shares) / len(shares) == pytest.approx(0.47, abs=0.04)


def test_a_promise_that_cannot_be_kept_has_no_mix() -> None:
    fleet = Fleet((Pool("a", "a", 2, 1, 1.0),))
    jobs = [Job(f"j{n}", (RunOption("a", 1, exactly(HOUR), 1.0),), "", 0.0, HOUR) for n in range(9)]
    assert CapacitySearch(fleet, from_trace(jobs, 2), 0.95, (1,)).plan().best is None


def test_the_break_even_of_buying() -> None:
    pool = Pool("a", "a", 8, usd_per_hour=1.0, power_w=500.0)
    found = buy_or_rent(pool, 4, Purchase(8_400.0, years=4, usd_per_kwh=0.0))
    assert found.even_weeks == pytest.approx(50.0)
    assert found.rent_usd_per_week == pytest.approx(672.0)
    assert found.even_utilisation == pytest.approx(8_400 / (4 * 365.25 * 24))
    dear = buy_or_rent(pool, 4, Purchase(1e6, years=1))
    assert dear.even_utilisation is None
