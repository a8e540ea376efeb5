"""Measured steps, each predicted by models that know little of its GPU and nothing of its source.

Ranges are made from them and judged on them (`lab.score.ranges`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import wavecast
from lab.fit.kept_apart import KeptApart, owner_of
from lab.fit.learned import chip_of
from lab.measured import own_steps, public_steps
from lab.measured.campaigns import read_traces
from lab.measured.comparison import read
from lab.measured.public_steps.case import Case, Traces
from lab.measured.timed import GPU
from lab.score import blind, blind_torch, iterations
from lab.score.families import folds
from wavecast import Prediction
from wavecast.predictors.base import Familiarity
from wavecast.steps.ranges import Makeup

MARGIN = 1.3
"""A step is bound by the GPU or the host if that takes longer than the other by this factor."""
NOTHING = Makeup(matmul=0.0, convolution=0.0, recurrent=0.0, memory=1.0)
"""The makeup of steps that wait for the host; their ranges do not depend on it."""
OURS = "h200"
"""The first word of the names of our own sets."""


@dataclass(frozen=True)
class OffStep:
    """How far a step's measured time is from its predicted time, and what it is made of."""

    part: str
    """What the step is bound by: "gpu" or "host"."""
    known: str
    """The class of the GPU or of the host, such as "unseen" or "unknown"."""
    set: str
    off: float
    """The logarithm of the measured over the predicted time."""
    makeup: Makeup
    owner: str
    """Who measured it: the source of a published set, our campaign or our machine."""
    chip: str
    """The chip of the GPU. Empty where the class says that the GPU or the host is known."""
    spread: tuple[float, float] = (1.0, 1.0)
    """The ends of the combined range of its ops, relative to the GPU time."""
    modelled: float = 1.0
    """The share of the predicted GPU time for which the op models answered."""
    old: bool = False
    """Whether it ran with torch before 1.10."""

    @property
    def shares(self) -> tuple[float, ...]:
        """What the widths are multiplied by. The last one is only there for old software."""
        if self.part == "host":
            return 1.0, float(self.old)
        return *self.makeup.shares, float(self.old)

    def is_apart(self, owner: str, chip: str) -> bool:
        """Whether the step is of another source and of another GPU than these.

        Where the class says that the GPU or the host is known, only the source counts.
        """
        return self.owner != owner and (not chip or self.chip != chip)


def of_prediction(
    prediction: Prediction,
    ratio: float,
    part: str,
    known: str,
    of_set: str,
    owner: str,
    chip: str = "",
    *,
    old: bool = False,
) -> OffStep:
    """A step whose measured time is `ratio` times its predicted time."""
    return OffStep(
        *(part, known, of_set, math.log(ratio), prediction.makeup, owner, chip),
        spread=prediction.gpu_spread,
        modelled=prediction.modelled,
        old=old,
    )


def published(data: Path, cache: Path, apart: KeptApart, traced: bool) -> Iterator[OffStep]:
    """Published steps, predicted without their GPU and source, once for each class that applies.

    Compiled steps are left out, because their ops are not those that we trace. A step that waits
    for the host counts once, with the prediction that knows its GPU least.
    """
    cases = [case for case in public_steps.cases(data) if "compiled" not in case.set]
    for case, trace in read(cases, _made(cases, cache, traced)):
        ways = apart.familiarities(case)
        for known in ways:
            predictor = apart.predictor(case, known)
            prediction = wavecast.predict(trace, case.gpu, predictor=predictor, host="reference")
            step = bound(prediction, case, known)
            if step is not None and (step.part == "gpu" or known is ways[-1]):
                yield step


def bound(prediction: Prediction, case: Case, known: Familiarity) -> OffStep | None:
    """The step if it is clearly bound by the GPU or by the host; else None."""
    ratio, owner = case.measured_s / prediction.seconds, owner_of(case.set)
    where = case.set, owner, _chip(case.gpu)
    if prediction.gpu_s > MARGIN * prediction.host_s:
        return of_prediction(prediction, ratio, "gpu", known, *where, old=case.old)
    if prediction.host_s > MARGIN * prediction.gpu_s:
        return of_prediction(prediction, ratio, "host", "unknown", *where, old=case.old)
    return None


def families_out(data: Path, cache: Path, traced: bool) -> Iterator[OffStep]:
    """The GPU time of our own steps, predicted with our GPU and without their model families."""
    cases = list(own_steps.cases())
    traces = _made(cases, cache, traced)
    for model, own in folds(cases, data, cache):
        for case, trace in read(own, traces):
            predicted = wavecast.predict(trace, case.gpu, predictor=model, host="reference")
            if case.gpu_s:
                ratio, known = case.gpu_s / predicted.gpu_s, Familiarity.MEASURED
                yield of_prediction(predicted, ratio, "gpu", known, case.set, case.set)


def never_seen() -> Iterator[OffStep]:
    """The GPU time of models that are in no fit, eager and compiled, of all blind tests."""
    for row in blind.rows():
        yield _unseen_model(row.prediction, row.prediction.gpu_s / (1 + row.gpu_error), "blind")
    for test in blind_torch.TESTS:
        for folder in (path for path in test.folders if (path / blind_torch.TRACED).exists()):
            rows = blind_torch.measured(folder)
            for name, trace in read_traces(folder / blind_torch.TRACED).items():
                if name in rows:
                    gpu_s = min(rows[name]["busy_s"], rows[name]["wall_s"])
                    prediction = wavecast.predict(trace, GPU, host="reference")
                    yield _unseen_model(prediction, gpu_s, f"{test.name} blind test")


def _unseen_model(prediction: Prediction, gpu_s: float, of_set: str) -> OffStep:
    owner, ratio = f"{OURS} {of_set}", gpu_s / prediction.gpu_s
    return of_prediction(prediction, ratio, "gpu", Familiarity.MEASURED, owner, owner)


def timed(data: Path, cache: Path) -> Iterator[OffStep]:
    """Iterations on our machines, predicted with calibrated and reference hosts."""
    classes = {iterations.HOST_OUT: "known", iterations.REFERENCE: "unknown"}
    for row in iterations.rows(data, cache, classes):
        if row.host_over_gpu > MARGIN and not row.unseen:
            known, name = classes[row.host], f"{OURS} {row.machine} machine"
            owner, chip = (name, "") if known == "known" else (OURS, _chip(GPU))
            off = -math.log(1 + row.error)
            yield OffStep("host", known, name, off, NOTHING, owner, chip)


def write(steps: Iterable[OffStep], path: Path) -> None:
    """Write steps to a file, one line each."""
    path.write_text("".join(f"{json.dumps(asdict(s))}\n" for s in steps), encoding="utf-8")


def read_file(path: Path) -> list[OffStep]:
    """The steps of a file that `write` wrote."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        OffStep(**{**row, "makeup": Makeup(**row["makeup"]), "spread": tuple(row["spread"])})
        for row in rows
    ]


def _made(cases: list[Case], cache: Path, traced: bool) -> Traces:
    """The traces of the cases; missing ones are made unless only `traced` ones are asked for."""
    traces = Traces(cache)
    if not traced:
        traces.make_missing(cases)
    return traces


def _chip(gpu: str) -> str:
    return ".".join(map(str, chip_of(gpu)))
