"""Where a campaign stands, from its store alone; and its results as files for other commands."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from csv import writer
from pathlib import Path
from typing import Any

from wavecast.campaigns import layer_times, run_grids
from wavecast.campaigns.campaign_files import Campaign, make_campaign
from wavecast.campaigns.standing import CampaignStatus, NodeWork
from wavecast.campaigns.work import layer_row, start_of, suite_row
from wavecast.files import GrowingTable, csv_line, write_whole
from wavecast.runs.store.campaign_results import CampaignResults, TaskResult
from wavecast.runs.suite_results import write_results

_PACE_OF = 200
"""From how many of the last results the pace is taken."""


def status_of(results: CampaignResults) -> CampaignStatus:
    """How far a campaign is.

    Raises:
        InvalidInput: the store has no such campaign.
    """
    campaign = kept_campaign(results)
    found = {one.task: one for one in results.results()}
    done = [found[task.id] for task in campaign.tasks if task.id in found]
    tried = results.failed()
    last = {one.task: one.error for one in tried}
    kinds = Counter(task.kind for task in campaign.tasks)
    ready = Counter(one.kind for one in done)
    return CampaignStatus(
        name=results.name,
        tasks=len(campaign.tasks),
        done=len(done),
        kinds={kind: (ready[kind], number) for kind, number in kinds.items()},
        nodes=_nodes(done),
        failed={
            task.name: last[task.id]
            for task in campaign.tasks
            if task.id in last and task.id not in found
        },
        attempts_failed=len(tried),
        remaining_s=_remaining_s(done, len(campaign.tasks) - len(done)),
    )


def kept_campaign(results: CampaignResults) -> Campaign:
    """The campaign whose file a store keeps."""
    return make_campaign(results.file(), results.name)


def _nodes(done: Sequence[TaskResult]) -> tuple[NodeWork, ...]:
    by_node: dict[str, list[TaskResult]] = {}
    for one in done:
        by_node.setdefault(one.node, []).append(one)
    return tuple(
        NodeWork(node, len(own), sum(one.seconds for one in own), max(one.ended_s for one in own))
        for node, own in sorted(by_node.items())
    )


def _remaining_s(done: Sequence[TaskResult], left: int) -> float | None:
    ends = sorted(one.ended_s for one in done)[-_PACE_OF:]
    if not left or len(ends) < 2:
        return None
    return (ends[-1] - ends[0]) / (len(ends) - 1) * left


def export_results(results: CampaignResults, folder: Path) -> list[Path]:
    """Write the results as files that other commands read, one for each kind and GPU.

    Layers are for `wavecast fit`, steps of the suite for `wavecast suite show`, whole runs for
    `wavecast fit --runs`; predictions are a table.

    Raises:
        InvalidInput: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[TaskResult]] = {}
    for one in results.results():
        groups.setdefault(_file_name(one), []).append(one)
    for name, found in groups.items():
        _write(folder / name, found)
    return [folder / name for name in groups]


def _file_name(result: TaskResult) -> str:
    if result.kind == "predict":
        return "predictions.csv"
    what = result.question["layer"] if result.kind == "layer" else result.kind
    return f"{what}-{result.question['gpu']}.csv"


def _write(path: Path, found: Sequence[TaskResult]) -> None:
    match found[0].kind:
        case "layer":
            rows = [layer_row(one.question, one.question["gpu"], one.answer) for one in found]
            rows.sort(key=lambda row: row.index)
            _write_table(path, layer_times.table_of(found[0].question["layer"]), rows)
        case "suite":
            write_results(path, [suite_row(one.answer) for one in found])
        case "run":
            _write_table(path, run_grids.TABLE, [run for one in found for run in _runs(one)])
        case _:
            write_whole(path, _predictions(found))


def _write_table(path: Path, table: GrowingTable[Any], rows: Sequence[Any]) -> None:
    texts = map(table.to_texts, rows)
    lines = [csv_line(table.columns), *(csv_line(t[name] for name in table.columns) for t in texts)]
    write_whole(path, b"".join(lines))


def _runs(one: TaskResult) -> Iterator[Any]:
    asked, answer = one.question, one.answer
    times = answer["startup_s"], answer["seconds"]
    where = {"gpu": asked["gpu"], "software": answer["software"], "phase": asked["phase"]}
    return run_grids.runs_of(start_of(asked), times, **where)


_ASKED = ("target", "batch", "precision", "gpu", "parallel", "host")
_ANSWERED = (
    *("seconds", "low_s", "high_s", "gpu_s", "samples_per_s", "unit", "needed_bytes", "fits"),
    *("unpredicted", "reason"),
)


def _predictions(found: Sequence[TaskResult]) -> str:
    text = io.StringIO()
    table = writer(text, lineterminator="\n")
    table.writerow((*_ASKED, *_ANSWERED))
    for one in found:
        asked = (one.question.get(name) for name in _ASKED)
        table.writerow((*asked, *(one.answer.get(name) for name in _ANSWERED)))
    return text.getvalue()
