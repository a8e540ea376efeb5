"""How wide the range of a step must be for nine in ten measured steps to lie within it.

    python -m lab.score.ranges --data FOLDER --cache FOLDER [--write]

This is split conformal prediction, by what is known of the GPU and of the host
(`wavecast.steps.ranges`). Of the GPU-bound steps of a class, one in twenty took less than the power
`below` of their ops' ranges allows, and one in twenty took more than `above` allows. Of the
host-bound steps, the same holds for factors. Every step counts once. Many steps share a host, so
for hosts every owner of a table counts once (docs/adr/0020-what-is-known-of-a-gpu.md says why). The
classes differ in how a step was predicted:

* `unseen` and `foreign` GPUs, `unknown` and `foreign` hosts: by models fitted without the GPU's
  chip, on the reference host. These are published steps. Foreign GPUs are of a vendor none of whose
  ops is in the fit. `unknown` has our own hosts as well, as if they had not been calibrated, with
  the machine left out of the reference.
* `measured` GPUs: by models that saw the chip, but no model of the step's family (our H200).
* `known` hosts: with a host calibrated between the timings, its costs fitted without the machine
  and without the model (`lab.score.iterations`).

The command prints how many steps of each source lie in their ranges, and how many would if the
ranges were made from the other sources alone. It writes data/models/ranges.toml; `--write` puts the
table into docs/appendix/accuracy-ranges.md.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import wavecast
from lab import needs
from lab.fit.generations import LeftOut
from lab.measured import own_steps, public_steps
from lab.measured.comparison import read
from lab.measured.public_steps.case import Traces
from lab.places import MODELS
from lab.score import iterations, pages
from lab.score.families import folds
from wavecast import Prediction
from wavecast.steps.ranges import VENDOR

OUTSIDE = 0.05
"""The share of steps on either side of their ranges."""
MARGIN = 1.3
"""The GPU or the host sets the pace if it takes longer than the other by this factor."""
GPU_CLASSES = ("measured", "unseen", "foreign")
HOST_CLASSES = ("known", "unknown", "foreign")
MARK = "begin: python -m lab.score.ranges"


@dataclass(frozen=True)
class Score:
    """How far the range of a step would have to reach to hold its measured time."""

    part: str
    """The part that set the pace: "gpu" or "host"."""
    known: str
    """The class of the GPU or of the host."""
    source: str
    below: float
    above: float
    """How far down and up: powers of its ops' ranges for a GPU, factors for a host."""


def on_gpu(found: Prediction, ratio: float, known: str, source: str) -> Score:
    """The score of a GPU-bound step; `ratio` is measured over predicted."""
    least, most = found.gpu_spread
    below, above = (max(math.log(ratio) / math.log(end), 0.0) for end in (least, most))
    return Score("gpu", known, source, below, above)


def on_host(ratio: float, known: str, source: str) -> Score:
    """The score of a host-bound step."""
    return Score("host", known, source, 1 / ratio, ratio)


def published(data: Path, cache: Path) -> Iterator[Score]:
    """Published steps, chips left out; compiled ones are other steps than we trace."""
    left_out = LeftOut(data, cache)
    cases = [case for case in public_steps.cases(data) if "compiled" not in case.set]
    traces = Traces(cache)
    traces.make_missing(cases)
    for case, trace in read(cases, traces):
        predictor = (left_out.aged if case.old else left_out)(case.gpu)
        found = wavecast.predict(trace, case.gpu, predictor=predictor, host="reference")
        ratio = case.measured_s / found.seconds
        foreign = found.device.vendor != VENDOR
        if found.gpu_s > MARGIN * found.host_s:
            yield on_gpu(found, ratio, "foreign" if foreign else "unseen", case.set)
        elif found.host_s > MARGIN * found.gpu_s:
            yield on_host(ratio, "foreign" if foreign else "unknown", case.set)


def ours(data: Path, cache: Path) -> Iterator[Score]:
    """GPU times of our own steps, families left out."""
    cases, traces = list(own_steps.cases()), Traces(cache)
    traces.make_missing(cases)
    for model, own in folds(cases, data, cache):
        for case, trace in read(own, traces):
            found = wavecast.predict(trace, case.gpu, predictor=model, host="reference")
            if case.gpu_s:
                yield on_gpu(found, case.gpu_s / found.gpu_s, "measured", case.set)


def timed(data: Path, cache: Path) -> Iterator[Score]:
    """Iterations on our own machines, whose hosts were calibrated or not."""
    classes = {iterations.HOST_OUT: "known", iterations.REFERENCE: "unknown"}
    for row in iterations.rows(data, cache, classes):
        if row.host_over_gpu > MARGIN and not row.unseen:
            yield on_host(1 / (1 + row.error), classes[row.host], f"h200 {row.machine} machine")


def highest(values: Iterable[float], weights: Iterable[float]) -> float:
    """The value that all but `OUTSIDE` do not exceed, corrected for few values."""
    ordered = sorted(zip(values, weights, strict=True))
    share = (1 - OUTSIDE) * (len(ordered) + 1) / len(ordered)
    found, weight = zip(*ordered, strict=True)
    below = np.cumsum(weight) / sum(weight)
    return float(found[min(int(np.searchsorted(below, share - 1e-9)), len(found) - 1)])


def ends(scores: Sequence[Score]) -> tuple[float, float]:
    """How far down and up the range of steps of one part and class must reach."""
    count = Counter(_owner(each.source) for each in scores)
    weights = [1 / count[_owner(s.source)] if s.part == "host" else 1.0 for s in scores]
    return (
        highest([each.below for each in scores], weights),
        highest([each.above for each in scores], weights),
    )


def _owner(source: str) -> str:
    """The owner of a table: training and inference were measured by the same people."""
    return source.split()[0]


def is_within(step: Score, wanted: tuple[float, float]) -> bool:
    """Whether a step lies in a range that reaches so far."""
    return step.below <= wanted[0] and step.above <= wanted[1]


def to_toml(scores: Sequence[Score]) -> str:
    """The file's content."""
    lines = [
        "# The ranges of step times (wavecast/steps/ranges.py), by what is known about GPU and",
        "# host. Nine in ten steps that no model was fitted on lie in them.",
        "# Written by lab/score/ranges.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
    ]
    for part, classes in (("gpu", GPU_CLASSES), ("host", HOST_CLASSES)):
        for known in classes:
            same = [each for each in scores if (each.part, each.known) == (part, known)]
            below, above = ends(same)
            powers = f"below = {below:.3f}\nabove = {above:.3f}"
            factors = f"low = {1 / below:.3f}\nhigh = {above:.3f}"
            lines += ["", f"[{part}.{known}]", powers if part == "gpu" else factors]
            lines += [f"steps = {len(same)}"]
    return "\n".join(lines) + "\n"


def table(scores: Sequence[Score]) -> Iterator[str]:
    """By part, class and source: steps in range, and in the range that the other sources make."""
    yield "| bound by | known of it | source | steps | in range | by the other sources' range |"
    yield "|---|---|---|---:|---:|---:|"
    for part, known in dict.fromkeys((each.part, each.known) for each in scores):
        same = [each for each in scores if (each.part, each.known) == (part, known)]
        sources = sorted({each.source for each in same})
        for source in (*sources, "all"):
            own = [each for each in same if source in (each.source, "all")]
            others = [each for each in same if _owner(each.source) != _owner(source)]
            alone = "" if source == "all" or not others else f"{_share(own, ends(others)):.0%}"
            share = _share(own, ends(same))
            yield f"| {part} | {known} | {source} | {len(own)} | {share:.0%} | {alone} |"


def _share(scores: Sequence[Score], wanted: tuple[float, float]) -> float:
    return float(np.mean([is_within(each, wanted) for each in scores]))


def main(given: Sequence[str] | None = None) -> None:
    """Predict, write, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    needs.add_data(parser, *needs.OPS_AND_STEPS)
    parser.add_argument("--cache", type=Path, required=True, help="folder of traces and fits")
    parser.add_argument("--write", action="store_true", help="put the table into docs/appendix")
    args = parser.parse_args(given)
    scores = [
        *ours(args.data, args.cache),
        *published(args.data, args.cache),
        *timed(args.data, args.cache),
    ]
    text = to_toml(scores)
    (MODELS / "ranges.toml").write_text(text, encoding="utf-8")
    shown = "\n".join(table(scores))
    print(f"{text}\n{shown}")
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-ranges.md", MARK, shown)


if __name__ == "__main__":
    main()
