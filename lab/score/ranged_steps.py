"""Measured steps, each predicted by models that know little of its GPU and nothing of its source.

Ranges are made from them and judged on them (`lab.score.ranges`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import wavecast
from lab.fit.kept_apart import KeptApart, owner_of
from lab.fit.learned import chip_of
from lab.measured import own_steps, public_steps
from lab.measured.comparison import read
from lab.measured.public_steps.case import Case, Traces
from lab.measured.timed_traces import GPU
from lab.score import iterations
from lab.score.families import folds
from wavecast import Prediction
from wavecast.predictors.base import Familiarity

MARGIN = 1.3
"""A step is bound by the GPU or the host if that takes longer than the other by this factor."""
OURS = "h200"
"""The first word of the names of our own sets."""


@dataclass(frozen=True)
class Score:
    """How far the range of a step must reach to contain its measured time."""

    part: str
    """What the step is bound by: "gpu" or "host"."""
    known: str
    """The class of the GPU or of the host, such as "unseen" or "unknown"."""
    set: str
    below: float
    above: float
    """How far down and up: exponents of the ops' range for a GPU, logarithms of factors for a
    host."""
    owner: str
    """Who measured it: the source of a published set, our campaign or our machine."""
    chip: str
    """The chip of the GPU. Empty where the class says that the GPU or the host is known."""
    modelled: float = 1.0
    """The share of the predicted GPU time for which the op models answered."""

    def is_apart(self, owner: str, chip: str) -> bool:
        """Whether the step is of another source and of another GPU than these.

        Where the class says that the GPU or the host is known, only the source counts.
        """
        return self.owner != owner and (not chip or self.chip != chip)


def on_gpu(
    prediction: Prediction, ratio: float, known: str, of_set: str, owner: str, chip: str = ""
) -> Score:
    """The score of a GPU-bound step; `ratio` is its measured over its predicted time."""
    least, most = prediction.gpu_spread
    below, above = (max(math.log(ratio) / math.log(end), 0.0) for end in (least, most))
    return Score("gpu", known, of_set, below, above, owner, chip)


def on_host(ratio: float, known: str, of_set: str, owner: str, chip: str = "") -> Score:
    """The score of a host-bound step; `ratio` is its measured over its predicted time."""
    off = math.log(ratio)
    return Score("host", known, of_set, max(-off, 0.0), max(off, 0.0), owner, chip)


def published(data: Path, cache: Path, apart: KeptApart) -> Iterator[Score]:
    """Published steps, predicted without their GPU and source, once for each class that applies.

    Compiled steps are left out, because their ops are not those that we trace. A step that waits
    for the host counts once, with the prediction that knows its GPU least.
    """
    cases = [case for case in public_steps.cases(data) if "compiled" not in case.set]
    for case, trace in read(cases, _made(cases, cache)):
        ways = apart.familiarities(case)
        for known in ways:
            predictor = apart.predictor(case, known)
            prediction = wavecast.predict(trace, case.gpu, predictor=predictor, host="reference")
            score = scored(prediction, case, known)
            if score is not None and (score.part == "gpu" or known is ways[-1]):
                yield score


def scored(prediction: Prediction, case: Case, known: Familiarity) -> Score | None:
    """The score of a step that is clearly bound by the GPU or by the host; else None."""
    ratio, owner = case.measured_s / prediction.seconds, owner_of(case.set)
    if prediction.gpu_s > MARGIN * prediction.host_s:
        score = on_gpu(prediction, ratio, known, case.set, owner, _chip(case.gpu))
    elif prediction.host_s > MARGIN * prediction.gpu_s:
        host = "foreign" if known is Familiarity.FOREIGN else "unknown"
        score = on_host(ratio, host, case.set, owner, _chip(case.gpu))
    else:
        return None
    return replace(score, modelled=prediction.modelled)


def on_our_gpu(cache: Path, apart: KeptApart) -> Iterator[Score]:
    """The GPU time of our own steps, predicted without anything that we measured.

    Their iterations are left out: most were timed after a profiler had run (docs/adr/0018).
    """
    cases = list(own_steps.cases())
    for case, trace in read(cases, _made(cases, cache)):
        for known in apart.familiarities(case):
            if case.gpu_s:
                predictor = apart.predictor(case, known)
                predicted = wavecast.predict(trace, case.gpu, predictor=predictor, host="reference")
                ratio = case.gpu_s / predicted.gpu_s
                yield on_gpu(predicted, ratio, known, case.set, OURS, _chip(case.gpu))


def families_out(data: Path, cache: Path) -> Iterator[Score]:
    """The GPU time of our own steps, predicted with our GPU and without their model families."""
    cases = list(own_steps.cases())
    traces = _made(cases, cache)
    for model, own in folds(cases, data, cache):
        for case, trace in read(own, traces):
            predicted = wavecast.predict(trace, case.gpu, predictor=model, host="reference")
            if case.gpu_s:
                ratio = case.gpu_s / predicted.gpu_s
                yield on_gpu(predicted, ratio, Familiarity.MEASURED, case.set, case.set)


def timed(data: Path, cache: Path) -> Iterator[Score]:
    """Iterations on our machines, predicted with calibrated and reference hosts."""
    classes = {iterations.HOST_OUT: "known", iterations.REFERENCE: "unknown"}
    for row in iterations.rows(data, cache, classes):
        if row.host_over_gpu > MARGIN and not row.unseen:
            known, name = classes[row.host], f"{OURS} {row.machine} machine"
            owner, chip = (name, "") if known == "known" else (OURS, _chip(GPU))
            yield on_host(1 / (1 + row.error), known, name, owner, chip)


def _made(cases: list[Case], cache: Path) -> Traces:
    traces = Traces(cache)
    traces.make_missing(cases)
    return traces


def _chip(gpu: str) -> str:
    return ".".join(map(str, chip_of(gpu)))
