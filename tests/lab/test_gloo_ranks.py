"""The real runs with gloo: what torch's reducer did, and what we predict for it."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from lab.places import DOCS
from lab.score import gloo, pages
from lab.score.gloo import GlooRun
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    """The step that was run."""
    return gloo.wide_trace()


@pytest.fixture(scope="module")
def runs() -> list[GlooRun]:
    """What was measured."""
    return gloo.read_gloo_runs()


def test_every_rank_sent_the_buckets_that_we_predict_in_our_order(
    runs: list[GlooRun], trace: Trace
) -> None:
    ours = gloo.sent_buckets(trace)
    spread_ones = [
        call.op.inputs[0].nbytes
        for call in spread(trace, Parallel(data=2)).groups[0].parts[0].last
        if call.op.name == "nccl.all_reduce"
    ]
    assert spread_ones == ours
    for run in runs:
        for rank in run.ranks:
            if run.processes > 1:
                assert [bucket["bytes"] for bucket in rank["buckets"]] == ours
                assert [bucket["index"] for bucket in rank["buckets"]] == list(range(len(ours)))


def test_gradients_are_ready_in_the_reverse_order_of_the_parameters(runs: list[GlooRun]) -> None:
    seen = [p for bucket in runs[-1].ranks[0]["buckets"] for p in bucket["parameters"]]
    assert seen == sorted(seen, reverse=True)


def test_all_buckets_but_the_last_are_sent_beside_the_backward_pass(
    runs: list[GlooRun], trace: Trace
) -> None:
    for run in runs:
        if run.processes > 1:
            predicted = gloo.beside_backward(gloo.predicted(run, trace))
            assert predicted == gloo.observed_beside(run) == len(gloo.sent_buckets(trace)) - 1


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_steps_are_predicted_within_15_percent(
    processes: int, runs: list[GlooRun], trace: Trace
) -> None:
    some = [run for run in runs if run.processes == processes]
    found = median(gloo.predicted(run, trace).seconds for run in some)
    assert found == pytest.approx(median(run.seconds for run in some), rel=0.15)


def test_the_slowdown_follows_from_the_time_of_both_at_once(runs: list[GlooRun]) -> None:
    def run_of(both_s: float) -> GlooRun:
        part = {"beside": {"alone_s": 2.0, "reduction_s": 1.0, "both_s": both_s}}
        return replace(runs[1], ranks=({"before": part, "after": part},))

    assert gloo.slowdown(run_of(2.0)) == 0
    assert gloo.slowdown(run_of(2.5)) == pytest.approx(1)
    assert gloo.slowdown(run_of(3.2)) == gloo.NEVER


def test_the_page_has_the_tables(runs: list[GlooRun], trace: Trace) -> None:
    page = DOCS / "parallel.md"
    assert pages.section(page, f"{gloo.MARK} 'steps'") == gloo.table(runs, trace)
    assert pages.section(page, f"{gloo.MARK} 'buckets'") == gloo.bucket_table(runs, trace)
