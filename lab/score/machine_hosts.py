"""What knowing the host would gain: each machine's steps with a factor from its other models.

    python -m lab.score.machine_hosts --data FOLDER --cache FOLDER [--write]

Every public table, and every lease of our GPU, had another host. All of them are predicted with the
reference host. Here each machine gets one factor (`--host-factor`). It is taken from the steps of
all other model families on that machine, never from the family that is judged, and is about what
`wavecast calibrate` would measure. GPUs of the public tables are left out of the fit, as in
`lab.score.accuracy`. `--write` puts the table into docs/appendix/accuracy-hosts.md.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import wavecast
from lab import needs
from lab.fit.generations import LeftOut
from lab.measured import own_steps, public_steps
from lab.measured.comparison import read
from lab.measured.public_steps.case import Case, Traces
from lab.score import pages
from wavecast import Predictor, Trace
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.predictors.learned.gpus import Floats
from wavecast.predictors.learned.predictor import Learned

MARK = "begin: python -m lab.score.machine_hosts"
SETS = ("h200", "torchcnn")
"""Sets with steps that wait for the host."""
FACTORS = 2.0 ** np.linspace(-1.25, 1.0, 13)


@dataclass(frozen=True, eq=False)
class HostRow:
    """A step, and its predicted seconds with each of `FACTORS`."""

    case: Case
    reference_s: float
    seconds: Floats

    @property
    def machine(self) -> str:
        """The machine of the step: a GPU of a public table, or one lease of ours."""
        ours = self.case.set.startswith("h200")
        return self.case.set if ours else f"{self.case.set.split()[0]} {self.case.gpu}"


def played(traced: Iterable[tuple[Case, Trace]], left_out: LeftOut) -> Iterator[HostRow]:
    """Each step, predicted on hosts of all factors."""
    for case, trace in traced:
        predictor: Predictor = Learned.shipped()
        if not case.set.startswith("h200"):
            predictor = left_out.aged(case.gpu) if case.old else left_out(case.gpu)
        found = wavecast.predict(trace, case.gpu, predictor=predictor, host="reference")
        hosts = (REFERENCE_HOST.scaled(float(factor)) for factor in FACTORS)
        seconds = np.array([replace(found, host=host).seconds for host in hosts])
        yield HostRow(case, found.seconds, seconds)


def judged(rows: Sequence[HostRow]) -> Iterator[tuple[HostRow, float, float]]:
    """Each step, the factor that other families on its machine show, and its seconds with it."""
    for row in rows:
        others = [
            other
            for other in rows
            if other.machine == row.machine and other.case.family != row.case.family
        ]
        off = np.array([np.abs(np.log(o.seconds / o.case.measured_s)) for o in others])
        best = int(np.argmin(np.minimum(off, 0.5).mean(axis=0)))
        yield row, float(FACTORS[best]), float(row.seconds[best])


def table(rows: Sequence[HostRow]) -> Iterator[str]:
    """A line for each machine, and one for all leases of our H200."""
    found = list(judged(rows))
    yield "| steps of | steps | reference host: mean | median | known: mean | median | factor |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    names = [*sorted({row.machine for row in rows}), "all of our H200"]
    for name in names:
        ours = name == names[-1]
        group = [
            each
            for each in found
            if each[0].machine == name or (ours and each[0].case.set.startswith("h200"))
        ]
        if not group:
            continue
        before = [abs(row.reference_s / row.case.measured_s - 1) for row, _, _ in group]
        after = [abs(seconds / row.case.measured_s - 1) for row, _, seconds in group]
        factor = "" if ours else f"{statistics.median(each[1] for each in group):.2f}"
        yield (
            f"| {name} | {len(group)} | {statistics.mean(before):.1%} "
            f"| {statistics.median(before):.1%} | {statistics.mean(after):.1%} "
            f"| {statistics.median(after):.1%} | {factor} |"
        )


def main() -> None:
    """Print the table, or put it into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, *needs.OPS_AND_STEPS)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="put the table into docs/appendix")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of models that are older than their library
    every = [*own_steps.cases(), *public_steps.cases(given.data)]
    cases = [case for case in every if case.set.startswith(SETS)]
    traces = Traces(given.cache)
    traces.make_missing(cases)
    traced = read(cases, traces)
    text = "\n".join(table(list(played(traced, LeftOut(given.data, given.cache)))))
    print(text)
    if given.write:
        pages.write(pages.APPENDIX / "accuracy-hosts.md", MARK, text)


if __name__ == "__main__":
    main()
