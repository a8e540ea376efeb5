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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import needs, pages
from lab.figures import Figures, figures, percent, record
from lab.fit.generations import Aged, LeftOut
from lab.measured import own_steps, public_steps
from lab.measured.comparison import Contender, Scored, groups, parts, rankings, read, score, summary
from lab.measured.public_steps.case import Case, Traces
from lab.pages import heading
from lab.score import scaled_steps
from wavecast import Device, Estimate
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.base import Predictor
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.mlp import Mlp
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


WITH_NETWORKS = "networks"
NETWORKS = Contender(WITH_NETWORKS, lambda _: Backed(Mlp.shipped(), Learned.shipped()))
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


def report(
    rows: Sequence[Scored], untraced: Sequence[str] = (), *, whole: bool = False
) -> dict[str, str]:
    """The Markdown tables of each appendix page, by file name; the whole has what is printed."""
    names = [contender.name for contender in CONTENDERS]
    shown = [row for row in rows if row.contender == names[-1]]
    return {
        "accuracy-steps.md": by_set(rows, names, whole=whole),
        "accuracy-sets.md": in_detail(shown, untraced, whole=whole),
        "accuracy-predictors.md": by_predictor(rows, names, whole=whole),
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
        untraced = list(failures(cases, traces))
    print("\n\n".join(report(rows, untraced, whole=True).values()))
    if args.write:
        for name, text in report(rows, untraced).items():
            pages.write(pages.APPENDIX / name, MARK, text)
        record(figures_of(rows))


# The tables of `lab.score.accuracy`: whole steps by set, by GPU and by predictor, in Markdown.
#
# They are on three pages of docs/appendix: `by_set` makes those of accuracy-steps.md, `in_detail`
# those of accuracy-sets.md, and `by_predictor` those of accuracy-predictors.md. The pages have a
# part of the tables; the whole is printed.


WORST = 10
"""How many of the worst steps of a set are listed."""
FEW = 30
"""With fewer steps than this, factors for a dozen kinds of op are not fitted."""
LEAST_SHARE = 0.04
"""Kinds of op with a smaller share of the time are not listed."""
MOST_GROUPS = 40
"""A breakdown with more lines than this is left out."""
ON_THE_PAGE = ("GPU",)
"""The breakdowns of a set that its page has."""

Key = Callable[[Scored], str]


def breakdowns(rows: Sequence[Scored]) -> list[tuple[str, Key]]:
    """The keys by which to group the steps of a set: those with 2 to 40 values in it."""
    keys: dict[str, Key] = {
        "GPU": lambda row: row.case.gpu,
        "precision": lambda row: f"{row.case.precision} {row.case.layout}".strip(),
        "family": lambda row: row.case.family,
        "software": lambda row: row.case.software.partition(",")[0],
    }
    return [
        (title, key)
        for title, key in keys.items()
        if 1 < len({key(row) for row in rows}) <= MOST_GROUPS
    ]


def by_set(rows: Sequence[Scored], names: Sequence[str], *, whole: bool = False) -> str:
    """Errors by set, then tables that show where they come from.

    Args:
        rows: every case, predicted by every contender.
        names: the contenders to compare. The last is the one whose figures are shown.
        whole: whether to add what the page leaves out.
    """
    shown = [row for row in rows if row.contender == names[-1]]
    tables = [
        f"## By set\n\n{figures_table('set', shown, lambda row: row.case.set)}",
        _by_bound(shown) if whole else "",
        _gpu_times([row for row in rows if row.contender in names]) if whole else "",
        _ranks(rows, names),
        _kinds(shown) if whole else "",
    ]
    return "\n\n".join(table for table in tables if table)


def in_detail(rows: Sequence[Scored], untraced: Sequence[str] = (), *, whole: bool = False) -> str:
    """Each set by GPU; the whole is by precision, family and software, with worst steps, too.

    Args:
        rows: every case, predicted by the contender that is shown.
        untraced: a line for each step that could not be traced.
        whole: whether to add what the page leaves out.
    """
    tables = []
    for name, group in groups(rows, lambda row: row.case.set):
        chosen = [(title, key) for title, key in breakdowns(group) if whole or title in ON_THE_PAGE]
        if chosen:
            tables.append(f"## {_titled(name)}")
            tables += [figures_table(title, group, key) for title, key in chosen]
        if whole:
            tables.append(_worst(group))
    if untraced:
        tables.append("\n".join(["## Not traced", "", *untraced]))
    return "\n\n".join(tables)


def by_predictor(rows: Sequence[Scored], names: Sequence[str], *, whole: bool = False) -> str:
    """The errors of each contender on the same steps, by set; the whole has breakdowns, too."""
    chosen = [row for row in rows if row.contender in names]
    tables = [
        f"## By set\n\n{compared('set', chosen, names, lambda row: row.case.set)}",
        _networks(rows) if whole else "",
        scaled_steps.table(rows, whole=whole),
    ]
    for name, group in groups(chosen, lambda row: row.case.set) if whole else ():
        tables.append(f"## {_titled(name)}")
        tables += [compared(title, group, names, key) for title, key in breakdowns(group)]
    return "\n\n".join(table for table in tables if table)


def _titled(name: str) -> str:
    return f"{name[:1].upper()}{name[1:]}"


def figures_table(title: str, rows: Iterable[Scored], key: Key) -> str:
    """The figures of each group of steps, and how many of its steps wait for the host."""
    lines = [
        *heading(f"{title} | steps | mean | median | bias | worst | in range | wait for the host")
    ]
    for value, group in groups(rows, key):
        scores = summary(group)
        waits = sum(row.bound_by != "gpu" for row in group)
        cells = (*scores.cells(), percent(scores.in_range))
        lines.append(f"| {value} | {scores.count} | {' | '.join(cells)} | {waits or ''} |")
    return "\n".join(lines)


def compared(title: str, rows: Iterable[Scored], names: Sequence[str], key: Key) -> str:
    """Mean / median / bias / worst error of each contender, for each group of steps."""
    lines = [*heading(f"{title} | steps | {' | '.join(names)}")]
    for value, group in groups(rows, key):
        columns = [summary([row for row in group if row.contender == name]) for name in names]
        cells = (" / ".join(scores.cells()) for scores in columns)
        lines.append(f"| {value} | {columns[-1].count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_bound(rows: Sequence[Scored]) -> str:
    """Errors of the GPU-bound steps and of those that wait for the host, by set."""
    lines = [
        "## Steps that wait for the host",
        "",
        "`host-bound` steps are predicted to wait for the host at least part of the time. Their "
        "real hosts are unknown; all are predicted with the reference host.",
        "",
        *heading("set | GPU-bound | mean | bias | host-bound | mean | bias"),
    ]
    for name, group in groups(rows, lambda row: row.case.set):
        cells = []
        for on_gpu in (True, False):
            chosen = [row for row in group if (row.bound_by == "gpu") == on_gpu]
            if chosen:
                scores = summary(chosen)
                signed = percent(scores.bias, signed=True)
                cells.append(f"{scores.count} | {percent(scores.mean)} | {signed}")
            else:
                cells.append("0 | | ")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _gpu_times(rows: Iterable[Scored]) -> str:
    """Errors of the GPU-busy time, for the steps where it was measured."""
    timed = [row for row in rows if row.gpu_error is not None]
    if not timed:
        return ""
    lines = [
        "## GPU time alone",
        "",
        "On our H200 we also measured how long the GPU is busy in a step. The host does not affect "
        "this time.",
        "",
        *heading("set, predictor | steps | mean | bias"),
    ]
    for name, group in groups(timed, lambda row: f"{row.case.set}, {row.contender}"):
        scores = figures(row.gpu_error for row in group if row.gpu_error is not None)
        signed = percent(scores.bias, signed=True)
        lines.append(f"| {name} | {scores.count} | {percent(scores.mean)} | {signed} |")
    return "\n".join(lines)


def _ranks(rows: Sequence[Scored], names: Sequence[str]) -> str:
    """Kendall's tau of predicted against measured throughput, over the GPUs of each task."""
    taus: dict[str, dict[str, tuple[int, float]]] = {}
    for name in names:
        chosen = [r for r in rows if r.contender == name and r.case.set == "lambda"]
        for task, count, tau in rankings(chosen):
            taus.setdefault(task, {})[name] = (count, tau)
    if not taus:
        return ""
    lines = [
        "## The order of GPUs",
        "",
        "Lambda measured the same tasks on 13 GPUs. Kendall's tau compares the order of GPUs by "
        "predicted throughput with the measured order: 1 is the same order, 0 is unrelated.",
        "",
        *heading(f"task | GPUs | {' | '.join(names)}"),
    ]
    for task, by_name in taus.items():
        cells = " | ".join(f"{by_name[name][1]:.2f}" for name in names)
        lines.append(f"| {task} | {by_name[names[0]][0]} | {cells} |")
    return "\n".join(lines)


def _kinds(rows: Sequence[Scored]) -> str:
    """Which kinds of op the errors come from."""
    lines = [
        "## Which ops the errors come from",
        "",
        "For GPU-bound steps, the table shows by which factor the predicted times of each kind of "
        "op would have to be multiplied, with the kind's share of the time in brackets. The "
        "factors are fitted to the same steps that they correct, so they show which kinds of op "
        "are wrong, not how good a predictor could be.",
        "",
        *heading("set | steps | mean error | with the factors | factors", "lrrrl"),
    ]
    head = len(lines)
    bound = [row for row in rows if row.bound_by == "gpu"]
    for name, group in groups(bound, lambda row: f"{row.case.set}, {row.case.precision}"):
        if len(group) >= FEW:
            kinds, left = parts(group)
            cells = ", ".join(
                f"{part.kind} {part.factor:.2f} ({part.share:.0%})"
                for part in kinds
                if part.share >= LEAST_SHARE
            )
            mean = summary(group).mean
            lines.append(f"| {name} | {len(group)} | {mean:.0%} | {left:.0%} | {cells} |")
    return "\n".join(lines) if len(lines) > head else ""


def _networks(rows: Sequence[Scored]) -> str:
    """Errors with Habitat's networks, beside those of `learned` alone."""
    lines = [
        "## Habitat's networks",
        "",
        "Here Habitat's networks (`mlp`) predict products, convolutions and LSTMs, and `learned` "
        "predicts all other ops. The last column is `learned` alone.",
        "",
        *heading("set | steps | mean | median | bias | worst | `learned`: mean"),
    ]
    for name, group in groups(rows, lambda row: row.case.set):
        with_networks = [row for row in group if row.contender == WITH_NETWORKS]
        alone = [row for row in group if row.contender == "learned"]
        if with_networks and alone:
            cells = " | ".join(summary(with_networks).cells())
            mean = percent(summary(alone).mean)
            lines.append(f"| {name} | {len(with_networks)} | {cells} | {mean} |")
    return "\n".join(lines)


def _worst(rows: Sequence[Scored]) -> str:
    lines = [
        f"The worst of {len(rows)} steps:",
        "",
        *heading("step | GPU | measured | predicted | error | bound by", "llrrrl"),
    ]
    for row in sorted(rows, key=lambda row: -abs(row.error))[:WORST]:
        lines.append(
            f"| {row.case.name} | {row.case.gpu} | {row.case.measured_s * 1e3:.1f} ms "
            f"| {row.seconds * 1e3:.1f} ms | {row.error:+.0%} | {row.bound_by} |"
        )
    return "\n".join(lines)
