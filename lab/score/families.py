"""Our own steps, predicted by models that never saw an op of their family of models.

    python -m lab.score.families --data FOLDER --cache FOLDER [--write docs/accuracy.md]

Families (BERT of all sizes, VGG, ...) are dealt into `FOLDS` groups. For each group the op models
are fitted anew without every op that only its steps have, and steps of models with a family's name
in theirs (RoBERTa, RepVGG); what other steps, the sweep of single layers and other GPUs have of the
same shapes stays. The H200 stays in the fit: this is about models never seen, on a GPU that was.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from lab.fit.learned import kept_fit, rows_of
from lab.measured import own_steps
from lab.measured.comparison import Contender, Scored, groups, read, score, summary
from lab.measured.op_data import OUR_STEPS, OpRow, digest, fitted_traces
from lab.measured.public_steps.case import Case, Traces
from lab.score import pages
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op

FOLDS = 6
NAME = "family left out"
SWEEP = "sweep"


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
    """Errors by set and by family, beside those of the shipped fit, which has seen the ops."""
    lines = [
        "| | steps | GPU time: mean | median | bias | in the fit: mean | "
        "iteration: mean | median | in the fit: mean | in range |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    fitted = {(row.case.set, row.case.name): row for row in known}

    def line(name: str, group: Sequence[Scored]) -> str:
        others = [fitted[row.case.set, row.case.name] for row in group]
        gpu, gpu_fitted = ([r.gpu_error or 0.0 for r in each] for each in (group, others))
        whole, whole_fitted = summary(group), summary(others)
        cells = (
            f"{_mean(gpu):.1%} | {statistics.median(map(abs, gpu)):.1%} | "
            f"{statistics.mean(gpu):+.1%} | {_mean(gpu_fitted):.1%}"
        )
        return (
            f"| {name} | {len(group)} | {cells} | {whole.mean:.1%} | {whole.median:.1%} | "
            f"{whole_fitted.mean:.1%} | {whole.within:.0%} |"
        )

    lines += [line(name, group) for name, group in groups(rows, lambda row: row.case.set)]
    lines.append(line("**all**", rows))
    for _, group in groups(rows, lambda row: family_of(row.case.model)):
        lines.append(line(", ".join(sorted({row.case.model for row in group})), group))
    return "\n".join(lines)


def _always(model: Learned, _: str) -> Learned:
    return model


def _mean(errors: Sequence[float]) -> float:
    return statistics.mean(map(abs, errors))


def main() -> None:
    """Fit, predict, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the public tables")
    parser.add_argument("--cache", type=Path, required=True, help="where fits and traces are kept")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table there, too")
    given = parser.parse_args()
    cases = list(own_steps.cases())
    traces = Traces(given.cache)
    traces.make_missing(cases)
    found: list[Scored] = []
    for model, own in folds(cases, given.data, given.cache):
        found += score(read(own, traces), [Contender(NAME, partial(_always, model))])
    known = list(score(read(cases, traces), [Contender("shipped", lambda _: Learned.shipped())]))
    text = table(found, known)
    print(text)
    if given.write:
        pages.write(given.write, "families", text)


if __name__ == "__main__":
    main()
