"""How wide must a step's range be to hold nine in ten measured steps?

    python -m lab.score.ranges --data FOLDER --cache FOLDER [--write]

This is split conformal prediction, with one class of ranges for each state of knowledge about the
GPU and about the host (`wavecast.steps.ranges`). The range of a GPU-bound step is its ops' combined
range, raised to the exponents `below` and `above`. These are chosen so that one in twenty steps of
the class is faster than the range and one in twenty is slower. The range of a host-bound step is a
pair of factors, chosen in the same way. For GPUs every step has the same weight. For hosts every
owner of a table has the same weight, because many steps share a host (see
docs/adr/0020-what-is-known-of-a-gpu.md). The classes differ in how a step was predicted:

* `unseen` and `foreign` GPUs, `unknown` and `foreign` hosts: published steps, predicted with the
  reference host by models fitted without the GPU's chip. A foreign GPU is of a vendor that has no
  ops in the fit. `unknown` also has our own hosts, predicted as if they had not been calibrated,
  with the machine left out of the reference host.
* `measured` GPUs: steps on our H200, predicted by models that saw its chip, but no model of the
  step's family.
* `known` hosts: steps predicted with a host that was calibrated between the timings, its costs
  fitted without the machine and without the model (`lab.score.iterations`).

The command prints the share of each source's steps within their ranges, and within ranges
calibrated on the other sources alone. It writes data/models/ranges.toml. `--write` puts the table
into docs/appendix/accuracy-ranges.md.
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
"""The share of steps that may lie below their ranges, and the share above them."""
MARGIN = 1.3
"""A step is bound by the GPU or the host if that takes longer than the other by this factor."""
GPU_CLASSES = ("measured", "unseen", "foreign")
HOST_CLASSES = ("known", "unknown", "foreign")
MARK = "begin: python -m lab.score.ranges"


@dataclass(frozen=True)
class Score:
    """How far the range of a step must reach to contain its measured time."""

    part: str
    """What the step is bound by: "gpu" or "host"."""
    known: str
    """The class of the GPU or of the host, such as "unseen"."""
    source: str
    below: float
    above: float
    """How far down and up: exponents of the ops' range for a GPU, factors for a host."""


def on_gpu(prediction: Prediction, ratio: float, known: str, source: str) -> Score:
    """The score of a GPU-bound step; `ratio` is its measured over its predicted time."""
    least, most = prediction.gpu_spread
    below, above = (max(math.log(ratio) / math.log(end), 0.0) for end in (least, most))
    return Score("gpu", known, source, below, above)


def on_host(ratio: float, known: str, source: str) -> Score:
    """The score of a host-bound step; `ratio` is its measured over its predicted time."""
    return Score("host", known, source, 1 / ratio, ratio)


def published(data: Path, cache: Path) -> Iterator[Score]:
    """Scores of published steps, predicted by models fitted without the GPU's chip.

    Compiled steps are left out, because their ops are not those that we trace.
    """
    left_out = LeftOut(data, cache)
    cases = [case for case in public_steps.cases(data) if "compiled" not in case.set]
    traces = Traces(cache)
    traces.make_missing(cases)
    for case, trace in read(cases, traces):
        predictor = (left_out.aged if case.old else left_out)(case.gpu)
        prediction = wavecast.predict(trace, case.gpu, predictor=predictor, host="reference")
        ratio = case.measured_s / prediction.seconds
        foreign = prediction.device.vendor != VENDOR
        if prediction.gpu_s > MARGIN * prediction.host_s:
            yield on_gpu(prediction, ratio, "foreign" if foreign else "unseen", case.set)
        elif prediction.host_s > MARGIN * prediction.gpu_s:
            yield on_host(ratio, "foreign" if foreign else "unknown", case.set)


def ours(data: Path, cache: Path) -> Iterator[Score]:
    """Scores of the GPU time of our own steps, each model family left out of the fit."""
    cases, traces = list(own_steps.cases()), Traces(cache)
    traces.make_missing(cases)
    for model, own in folds(cases, data, cache):
        for case, trace in read(own, traces):
            prediction = wavecast.predict(trace, case.gpu, predictor=model, host="reference")
            if case.gpu_s:
                yield on_gpu(prediction, case.gpu_s / prediction.gpu_s, "measured", case.set)


def timed(data: Path, cache: Path) -> Iterator[Score]:
    """Scores of iterations on our machines, predicted with calibrated and reference hosts."""
    classes = {iterations.HOST_OUT: "known", iterations.REFERENCE: "unknown"}
    for row in iterations.rows(data, cache, classes):
        if row.host_over_gpu > MARGIN and not row.unseen:
            yield on_host(1 / (1 + row.error), classes[row.host], f"h200 {row.machine} machine")


def highest(values: Iterable[float], weights: Iterable[float]) -> float:
    """The weighted quantile at 1 - `OUTSIDE`, with the correction for a finite sample."""
    ordered = sorted(zip(values, weights, strict=True))
    share = (1 - OUTSIDE) * (len(ordered) + 1) / len(ordered)
    sorted_values, weight = zip(*ordered, strict=True)
    below = np.cumsum(weight) / sum(weight)
    index = min(int(np.searchsorted(below, share - 1e-9)), len(ordered) - 1)
    return float(sorted_values[index])


def ends(scores: Sequence[Score]) -> tuple[float, float]:
    """How far down and up the ranges of one class must reach."""
    count = Counter(_owner(score.source) for score in scores)
    weights = [1 / count[_owner(score.source)] if score.part == "host" else 1.0 for score in scores]
    return (
        highest([score.below for score in scores], weights),
        highest([score.above for score in scores], weights),
    )


def _owner(source: str) -> str:
    """The owner of a table, whose people measured both its training and its inference."""
    return source.split()[0]


def is_within(step: Score, reach: tuple[float, float]) -> bool:
    """Whether a step lies in a range with these two ends."""
    return step.below <= reach[0] and step.above <= reach[1]


def to_toml(scores: Sequence[Score]) -> str:
    """The content of ranges.toml."""
    lines = [
        "# The ranges of step times (wavecast/steps/ranges.py), by what is known about GPU and",
        "# host. Nine in ten steps that no model was fitted on lie in them.",
        "# Written by lab/score/ranges.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
    ]
    for part, classes in (("gpu", GPU_CLASSES), ("host", HOST_CLASSES)):
        for known in classes:
            same = [score for score in scores if (score.part, score.known) == (part, known)]
            below, above = ends(same)
            powers = f"below = {below:.3f}\nabove = {above:.3f}"
            factors = f"low = {1 / below:.3f}\nhigh = {above:.3f}"
            lines += ["", f"[{part}.{known}]", powers if part == "gpu" else factors]
            lines += [f"steps = {len(same)}"]
    return "\n".join(lines) + "\n"


def table(scores: Sequence[Score]) -> Iterator[str]:
    """The shares of steps in range, and in a range calibrated without the source."""
    yield "| bound by | class | source | steps | in range | in a range made without it |"
    yield "|---|---|---|---:|---:|---:|"
    for part, known in dict.fromkeys((score.part, score.known) for score in scores):
        same = [score for score in scores if (score.part, score.known) == (part, known)]
        sources = sorted({score.source for score in same})
        for source in (*sources, "all"):
            own = [score for score in same if source in (score.source, "all")]
            others = [score for score in same if _owner(score.source) != _owner(source)]
            alone = "" if source == "all" or not others else f"{_share(own, ends(others)):.0%}"
            share = _share(own, ends(same))
            yield f"| {part} | {known} | {source} | {len(own)} | {share:.0%} | {alone} |"


def _share(scores: Sequence[Score], reach: tuple[float, float]) -> float:
    return float(np.mean([is_within(score, reach) for score in scores]))


def main(given: Sequence[str] | None = None) -> None:
    """Score all steps, write ranges.toml, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    needs.add_data(parser, *needs.OPS_AND_STEPS)
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder that keeps traces and fits"
    )
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
