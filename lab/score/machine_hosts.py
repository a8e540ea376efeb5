"""How much would it gain to know each machine's host? One host factor for each machine.

    python -m lab.score.machine_hosts --data FOLDER --cache FOLDER [--write]

The steps of every public table, and of every lease of our GPU, ran on a different host. By default
they are all predicted with the reference host. Here each machine gets one factor (`--host-factor`).
The factor for a model family is fitted on the steps of all other families on the same machine. It
is about what `wavecast calibrate` would measure. GPUs of the public tables are left out of the fit
of ops, as in `lab.score.accuracy`. `--write` puts the table into docs/appendix/accuracy-hosts.md.
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
"""The first words of the sets that have steps which wait for the host."""
FACTORS = 2.0 ** np.linspace(-1.25, 1.0, 13)
"""The host factors to try."""


@dataclass(frozen=True, eq=False)
class HostRow:
    """A step, its time predicted with the reference host, and that with each of `FACTORS`."""

    case: Case
    reference_s: float
    seconds: Floats

    @property
    def machine(self) -> str:
        """The machine of the step: a GPU of a public table, or one lease of ours."""
        ours = self.case.set.startswith("h200")
        return self.case.set if ours else f"{self.case.set.split()[0]} {self.case.gpu}"


def played(traced: Iterable[tuple[Case, Trace]], left_out: LeftOut) -> Iterator[HostRow]:
    """Each step, predicted with every host factor."""
    for case, trace in traced:
        predictor: Predictor = Learned.shipped()
        if not case.set.startswith("h200"):
            predictor = left_out.aged(case.gpu) if case.old else left_out(case.gpu)
        prediction = wavecast.predict(trace, case.gpu, predictor=predictor, host="reference")
        hosts = (REFERENCE_HOST.scaled(float(factor)) for factor in FACTORS)
        seconds = np.array([replace(prediction, host=host).seconds for host in hosts])
        yield HostRow(case, prediction.seconds, seconds)


def judged(rows: Sequence[HostRow]) -> Iterator[tuple[HostRow, float, float]]:
    """Each step, the best factor for the other families on its machine, and its time with it."""
    for row in rows:
        others = [
            other
            for other in rows
            if other.machine == row.machine and other.case.family != row.case.family
        ]
        off = np.array([np.abs(np.log(other.seconds / other.case.measured_s)) for other in others])
        best = int(np.argmin(np.minimum(off, 0.5).mean(axis=0)))
        yield row, float(FACTORS[best]), float(row.seconds[best])


def table(rows: Sequence[HostRow]) -> Iterator[str]:
    """A line for each machine, and one for all leases of our H200."""
    judged_rows = list(judged(rows))
    columns = "reference host: mean | median | with factor: mean | median | factor"
    yield f"| machine | steps | {columns} |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    names = [*sorted({row.machine for row in rows}), "all H200 machines"]
    for name in names:
        ours = name == names[-1]
        group = [
            scored
            for scored in judged_rows
            if scored[0].machine == name or (ours and scored[0].case.set.startswith("h200"))
        ]
        if not group:
            continue
        before = [abs(row.reference_s / row.case.measured_s - 1) for row, _, _ in group]
        after = [abs(seconds / row.case.measured_s - 1) for row, _, seconds in group]
        factor = "" if ours else f"{statistics.median(best for _, best, _ in group):.2f}"
        yield (
            f"| {name} | {len(group)} | {statistics.mean(before):.1%} "
            f"| {statistics.median(before):.1%} | {statistics.mean(after):.1%} "
            f"| {statistics.median(after):.1%} | {factor} |"
        )


def main() -> None:
    """Print the table, and write it into the page if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, *needs.OPS_AND_STEPS)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="put the table into docs/appendix")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # libraries warn of models that are older than they are
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
