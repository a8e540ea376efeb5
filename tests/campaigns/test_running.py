from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs wavecast[runs]")

from wavecast.campaigns import work
from wavecast.campaigns.campaign_files import Campaign, make_campaign
from wavecast.campaigns.progress import Progress
from wavecast.campaigns.running import (
    Bundle,
    Finished,
    MachineWorkers,
    ThisProcess,
    export_results,
    kept_campaign,
    run_campaign,
    status_of,
)
from wavecast.campaigns.work import CampaignTask, TaskOutcome, task
from wavecast.errors import InvalidInput
from wavecast.runs.store.campaign_results import CampaignResults, TaskResult
from wavecast.runs.store.store import RunStore

RUNS = """
[[runs]]
models = ["a3c"]
batches = [1]
iterations = [1, 2]
gpus = ["cpu"]
"""


def made(number: int, gpu: str = "", shared: str = "") -> Campaign:
    tasks = tuple(task("made", {"n": n}, gpu, shared) for n in range(number))
    return Campaign("made", tasks, RUNS, attempts=3)


def doubled(one: CampaignTask) -> dict[str, Any]:
    return {"twice": 2 * one.asked["n"]}


class Unreliable:
    """Workers that come and go: some bundles are lost, some tasks fail, in any order."""

    def __init__(self, seed: int, gpus: tuple[str, ...] = ("", "l4")) -> None:
        self.draw, self.gpus = random.Random(seed), gpus
        self.waiting: list[Bundle] = []
        self.performed: list[str] = []

    def can_run(self, gpu: str) -> bool:
        return gpu in self.gpus

    def has_room(self, gpu: str) -> bool:
        return self.can_run(gpu) and len(self.waiting) < 5

    def submit(self, bundle: Bundle) -> None:
        self.waiting.append(bundle)

    def finished(self, timeout_s: float) -> list[Finished]:
        self.draw.shuffle(self.waiting)
        back, self.waiting = self.waiting[:2], self.waiting[2:]
        return [self._one(bundle) for bundle in back]

    def _one(self, bundle: Bundle) -> Finished:
        if self.draw.random() < 0.2:
            return Finished(bundle, lost="the node died")
        self.performed += [task.id for task in bundle]
        outcomes = [
            TaskOutcome(task.id, "n1", 0.1, error="OSError: no")
            if self.draw.random() < 0.1
            else TaskOutcome(task.id, "n1", 0.1, doubled(task))
            for task in bundle
        ]
        return Finished(bundle, tuple(outcomes))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_and_nothing_twice_whatever_workers_do(place: str, seed: int) -> None:
    campaign = made(60, shared="one")
    with RunStore(place) as store:
        results = CampaignResults(store, "made")
        found = run_campaign(campaign, results, Unreliable(seed))
        again = run_campaign(campaign, results, Unreliable(seed + 100))
        rows = list(results.results())
    assert found.new + again.new == again.done == 60 - len(again.failed) == len(rows)
    assert len({row.task for row in rows}) == len(rows)
    assert all(row.answer == {"twice": 2 * row.question["n"]} for row in rows)


def test_tasks_go_only_where_their_gpu_is_and_the_rest_is_told(tmp_path: Path) -> None:
    campaign = Campaign("mixed", (*made(3).tasks, *made(4, "h100-sxm-80gb").tasks), RUNS)
    with RunStore(tmp_path / "s.sqlite") as store:
        results = CampaignResults(store, "mixed")
        found = run_campaign(campaign, results, Unreliable(1), patience_s=0.0)
        assert (found.done, found.unplaced) == (3, {"h100-sxm-80gb": 4})
        workers = Unreliable(1, ("h100-sxm-80gb",))
        assert run_campaign(campaign, results, workers, patience_s=0.0).new == 4


def test_a_task_that_always_fails_is_left_after_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(one: CampaignTask) -> dict[str, Any]:
        if one.asked["n"] == 1:
            raise OSError("no room")
        return doubled(one)

    monkeypatch.setattr(work, "_WORK", {"made": fail})
    told: list[Progress] = []
    with RunStore(tmp_path / "s.sqlite") as store:
        results = CampaignResults(store, "made")
        found = run_campaign(made(4), results, ThisProcess(), progress=told.append)
        assert (found.done, found.new) == (3, 3)
        assert found.failed == {"made 1": "OSError: no room"}
        assert len(results.failed()) == 3
    assert told[-1] == Progress(3, 4, told[-1].remaining_s)


class Deadly(Unreliable):
    """Workers that die of one task."""

    def _one(self, bundle: Bundle) -> Finished:
        if any(task.asked["n"] == 2 for task in bundle):
            return Finished(bundle, lost="killed")
        return Finished(
            bundle, tuple(TaskOutcome(task.id, "", 0, doubled(task)) for task in bundle)
        )


def test_a_task_that_kills_its_worker_takes_no_other_along(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s.sqlite") as store:
        found = run_campaign(made(5, shared="x"), CampaignResults(store, "made"), Deadly(0))
    assert found.done == 4
    assert list(found.failed) == ["made 2"]


def test_a_second_result_and_its_runs_are_left_out(place: str) -> None:
    (asked, *_) = make_campaign(RUNS, "r").tasks
    answers = [{"startup_s": 1.0, "seconds": [s], "software": "torch"} for s in (2.0, 3.0)]
    with RunStore(place) as store:
        results = CampaignResults(store, "r")
        for answer in answers:
            runs = work.runs_of(asked.asked, asked.gpu, answer)
            results.add([TaskResult(asked.id, "run", asked.asked, answer, runs=runs)])
        assert [result.answer["seconds"] for result in results.results()] == [[2.0]]
        assert [run.seconds for run in store.runs()] == [2.0]


def test_real_measurements_are_stored_as_runs_and_exported(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = RUNS + '[[layers]]\nkind = "linear"\ncount = 3\ngpus = ["cpu"]\n'
    text += '[[predict]]\ntargets = ["a3c"]\nbatches = [1]\ngpus = ["l4", "t4"]\n'
    with RunStore(tmp_path / "s.sqlite") as store:
        results = CampaignResults(store, "real")
        found = run_campaign(make_campaign(text, "real"), results, ThisProcess())
        assert found.done == found.tasks == 7
        assert {run.iterations for run in store.runs()} == {1, 2}
        files = {path.name: path for path in export_results(results, tmp_path / "out")}
        status = status_of(results)
        assert kept_campaign(results).tasks == make_campaign(text, "real").tasks
    assert set(files) == {"linear-cpu.csv", "run-cpu.csv", "predictions.csv"}
    assert status.kinds == {"predict": (2, 2), "layer": (3, 3), "run": (2, 2)}
    assert sum(node.done for node in status.nodes) == 7

    from wavecast.campaigns.layer_times import read_rows
    from wavecast.runs.readers import read_runs

    assert [row.index for row in read_rows(files["linear-cpu.csv"])] == [0, 1, 2]
    assert len(list(read_runs(files["run-cpu.csv"]))) == 2
    assert files["predictions.csv"].read_text().count("\n") == 3


def test_an_unknown_campaign_is_refused(tmp_path: Path) -> None:
    with (
        RunStore(tmp_path / "s.sqlite") as store,
        pytest.raises(InvalidInput, match="has no campaign nobody; it has none"),
    ):
        CampaignResults(store, "nobody").file()


def test_a_process_of_this_machine_that_dies_is_replaced() -> None:
    pytest.importorskip("torch")
    tasks = make_campaign('[[layers]]\nkind = "linear"\ncount = 2\ngpus = ["cpu"]', "l").tasks
    workers = MachineWorkers((), 1)
    try:
        workers.submit((task("dies", {}, "cpu"),))
        assert not workers.has_room("cpu")
        (slot, _) = next(iter(workers._running.values()))
        while not slot._pool._processes:  # type: ignore[union-attr]
            pass
        for process in list(slot._pool._processes):  # type: ignore[union-attr]
            os.kill(process, signal.SIGKILL)
        (back,) = workers.finished(60)
        assert back.lost
        workers.submit(tasks[:1])
        (back,) = workers.finished(120)
        assert back.outcomes[0].answer is not None
    finally:
        workers.close()
