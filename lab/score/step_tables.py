"""The tables of `lab.score.accuracy`: whole steps by set, by GPU and by predictor, in Markdown.

Three pages have them. `by_set` goes into docs/appendix/accuracy-steps.md, `in_detail` into
accuracy-sets.md and `by_predictor` into accuracy-predictors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lab.measured.comparison import Scored, groups, parts, rankings, summary
from lab.measured.figures import figures, percent
from lab.score import scaled_steps

NETWORKS = "networks"
"""The contender that asks Habitat's networks first."""
WORST = 10
"""How many of the worst steps of a set are listed."""
FEW = 30
"""A set with fewer steps than this says nothing about a dozen kinds of op."""
LEAST_SHARE = 0.04
"""Kinds of op with a smaller share of the time are not listed."""
MOST_GROUPS = 40
"""A breakdown with more lines than this is left out."""

Key = Callable[[Scored], str]


def breakdowns(rows: Sequence[Scored]) -> list[tuple[str, Key]]:
    """The keys by which the steps of a set can be grouped: those with 2 to 40 values."""
    keys: dict[str, Key] = {
        "GPU": lambda row: row.case.gpu,
        "precision": lambda row: f"{row.case.precision} {row.case.layout}".strip(),
        "family": lambda row: row.case.family,
        "software": lambda row: row.case.software.partition(",")[0],
    }
    return [
        (what, key)
        for what, key in keys.items()
        if 1 < len({key(row) for row in rows}) <= MOST_GROUPS
    ]


def by_set(rows: Sequence[Scored], names: Sequence[str]) -> str:
    """Errors by set, then what they come from.

    Args:
        rows: every case by every contender.
        names: the contenders to compare. The last is the one whose figures are shown.
    """
    shown = [row for row in rows if row.contender == names[-1]]
    tables = [
        f"## By set\n\n{figures_table('set', shown, lambda row: row.case.set)}",
        _by_bound(shown),
        _gpu_times([row for row in rows if row.contender in names]),
        _ranks(rows, names),
        _kinds(shown),
    ]
    return "\n\n".join(table for table in tables if table)


def in_detail(rows: Sequence[Scored], untraced: Sequence[str] = ()) -> str:
    """Each set by GPU, precision, family and software, and its worst steps.

    Args:
        rows: every case by the contender that is shown.
        untraced: a line for each step that could not be traced.
    """
    tables = []
    for name, group in groups(rows, lambda row: row.case.set):
        tables.append(f"## {_titled(name)}")
        tables += [figures_table(what, group, key) for what, key in breakdowns(group)]
        tables.append(_worst(group))
    if untraced:
        tables.append("\n".join(["## Not traced", "", *untraced]))
    return "\n\n".join(tables)


def by_predictor(rows: Sequence[Scored], names: Sequence[str]) -> str:
    """The same steps by each contender: by set, by what a set can be grouped by, and scaled."""
    chosen = [row for row in rows if row.contender in names]
    tables = [
        f"## By set\n\n{compared('set', chosen, names, lambda row: row.case.set)}",
        _networks(rows),
        scaled_steps.table(rows),
    ]
    for name, group in groups(chosen, lambda row: row.case.set):
        tables.append(f"## {_titled(name)}")
        tables += [compared(what, group, names, key) for what, key in breakdowns(group)]
    return "\n\n".join(table for table in tables if table)


def _titled(name: str) -> str:
    return f"{name[:1].upper()}{name[1:]}"


def figures_table(what: str, rows: Iterable[Scored], key: Key) -> str:
    """The figures of each group, and how many of its steps wait for the host."""
    lines = [
        f"| {what} | steps | mean | median | bias | worst | in range | wait for the host |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for value, group in groups(rows, key):
        found = summary(group)
        waits = sum(row.bound_by != "gpu" for row in group)
        cells = (*found.cells(), percent(found.in_range))
        lines.append(f"| {value} | {found.count} | {' | '.join(cells)} | {waits or ''} |")
    return "\n".join(lines)


def compared(what: str, rows: Iterable[Scored], names: Sequence[str], key: Key) -> str:
    """Mean / median / bias / worst error of each contender."""
    lines = [f"| {what} | steps | {' | '.join(names)} |", "|---|---:|" + "---:|" * len(names)]
    for value, group in groups(rows, key):
        each = [summary([row for row in group if row.contender == name]) for name in names]
        cells = (" / ".join(found.cells()) for found in each)
        lines.append(f"| {value} | {each[-1].count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_bound(rows: Sequence[Scored]) -> str:
    """Steps that wait for the host, whose hosts we do not know, and the others."""
    lines = [
        "## Steps that wait for the host",
        "",
        "These steps are predicted to wait for the host at least in part. Each was measured on a "
        "host that we do not know, and is predicted with the reference host.",
        "",
        "| set | GPU-bound | mean | bias | host-bound | mean | bias |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, group in groups(rows, lambda row: row.case.set):
        cells = []
        for on_gpu in (True, False):
            chosen = [row for row in group if (row.bound_by == "gpu") == on_gpu]
            if chosen:
                found = summary(chosen)
                signed = percent(found.bias, signed=True)
                cells.append(f"{found.count} | {percent(found.mean)} | {signed}")
            else:
                cells.append("0 | | ")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _gpu_times(rows: Iterable[Scored]) -> str:
    """Errors of the time that the GPU is busy, where it was measured."""
    known = [row for row in rows if row.gpu_error is not None]
    if not known:
        return ""
    lines = [
        "## GPU time alone",
        "",
        "On our H200 the time that the GPU is busy was measured as well, so that the host does not "
        "matter here.",
        "",
        "| set, predictor | steps | mean | bias |",
        "|---|---:|---:|---:|",
    ]
    for name, group in groups(known, lambda row: f"{row.case.set}, {row.contender}"):
        found = figures(row.gpu_error for row in group if row.gpu_error is not None)
        signed = percent(found.bias, signed=True)
        lines.append(f"| {name} | {found.count} | {percent(found.mean)} | {signed} |")
    return "\n".join(lines)


def _ranks(rows: Sequence[Scored], names: Sequence[str]) -> str:
    """Whether GPUs come in the right order."""
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
        f"| task | GPUs | {' | '.join(names)} |",
        "|---|---:|" + "---:|" * len(names),
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
        "For GPU-bound steps: the factor by which the predicted times of each kind of op would "
        "have to be multiplied, with the kind's share of the time in brackets. The factors are "
        "fitted to these very steps. They show what is wrong, not how good a predictor could be.",
        "",
        "| set | steps | mean error | with the factors | factors |",
        "|---|---:|---:|---:|---|",
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
    """How the same steps come out with Habitat's networks."""
    lines = [
        "## Habitat's networks",
        "",
        "Habitat's networks (`mlp`) answer for products, convolutions and LSTMs, and `learned` "
        "answers for all other ops. The last column is `learned` alone.",
        "",
        "| set | steps | mean | median | bias | worst | `learned`: mean |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, group in groups(rows, lambda row: row.case.set):
        with_networks = [row for row in group if row.contender == NETWORKS]
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
        "| step | GPU | measured | predicted | error | bound by |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: -abs(row.error))[:WORST]:
        lines.append(
            f"| {row.case.name} | {row.case.gpu} | {row.case.measured_s * 1e3:.1f} ms "
            f"| {row.seconds * 1e3:.1f} ms | {row.error:+.0%} | {row.bound_by} |"
        )
    return "\n".join(lines)
