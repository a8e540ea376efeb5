"""Fit what several GPUs cost beyond kernels and collectives, to the scaling of Lambda's machines.

    python -m lab fit overlap --data FOLDER [--cache FOLDER]

Needs the public table lambda (docs/sources.md), and transformers for its steps; takes six minutes,
or three with the traces of an earlier run in `--cache`. Writes the shipped models/overlap.toml: how
much kernels slow down beside collectives, on boards with NVLink and on cards, and how much the
ranks of a step differ. Only rows whose links the source states are fitted. The error is that of the
efficiency, in points. Of slowdowns that fit almost equally well, the smallest is taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean

from lab import needs
from lab.measured.public_steps.case import Traces
from lab.measured.scaled_rows import ScaledRow, lambda_rows
from wavecast.files import shipped, write_whole
from wavecast.hardware.clusters import LinkKind
from wavecast.hardware.devices import device
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.parallel.spreading import spread
from wavecast.predictors.base import Predictor
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.retargeting import retarget
from wavecast.steps.op_times import ClusterPredictor, OverlapConstants
from wavecast.steps.request import default_predictor
from wavecast.steps.timed_trace import TimedTrace
from wavecast.traces.step import Trace

OUT = shipped("models/overlap.toml")
SLOWDOWNS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
SPREADS = (0.0, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02)
ALMOST = 0.001
"""Mean errors of the efficiency that differ by less are taken for equal: equal machines differ by
as much."""

_HEAD = """\
# Written by python -m lab fit overlap: the constants of wavecast.steps.op_times. Fitted to the
# efficiency of {rows} runs of Lambda's on 2 and 4 GPUs, whose links are stated.
"""


class ScaledStep:
    """A step of a table on one and on several GPUs, whose times are computed once."""

    def __init__(self, row: ScaledRow, trace: Trace, kernels: Predictor) -> None:
        self.row = row
        self._trace, _ = retarget(trace, device(row.case.gpu))
        self._kernels = kernels
        self._answers: dict[float, float] = {}

    @cached_property
    def _predictor(self) -> ClusterPredictor:
        row = self.row
        return ClusterPredictor(
            self._kernels, Collectives.shipped(), device(row.case.gpu), row.cluster
        )

    def _timed(self, trace: Trace) -> TimedTrace:
        return TimedTrace(trace, self._predictor.answers(trace), REFERENCE_HOST)

    @cached_property
    def alone_s(self) -> float:
        """The time on one GPU."""
        return self._timed(self._trace).step.seconds

    @cached_property
    def _together(self) -> TimedTrace:
        group = spread(self._trace, self.row.strategy).groups[0]
        return self._timed(group.parts[0].last)

    @property
    def is_on_cards(self) -> bool:
        """Whether the GPUs are cards, not boards with NVLink."""
        return self.row.cluster.node.link in (LinkKind.PCIE, LinkKind.BRIDGES)

    def seconds(self, constants: OverlapConstants) -> float:
        """The predicted time on all GPUs."""
        slowdown = constants.slowdown_on(self.row.cluster.node.link)
        if slowdown not in self._answers:
            self._answers[slowdown] = replace(self._together, slowdown=slowdown).step.seconds
        return self._answers[slowdown] * (1 + constants.waiting(self.row.strategy.gpus))

    def efficiency(self, constants: OverlapConstants) -> float:
        """The predicted speed per GPU, divided by that of one."""
        return self.alone_s / self.seconds(constants)

    def error(self, constants: OverlapConstants) -> float:
        """Predicted less measured efficiency."""
        return self.efficiency(constants) - self.row.efficiency


def steps_of(rows: Iterable[ScaledRow], cache: Path | None = None) -> list[ScaledStep]:
    """The rows whose steps can be traced. Equal steps share their times.

    Args:
        rows: the rows.
        cache: a folder that keeps the traces.
    """
    rows, kernels = list(rows), default_predictor()
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        traces = Traces(cache or Path(folder))
        traces.make_missing([row.case for row in rows])
        for row in rows:
            trace = traces.find(row.case)
            if trace is not None:
                steps.append(ScaledStep(row, trace, kernels))
    return steps


def fit(steps: Sequence[ScaledStep]) -> OverlapConstants:
    """The constants that fit the stated rows best.

    The spread of ranks and the slowdown on NVLink are found on boards, the slowdown on cards then
    on cards, with that spread.
    """
    boards = [step for step in steps if step.row.is_stated and not step.is_on_cards]
    cards = [step for step in steps if step.row.is_stated and step.is_on_cards]

    def on_boards(nvlink: float, spread: float) -> OverlapConstants:
        return OverlapConstants({"nvlink": nvlink, "pcie": 0.0}, spread)

    chosen = _best(boards, [on_boards(*pair) for pair in product(SLOWDOWNS, SPREADS)])
    nvlink, spread = chosen.slowdown["nvlink"], chosen.rank_spread
    choices = [OverlapConstants({"nvlink": nvlink, "pcie": s}, spread) for s in SLOWDOWNS]
    return _best(cards, choices)


def _best(steps: Sequence[ScaledStep], choices: Sequence[OverlapConstants]) -> OverlapConstants:
    """The first of the choices whose mean error is almost the least."""
    errors = [mean_error(steps, constants) for constants in choices]
    least = min(errors)
    return next(
        constants
        for constants, error in zip(choices, errors, strict=True)
        if error <= least + ALMOST
    )


def mean_error(steps: Sequence[ScaledStep], constants: OverlapConstants) -> float:
    """The mean absolute error of the efficiency, as a share."""
    return fmean(abs(step.error(constants)) for step in steps)


def without(
    steps: Sequence[ScaledStep], key: Callable[[ScaledStep], str]
) -> dict[str, OverlapConstants]:
    """For each group of steps, the constants that were fitted without it."""
    groups = sorted({key(step) for step in steps})
    return {group: fit([s for s in steps if key(s) != group]) for group in groups}


def to_toml(constants: OverlapConstants, rows: int) -> str:
    """The text of the shipped file."""
    lines = [_HEAD.format(rows=rows), f"rank_spread = {constants.rank_spread}", "", "[slowdown]"]
    lines += [f"{name} = {value}" for name, value in constants.slowdown.items()]
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Fit the constants and write them."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, "lambda")
    parser.add_argument("--cache", type=Path, help="folder that keeps the traces")
    args = parser.parse_args(given)
    steps = steps_of(lambda_rows(args.data), args.cache)
    constants, stated = fit(steps), [step for step in steps if step.row.is_stated]
    write_whole(OUT, to_toml(constants, len(stated)))
    print(f"{constants}: {100 * mean_error(stated, constants):.2f} points")
