"""Our own steps, predicted by models that never saw an op of their model family.

    python -m lab.score.families --data FOLDER --cache FOLDER [--write]

The families (BERT of all sizes, VGG, ...) are dealt into `FOLDS` groups. For each group the op
models are fitted again without two things: the ops that only its steps have, and all steps of
models with a family's name in theirs (RoBERTa, RepVGG). Ops of the same shapes that other steps,
the sweep of single layers or other GPUs have stay in. The H200 stays in the fit as well: this is
about models never seen, on a GPU that was measured. `--write` puts the tables into
docs/appendix/accuracy-families.md.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from lab import needs
from lab.fit.learned import kept_fit, rows_of
from lab.measured import own_steps
from lab.measured.comparison import Contender, Scored, groups, read, score, summary
from lab.measured.figures import Figures, figures, percent, record
from lab.measured.op_data import OUR_STEPS, fitted_traces
from lab.measured.op_row import OpRow, digest
from lab.measured.public_steps.case import Case, Traces
from lab.score import pages
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op

FOLDS = 6
NAME = "family left out"
SWEEP = "sweep"
MARK = "begin: python -m lab.score.families"


def family_of(model: str) -> str:
    """BERT for bert-base and hf_bert_padded: the letters that a model's name begins with."""
    found = re.match(r"(?:hf_)?([a-z]+(?:\d+[a-z]+)?)", model)
    return found[1] if found else model


def fold_of(family: str, families: Sequence[str]) -> int:
    """The group that a family is left out with."""
    return sorted(families).index(family) % FOLDS


def owners() -> dict[Op, set[str]]:
    """The models (or the sweep) that each measured op was seen in."""
    found: dict[Op, set[str]] = defaultdict(set)
    for campaign, key, trace in fitted_traces():
        owner = SWEEP if campaign == SWEEP else key.partition("-b")[0].lower()
        for op in trace.counts:
            found[op].add(owner)
    return found


def kept(rows: Iterable[OpRow], left_out: set[str], seen: dict[Op, set[str]]) -> list[OpRow]:
    """The rows of which something is known without these families."""
    models = {model for owners in seen.values() for model in owners}
    gone = {model for model in models if any(family in model for family in left_out)}
    return [row for row in rows if row.source != OUR_STEPS or not seen[row.ops[0]] <= gone]


def fitted_without(left_out: set[str], data: Path, cache: Path) -> Learned:
    """The models fitted without the ops of these families; kept in a folder."""
    rows = kept(rows_of(data), left_out, owners())
    return kept_fit(cache / f"learned-families-{digest(rows)[:12]}.npz", rows)


def folds(cases: Sequence[Case], data: Path, cache: Path) -> Iterator[tuple[Learned, list[Case]]]:
    """Models that were fitted without some families, and the cases of these."""
    families = sorted({family_of(case.model) for case in cases})
    for fold in range(FOLDS):
        out = {each for each in families if fold_of(each, families) == fold}
        own = [case for case in cases if family_of(case.model) in out]
        yield fitted_without(out, data, cache), own
        print(f"group {fold + 1} of {FOLDS}: {', '.join(sorted(out))}", flush=True)


def table(rows: Sequence[Scored], known: Sequence[Scored]) -> str:
    """Errors by set and by family, beside those of the shipped fit, which has seen the ops.

    Args:
        rows: the steps as predicted without their family.
        known: the same steps as the shipped models predict them.
    """
    fitted = {(row.case.set, row.case.name): row for row in known}
    parts = {name: list(group) for name, group in groups(rows, lambda row: row.case.set)}
    parts["**all**"] = list(rows)
    for _, group in groups(rows, lambda row: family_of(row.case.model)):
        parts[", ".join(sorted({row.case.model for row in group}))] = group
    lines = [
        "## GPU time",
        "",
        "| | steps | mean | median | bias | worst | in range | in the fit: mean |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, group in parts.items():
        found = gpu_figures(group)
        others = gpu_figures([fitted[row.case.set, row.case.name] for row in group])
        cells = [*found.cells(1), percent(found.in_range)]
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} | {percent(others.mean, 1)} |")
    lines += [
        "",
        "## Iterations",
        "",
        "| | steps | mean | median | in range | in the fit: mean |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, group in parts.items():
        found = summary(group)
        others = summary([fitted[row.case.set, row.case.name] for row in group])
        cells = [*found.cells(1)[:2], percent(found.in_range)]
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} | {percent(others.mean, 1)} |")
    return "\n".join(lines)


def gpu_figures(rows: Sequence[Scored]) -> Figures:
    """The five figures of the time that the GPU is busy."""
    known = [row for row in rows if row.gpu_error is not None]
    return figures((row.gpu_error or 0.0 for row in known), (row.gpu_within for row in known))


def _always(model: Learned, _: str) -> Learned:
    return model


def main() -> None:
    """Fit, predict, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    needs.add_data(parser, *needs.SINGLE_OPS)
    parser.add_argument("--cache", type=Path, required=True, help="where fits and traces are kept")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/appendix")
    given = parser.parse_args()
    cases = list(own_steps.cases())
    traces = Traces(given.cache)
    traces.make_missing(cases)
    rows: list[Scored] = []
    for model, own in folds(cases, given.data, given.cache):
        rows += score(read(own, traces), [Contender(NAME, partial(_always, model))])
    known = list(score(read(cases, traces), [Contender("shipped", lambda _: Learned.shipped())]))
    text = table(rows, known)
    print(text)
    if given.write:
        pages.write(pages.APPENDIX / "accuracy-families.md", MARK, text)
        record(
            {
                "h200 GPU time, in the fit": gpu_figures(known),
                "h200 GPU time, families left out": gpu_figures(rows),
            }
        )


if __name__ == "__main__":
    main()
