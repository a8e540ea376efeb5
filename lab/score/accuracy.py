"""Predicted against measured steps: our own on an H200, and every public set that is at hand.

    python -m lab.score.accuracy                                    our own measurements
    python -m lab.score.accuracy --data FOLDER --cache FOLDER       and those of others
    python -m lab.score.accuracy ... --write docs/accuracy.md       into the page

The data of others is not shipped; `lab/measured/public_steps` says what it reads. Traces are made
once and kept in the cache: after that, a new predictor is scored without making any.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.fit.generations import Aged, LeftOut
from lab.measured import own_steps, public_steps
from lab.measured.comparison import (
    Contender,
    Scored,
    Summary,
    groups,
    parts,
    rankings,
    read,
    score,
    summary,
)
from lab.measured.public_steps.case import Case, Traces
from lab.score import pages, scaled_steps
from wavecast import Device, Estimate
from wavecast.predictors.attainable import Attainable
from wavecast.predictors.base import Predictor
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.mlp.predictor import Mlp
from wavecast.predictors.roofline import Roofline
from wavecast.traces.step import Op


@dataclass(frozen=True)
class Backed(Predictor):
    """A predictor that answers for some ops, and one for the others."""

    first: Mlp
    other: Learned

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The first one's answer, if it has one."""
        return self.first.predict(op, device) or self.other.predict(op, device)

    def predict_all(self, given: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The same of many ops."""
        others = self.other.predict_all(given, device)
        return [
            self.first.predict(op, device) or own for op, own in zip(given, others, strict=True)
        ]


NETWORKS = Contender("networks", lambda _: Backed(Mlp.shipped(), Learned.shipped()))
"""Habitat's, for the products, convolutions and LSTMs that they answer for."""
CONTENDERS = [
    Contender("roofline", lambda _: Roofline()),
    Contender("attainable", lambda _: Attainable.shipped()),
    Contender("learned", lambda _: Learned.shipped(), fit_old=lambda _: Aged.shipped()),
]
"""The last is the one whose single steps are shown."""

MARK = "begin: python -m lab.score.accuracy"
WORST = 10
PLACE = re.compile(r" at \S+:\d+(?=:)")
"""Of an error, in a file of this machine."""
FEW = 30
"""Fewer steps than these say nothing about a dozen kinds of op."""


def failures(cases: Iterable[Case], traces: Traces) -> Iterator[str]:
    """A line for each step that cannot be traced."""
    found = {(case.set, case.model): traces.failure(case) for case in cases}
    for (name, model), reason in found.items():
        if reason is not None:
            short = PLACE.sub("", reason.splitlines()[0])[:160]
            yield f"- {name}, {model}: {short}"


def report(rows: Sequence[Scored]) -> str:
    """All tables, in Markdown."""
    shown = [row for row in rows if row.contender == CONTENDERS[-1].name]
    tables = [
        _table("### By set", "set", rows, lambda row: row.case.set),
        _waiting(shown),
        _gpu_times(rows),
        _networks(rows),
        scaled_steps.table(rows),
        _ranks(rows),
        _kinds(shown),
    ]
    for name, group in groups(rows, lambda row: row.case.set):
        own = [row for row in group if row.contender == CONTENDERS[-1].name]
        tables.append(f"### {name[:1].upper()}{name[1:]}")
        by: dict[str, Callable[[Scored], str]] = {
            "GPU": lambda row: row.case.gpu,
            "precision": lambda row: f"{row.case.precision} {row.case.layout}".strip(),
            "family": lambda row: row.case.family,
            "software": lambda row: row.case.software.partition(",")[0],
        }
        tables += [
            _table("", what, group, key)
            for what, key in by.items()
            if 1 < len({key(row) for row in group}) <= 40
        ]
        tables.append(_worst(own))
    return "\n\n".join(part for part in tables if part) + "\n"


def _table(title: str, what: str, rows: Iterable[Scored], key: Callable[[Scored], str]) -> str:
    names = [contender.name for contender in CONTENDERS]
    head = " | ".join(f"{name}: mean | median | bias | worst" for name in names)
    lines = [
        f"| {what} | steps | {head} | in range | wait for the host |",
        "|---|---:|" + "---:|" * (4 * len(names) + 2),
    ]
    for value, group in groups(rows, key):
        found = [summary([row for row in group if row.contender == name]) for name in names]
        cells = " | ".join(map(_errors, found))
        last = found[-1]
        lines.append(
            f"| {value} | {last.count} | {cells} | {last.within:.0%} | {last.waits or ''} |"
        )
    return "\n".join(([title, ""] if title else []) + lines)


def _errors(found: Summary) -> str:
    return f"{found.mean:.0%} | {found.median:.0%} | {found.bias:+.0%} | {found.worst:.0%}"


def _waiting(rows: Sequence[Scored]) -> str:
    """Steps that wait for the host, whose hosts we do not know, and the others."""
    lines = [
        f"Of `{CONTENDERS[-1].name}`, apart: steps predicted to wait for the host, which is the "
        "reference host here and was another there.",
        "",
        "| set | GPU-bound | mean | bias | others | mean | bias |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, group in groups(rows, lambda row: row.case.set):
        cells = []
        for bound in (True, False):
            part = [row for row in group if (row.bound_by == "gpu") == bound]
            found = summary(part) if part else None
            cells.append(
                f"{found.count} | {found.mean:.0%} | {found.bias:+.0%}" if found else "0 | | "
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _gpu_times(rows: Iterable[Scored]) -> str:
    """Where the time that the GPU is busy was measured."""
    known = [row for row in rows if row.gpu_error is not None and row.contender != NETWORKS.name]
    if not known:
        return ""
    lines = ["| set, GPU busy | steps | mean | bias |", "|---|---:|---:|---:|"]
    for name, group in groups(known, lambda row: f"{row.case.set}, {row.contender}"):
        errors = [row.gpu_error for row in group if row.gpu_error is not None]
        mean = sum(map(abs, errors)) / len(errors)
        lines.append(f"| {name} | {len(errors)} | {mean:.0%} | {sum(errors) / len(errors):+.0%} |")
    return "\n".join(lines)


def _networks(rows: Sequence[Scored]) -> str:
    """What Habitat's networks make of the same steps."""
    lines = [
        "Habitat's networks (`mlp`) for the products, convolutions and LSTMs that they answer for, "
        "and `learned` for all else:",
        "",
        "| set | steps | mean | median | bias | worst | `learned` alone: mean |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, group in groups(rows, lambda row: row.case.set):
        found = [row for row in group if row.contender == NETWORKS.name]
        alone = [row for row in group if row.contender == "learned"]
        if found and alone:
            cells = _errors(summary(found))
            lines.append(f"| {name} | {len(found)} | {cells} | {summary(alone).mean:.0%} |")
    return "\n".join(lines)


def _ranks(rows: Sequence[Scored]) -> str:
    """Whether GPUs come in the right order."""
    names = [contender.name for contender in CONTENDERS]
    taus: dict[str, dict[str, tuple[int, float]]] = {}
    for name in names:
        chosen = [r for r in rows if r.contender == name and r.case.set == "lambda"]
        for task, count, tau in rankings(chosen):
            taus.setdefault(task, {})[name] = (count, tau)
    if not taus:
        return ""
    lines = [
        "The order of GPUs by throughput (Lambda; Kendall's tau, 1 is the same order):",
        "",
        f"| task | GPUs | {' | '.join(names)} |",
        "|---|---:|" + "---:|" * len(names),
    ]
    for task, found in taus.items():
        cells = " | ".join(f"{found[name][1]:.2f}" for name in names)
        lines.append(f"| {task} | {found[names[0]][0]} | {cells} |")
    return "\n".join(lines)


def _kinds(rows: Sequence[Scored]) -> str:
    """Which kinds of op the errors come from."""
    lines = [
        f"Where the errors of `{CONTENDERS[-1].name}` come from, in GPU-bound steps: factors by "
        "which the times of each kind of op would have to be multiplied, kinds with at least 4% "
        "of the time (in brackets). The factors are fitted to these very steps: they say what is "
        "wrong, not how good a predictor could be.",
        "",
        "| set | steps | mean error | with the factors, in sample | factors |",
        "|---|---:|---:|---:|---|",
    ]
    bound = [row for row in rows if row.bound_by == "gpu"]
    for name, group in groups(bound, lambda row: f"{row.case.set}, {row.case.precision}"):
        if len(group) >= FEW:
            found, left = parts(group)
            cells = ", ".join(
                f"{part.kind} {part.factor:.2f} ({part.share:.0%})"
                for part in found
                if part.share >= 0.04
            )
            mean = summary(group).mean
            lines.append(f"| {name} | {len(group)} | {mean:.0%} | {left:.0%} | {cells} |")
    return "\n".join(lines) if len(lines) > 4 else ""


def _worst(rows: Sequence[Scored]) -> str:
    lines = [
        f"Worst of {len(rows)}:",
        "",
        "| step | GPU | measured | predicted | error | bound by |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: -abs(row.error))[:WORST]:
        lines.append(
            f"| {row.case.name} | {row.case.gpu} | {row.case.measured_s * 1e3:.1f} ms "
            f"| {row.seconds * 1e3:.1f} ms | {row.error:+.0%} | {row.bound_by} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Score what is at hand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder of published measurements")
    parser.add_argument("--cache", type=Path, help="where traces are kept")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables there, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="sets whose names have this")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of models that are older than their library
    fit = None
    if given.data and given.cache:
        fit = LeftOut(given.data, given.cache)
        CONTENDERS.append(Contender("GPU left out", fit, leaves_out="gpu", fit_old=fit.aged))
    with tempfile.TemporaryDirectory() as place:
        traces = Traces(given.cache or Path(place))
        every = [*own_steps.cases(), *(public_steps.cases(given.data) if given.data else ())]
        cases = [case for case in every if given.only in case.set]
        traces.make_missing(cases)
        rows = list(score(read(cases, traces), [*CONTENDERS, NETWORKS]))
        measured = scaled_steps.recorded(read(cases, traces))
        rows += score(measured, scaled_steps.contenders(fit), host=scaled_steps.HOST)
        text = report(rows)
        untraced = list(failures(cases, traces))
    if untraced:
        text += "\n".join(["\nNot traced:", "", *untraced]) + "\n"
    print(text)
    if given.write:
        pages.write(given.write, MARK, text.rstrip("\n"))


if __name__ == "__main__":
    main()
