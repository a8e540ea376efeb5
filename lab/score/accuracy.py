"""Predicted against measured step times: our own steps on an H200, and public data sets.

    python -m lab score accuracy                                    our own steps only
    python -m lab score accuracy --data FOLDER --cache FOLDER       and the public sets
    python -m lab score accuracy ... --write                        and write docs/appendix

The public data is not shipped; `lab/measured/public_steps` names the files that it reads. Each step
is traced once and its trace is kept in the cache, so another predictor can be scored without
tracing again.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import needs, pages
from lab.fit.generations import Aged, LeftOut
from lab.measured import own_steps, public_steps
from lab.measured.comparison import Contender, Scored, groups, read, score, summary
from lab.measured.figures import Figures, record
from lab.measured.public_steps.case import Case, Traces
from lab.score import scaled_steps, step_tables
from wavecast import Device, Estimate
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.base import Predictor
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.mlp.predictor import Mlp
from wavecast.traces.step import Op


@dataclass(frozen=True)
class Backed(Predictor):
    """Habitat's networks, with another predictor for the ops that they cannot predict."""

    first: Mlp
    other: Learned

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The networks' estimate, or the other predictor's if they have none."""
        return self.first.predict(op, device) or self.other.predict(op, device)

    def predict_all(self, given: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The estimates of many ops, in the same order."""
        others = self.other.predict_all(given, device)
        return [
            self.first.predict(op, device) or other for op, other in zip(given, others, strict=True)
        ]


NETWORKS = Contender(step_tables.NETWORKS, lambda _: Backed(Mlp.shipped(), Learned.shipped()))
CONTENDERS = [
    Contender("roofline", lambda _: Roofline()),
    Contender("attainable", lambda _: Attainable.shipped()),
    Contender("learned", lambda _: Learned.shipped(), fit_aged=lambda _, era: Aged.shipped(era)),
]
"""The predictors to compare. The tables show the figures of the last one."""
LEFT_OUT = "GPU left out"
MARK = "begin: python -m lab score accuracy"
PLACE = re.compile(r" at \S+:\d+(?=:)")
"""The part of an error message that names a file of this machine."""


def failures(cases: Iterable[Case], traces: Traces) -> Iterator[str]:
    """A line for each step that cannot be traced."""
    reasons = {(case.set, case.model): traces.failure(case) for case in cases}
    for (name, model), reason in reasons.items():
        if reason is not None:
            short = PLACE.sub("", reason.splitlines()[0])[:160]
            yield f"- {name}, {model}: {short}"


def report(rows: Sequence[Scored], untraced: Sequence[str] = ()) -> dict[str, str]:
    """The Markdown tables of each appendix page, by the page's file name."""
    names = [contender.name for contender in CONTENDERS]
    shown = [row for row in rows if row.contender == names[-1]]
    return {
        "accuracy-steps.md": step_tables.by_set(rows, names),
        "accuracy-sets.md": step_tables.in_detail(shown, untraced),
        "accuracy-predictors.md": step_tables.by_predictor(rows, names),
    }


def figures_of(rows: Sequence[Scored]) -> dict[str, Figures]:
    """The five figures of each set, each GPU predicted by models fitted without its chip."""
    left_out = [row for row in rows if row.contender == LEFT_OUT]
    return {name: summary(group) for name, group in groups(left_out, lambda row: row.case.set)}


def main(given: Sequence[str] = ()) -> None:
    """Score the available sets, and print the tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.OPS_AND_STEPS, required=False)
    parser.add_argument("--cache", type=Path, help="folder that keeps traces and fits")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/appendix")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="score only sets whose names contain TEXT"
    )
    args = parser.parse_args(given)
    if args.write and (args.only or not (args.data and args.cache)):
        parser.error("--write needs all sets: give --data and --cache, and leave out --only")
    warnings.simplefilter("ignore")  # timm warns of models that are older than it
    fit = None
    if args.data and args.cache:
        fit = LeftOut(args.data, args.cache)
        CONTENDERS.append(Contender(LEFT_OUT, fit, leaves_out="gpu", fit_aged=fit.aged))
    with tempfile.TemporaryDirectory() as folder:
        traces = Traces(args.cache or Path(folder))
        every = [*own_steps.cases(), *(public_steps.cases(args.data) if args.data else ())]
        cases = [case for case in every if args.only in case.set]
        traces.make_missing(cases)
        rows = list(score(read(cases, traces), [*CONTENDERS, NETWORKS]))
        measured = scaled_steps.recorded(read(cases, traces))
        rows += score(measured, scaled_steps.contenders(fit), host=scaled_steps.HOST)
        texts = report(rows, list(failures(cases, traces)))
    for name, text in texts.items():
        print(text, end="\n\n")
        if args.write:
            pages.write(pages.APPENDIX / name, MARK, text)
    if args.write:
        record(figures_of(rows))
