"""Do the ranges of runs on more GPUs hold what they say, with whole sources left out?

    python -m lab score run_ranges --data FOLDER

Reads the public sets lambda and dlperf (docs/sources.md) and writes a table of
docs/appendix/runs-gpus.md. Each run is predicted from runs of its own configuration on fewer GPUs.
The least range of each doubling of the GPUs is a constant (`Extrapolation`). To judge how such a
constant holds where it was not chosen, it is chosen again without each source: the smallest one
with which nine in ten runs of every other source are within their ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, log2
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from lab.measured.tables import read_frame
from lab.pages import heading
from lab.score.lambda_runs import PAGE, beyond, scaled_runs
from lab.scores import ScoreTable
from wavecast.runs.regression import extrapolation as extrapolation
from wavecast.runs.run import Run

MARK = "begin: python -m lab score run_ranges"
_ALIKE = (
    *("framework", "framework_version", "model", "batch_per_gpu", "precision", "seq_len", "xla"),
    *("dali", "clip_global_norm", "loss_scale", "graph_kernel_fusion", "data"),
)
_CONSTANTS = tuple(round(0.05 * step, 2) for step in range(41))
"""Those to choose from."""
_WANTED = 0.9


def needed_constants(folder: Path) -> dict[str, list[float]]:
    """The least constant with which each run on more GPUs is in its range, by source."""
    below, _ = extrapolation.LEAST_PER_DOUBLING
    with mock.patch.object(extrapolation, "LEAST_PER_DOUBLING", (below, 0.0)):
        needed = {"Lambda": _needed(scaled_runs(folder))}
        for name, groups in sorted(_dlperf(folder).items()):
            needed[f"DLPerf, {name}"] = _needed(groups)
    return {name: constants for name, constants in needed.items() if constants}


def _needed(groups: Iterable[Sequence[Run]]) -> list[float]:
    constants = []
    for runs in groups:
        for run, estimate in beyond([runs], at_least=4):
            most = max(other.gpus for other in runs if other.gpus < run.gpus)
            slower = run.seconds / estimate.seconds - 1
            needed = inf if run.seconds < estimate.low_s else slower / log2(run.gpus / most)
            constants.append(0.0 if estimate.low_s <= run.seconds <= estimate.high_s else needed)
    return constants


def _dlperf(folder: Path) -> Mapping[str, list[list[Run]]]:
    """The runs of DLPerf by framework, those alike together."""
    frame = read_frame(folder / "dlperf" / "throughput.parquet")
    groups: dict[str, list[list[Run]]] = defaultdict(list)
    for _, rows in frame.groupby(list(_ALIKE), dropna=False):
        runs = [_run(row) for row in rows.drop_duplicates("n_gpu").itertuples()]
        groups[runs[0].framework].append(runs)
    return groups


def _run(row: Any) -> Run:
    batch = round(row.batch_per_gpu * row.n_gpu)
    where = {"gpu": "v100-sxm2-16gb", "gpus": int(row.n_gpu), "framework": row.framework}
    return Run(row.model, batch, 1, batch / row.throughput, **where)


def table(needed: Mapping[str, Sequence[float]]) -> str:
    """A line for each source, and one for all."""
    _, shipped = extrapolation.LEAST_PER_DOUBLING
    names = "source | runs on more GPUs | within the range | chosen without this source"
    lines = [*heading(f"{names} | within that range")]
    within_chosen = 0.0
    for name, own in needed.items():
        others = [factor for other, ones in needed.items() if other != name for factor in ones]
        chosen = next(c for c in _CONSTANTS if _within(others, c) >= _WANTED)
        within_chosen += _within(own, chosen) * len(own)
        lines.append(
            f"| {name} | {len(own)} | {_within(own, shipped):.0%} | {chosen:.0%} "
            f"| {_within(own, chosen):.0%} |"
        )
    every = [factor for own in needed.values() for factor in own]
    total = within_chosen / len(every)
    lines.append(f"| all sources | {len(every)} | {_within(every, shipped):.0%} | | {total:.0%} |")
    return "\n".join(lines)


def _within(needed: Sequence[float], constant: float) -> float:
    return float(np.mean([factor <= constant for factor in needed]))


def tables(data: Path) -> Iterator[ScoreTable]:
    """The table of the page."""
    yield ScoreTable(table(needed_constants(data)), PAGE, MARK)
