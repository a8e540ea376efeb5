"""Fit constants of GPU generations on whole steps, for chips whose single ops were not measured.

    python -m lab fit generations --data FOLDER --cache FOLDER

Needs pandas, timm, torchvision, transformers and the public tables of steps and of ops
(docs/sources.md). `--cache` keeps the traces of published steps (`lab/measured/public_steps`) and
the fits with GPUs left out (`lab/fit/learned.py`); both are made when missing. Writes
src/wavecast/data/models/generations.toml.

Single ops were measured on few chips, whole steps on more. The errors of the op models on these
steps show how fast the chips of a generation really are: on plain cores, on tensor cores, and in
recurrent layers. Each of the three has one constant for each generation. All networks and GPUs of
the generation share it, and it is shrunk towards zero. Chips with their own trees do not use it.
Generations of other vendors of which no step was measured get what the vendor's others agree on. If
an MI300X used its matrix cores as well as NVIDIA's libraries do, it would come out nearly twice as
fast as an H100, which nobody has seen.

Depthwise convolutions have one more constant for each other vendor: how much longer its libraries
take for them than NVIDIA's, of which ops were measured.

Most of these steps ran with torch before 2, whose libraries used tensor cores less well: one more
constant for those before 1.13 and one for 1.13, the same for all networks and GPUs, correct for
that. Without them, the generations that were measured at that time would look too slow. Predictions
are for today's libraries; `Aged` predicts the old steps.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

import wavecast
from lab import needs
from lab.fit.learned import chip_of, fitted_without
from lab.measured import public_steps
from lab.measured.comparison import read
from lab.measured.public_steps.case import Case, Traces
from lab.places import MODELS
from wavecast import Device, Estimate, Prediction, Trace
from wavecast.files import read_toml
from wavecast.hardware.devices import devices
from wavecast.predictors.base import Familiarity, Predictor
from wavecast.predictors.learned.batch import batch_of
from wavecast.predictors.learned.gpus import Floats, gpu_of
from wavecast.predictors.learned.predictor import COMPUTING, Learned, with_steps
from wavecast.predictors.learned.tiles import CLASSES
from wavecast.steps.op_times import work_of
from wavecast.traces.step import Op

PULLS = {"compute": 5.0, "recurrent": 2.0, "depthwise": 0.5, "old": 5.0}
"""How strongly each kind of constant is pulled to zero, as a number of steps of mean weight. The
pull on recurrent layers is weaker, because few steps have such layers, and that on depthwise
convolutions weakest, because other vendors' libraries need not be like NVIDIA's at all."""
OP_VENDOR = "NVIDIA"
"""The vendor whose depthwise convolutions were measured, op by op."""
NEAR = 0.2
"""Errors of the logarithm above this are weighted linearly, smaller ones quadratically."""
ROUNDS = 12

Key = tuple[str, str]
"""The kind of constant ("compute" or "recurrent"), and the class and generation ("cores.7")."""
OLD = "old"
"""The kind of the constants of eras of old libraries, each of which is a key ("old", era). They are
added to the constant of the generation."""
Constants = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class PublishedStep:
    """A measured step; its predicted time is split by the constant that each part depends on."""

    chip: tuple[str, int | None]
    source: str
    measured_s: float
    other_s: float
    parts_s: Mapping[Key, float]
    era: str = ""
    """The era of its libraries; empty for those of today."""


def published(data: Path, cache: Path) -> list[tuple[Case, Trace]]:
    """The public steps that constants are fitted on, with their traces."""
    return list(read(chosen(data), Traces(cache)))


def chosen(data: Path) -> list[Case]:
    """The steps that were rebuilt as they ran, each with its newest software."""
    return [case for case in public_steps.cases(data) if case.newest and case.rebuilt]


def steps_of(learned: Learned, traced: Iterable[tuple[Case, Trace]]) -> Iterator[PublishedStep]:
    """The GPU-bound steps, predicted by models without these constants."""
    for case, trace in traced:
        prediction = wavecast.predict(trace, case.gpu, predictor=learned)
        if prediction.bound_by == "gpu":
            parts_s = _parts(prediction, learned)
            yield PublishedStep(
                chip=chip_of(case.gpu),
                source=case.set,
                measured_s=case.measured_s,
                other_s=prediction.seconds - sum(parts_s.values()),
                parts_s=parts_s,
                era=case.era,
            )


def _parts(prediction: Prediction, learned: Learned) -> dict[Key, float]:
    arrays, launched = prediction.trace.arrays, work_of(prediction.trace).launched_ops
    keys = dict(zip(launched, _keys(launched, prediction.device, learned), strict=True))
    seconds: Counter[Key] = Counter()
    for call, count, answer in zip(
        arrays.works, arrays.counts.tolist(), prediction.answers, strict=True
    ):
        key = keys.get(call.op)
        if answer is not None and key is not None:
            seconds[key] += count * answer.seconds
    return dict(seconds)


def _keys(given: Sequence[Op], device: Device, learned: Learned) -> Iterator[Key | None]:
    """The constant that each op depends on."""
    gpu = gpu_of(device)
    assert gpu is not None
    batch = batch_of(given, learned.models["stream"].families)
    for main, unit in zip(batch.main, batch.unit.tolist(), strict=True):
        if main == "depthwise":
            yield (COMPUTING[main], gpu.vendor) if gpu.vendor != OP_VENDOR else None
        elif main in COMPUTING:
            units = "tensor" if gpu.tensor[unit] else "cores"
            yield COMPUTING[main], f"{units}.{gpu.generation}"
        else:
            yield None


def _is_tensor(key: Key | None) -> bool:
    return key is not None and key[1].startswith("tensor.")


def fit(steps: Sequence[PublishedStep]) -> dict[Key, float]:
    """The constants, as offsets of the logarithm of the time.

    Gauss-Newton on the errors of the logarithm. A source's total weight grows with the square root
    of its number of steps. Every constant is pulled to zero (`PULLS`).
    """
    keys = sorted({key for step in steps for key in step.parts_s})
    parts = np.array([[step.parts_s.get(key, 0.0) for key in keys] for step in steps])
    eras = sorted({step.era for step in steps if step.era})
    of_era = np.array([[step.era == era for era in eras] for step in steps], dtype=float)
    tensor = np.array([_is_tensor(key) for key in keys], dtype=float)
    other = np.array([step.other_s for step in steps])
    measured = np.log([step.measured_s for step in steps])
    counts = Counter(step.source for step in steps)
    weight = np.array([counts[step.source] ** -0.5 for step in steps])
    weight /= weight.mean()
    every = [*keys, *((OLD, era) for era in eras)]
    pull = np.array([PULLS[kind] for kind, _ in every])
    offsets = np.zeros(len(every))
    for _ in range(ROUNDS):
        of_keys, of_eras = np.split(offsets, [len(keys)])
        scaled = parts * np.exp(of_keys + np.outer(of_era @ of_eras, tensor))
        total = scaled.sum(axis=1) + other
        left: Floats = measured - np.log(total)
        shares = np.column_stack([scaled, of_era * (scaled @ tensor)[:, None]]) / total[:, None]
        robust = shares * (weight / np.maximum(1.0, np.abs(left) / NEAR))[:, None]
        curve = robust.T @ shares + np.diag(pull)
        offsets = offsets + np.linalg.solve(curve, robust.T @ left - pull * offsets)
    return {key: float(f"{value:.3f}") for key, value in zip(every, offsets, strict=True)}


def constants(steps: Sequence[PublishedStep], *, without: str = "") -> Constants:
    """The fitted offsets by kind, then by class of units and generation.

    Args:
        steps: the measured steps.
        without: a GPU; the steps of all GPUs with its chip are left out of the fit.
    """
    out = chip_of(without) if without else None
    offsets: dict[str, dict[str, float]] = {kind: {} for kind in PULLS}
    for (kind, key), offset in fit([step for step in steps if step.chip != out]).items():
        names = [f"{units}.{key}" for units in CLASSES] if kind == "depthwise" else [key]
        offsets[kind] |= dict.fromkeys(names, offset)
    offsets["compute"] |= _of_other_vendors(offsets["compute"])
    return offsets


def _of_other_vendors(offsets: Mapping[str, float]) -> dict[str, float]:
    """What each other vendor's generations agree on, for those of which no step was measured.

    NVIDIA's need none: where no step was measured, ops were.
    """
    by_key: dict[str, list[float]] = defaultdict(list)
    vendors = {gpu.architecture: gpu.vendor for gpu in devices() if not gpu.compute_capability}
    for key, offset in offsets.items():
        units, _, generation = key.partition(".")
        if generation in vendors:
            by_key[f"{units}.{vendors[generation]}"].append(offset)
    return {key: _agreed(values) for key, values in sorted(by_key.items())}


def _agreed(values: Sequence[float]) -> float:
    """The value nearest to zero; zero where signs differ, so that values contradict each other."""
    return 0.0 if min(values) < 0 < max(values) else min(values, key=abs)


@dataclass(frozen=True, eq=False)
class Aged(Predictor):
    """A predictor of steps that ran with old libraries."""

    learned: Learned
    factor: float
    """The factor on the time of ops on tensor cores."""

    @classmethod
    def of(cls, learned: Learned, fitted: Constants, era: str) -> Aged:
        """The predictor with the fitted constant of an era; without steps of it, as of today."""
        return cls(learned, math.exp(fitted[OLD].get(era, 0.0)))

    @classmethod
    def shipped(cls, era: str) -> Aged:
        """The predictor with the fit that ships."""
        return cls.of(Learned.shipped(), read_toml(MODELS / "generations.toml"), era)

    def familiarity(self, device: Device) -> Familiarity | None:
        """How well the fit knows a GPU."""
        return self.learned.familiarity(device)

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of one op."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, given: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The time of each op."""
        answers = zip(
            self.learned.predict_all(given, device),
            _keys(given, device, self.learned),
            strict=True,
        )
        return [
            _times(answer, self.factor) if answer and _is_tensor(key) else answer
            for answer, key in answers
        ]


def _times(answer: Estimate, factor: float) -> Estimate:
    return replace(
        answer,
        seconds=answer.seconds * factor,
        low_s=answer.low_s * factor,
        high_s=answer.high_s * factor,
    )


class LeftOut:
    """Makes predictors that are fitted without the ops and the steps of a GPU's chip.

    left_out = LeftOut(data, cache)
    predictor = left_out("rtx-3090")
    """

    def __init__(self, data: Path, cache: Path) -> None:
        self._data, self._cache = data, cache
        self._steps: dict[int, list[PublishedStep]] = {}

    @cached_property
    def _traced(self) -> list[tuple[Case, Trace]]:
        return published(self._data, self._cache)

    def __call__(self, gpu: str) -> Learned:
        """The predictor fitted without this GPU's chip."""
        return with_steps(self._base(gpu), self._constants(gpu))

    def aged(self, gpu: str, era: str) -> Aged:
        """The same predictor, for steps of an era of old libraries."""
        return Aged.of(self(gpu), self._constants(gpu), era)

    def _base(self, gpu: str) -> Learned:
        return fitted_without(gpu, self._data, self._cache)

    def _constants(self, gpu: str) -> Constants:
        base = self._base(gpu)
        if id(base) not in self._steps:
            self._steps[id(base)] = list(steps_of(base, self._traced))
        return constants(self._steps[id(base)], without=gpu)


def digest(steps: Iterable[PublishedStep]) -> str:
    """A hash of the measurements that a fit sees, whatever their order."""
    rows = sorted(f"{step.source} {step.chip} {step.measured_s!r}" for step in steps)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def to_toml(steps: Sequence[PublishedStep], fitted: Constants) -> str:
    """The content of the file."""
    lines = [
        "# Terms that are added to the logarithm of an op's time, by generation (the major compute",
        "# capability, or the architecture), fitted on whole steps.",
        "# [old]: terms for tensor cores with old releases of torch, used only to compare",
        "# predictions with published steps that ran on them. Written by lab/fit/generations.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f"steps = {len(steps)}",
        f"chips = {len({step.chip for step in steps})}",
        f'steps_sha256 = "{digest(steps)}"',
    ]
    for kind, offsets in fitted.items():
        lines += ["", f"[{kind}]", *(f'"{key}" = {value}' for key, value in offsets.items())]
    return "\n".join(lines) + "\n"


def _off(step: PublishedStep, offsets: Mapping[Key, float]) -> float:
    """The size of a step's relative error with these constants."""
    seconds = step.other_s
    for key, part_s in step.parts_s.items():
        offset = offsets.get(key, 0.0)
        if _is_tensor(key):
            offset += offsets.get((OLD, step.era), 0.0)
        seconds += part_s * math.exp(offset)
    return abs(seconds / step.measured_s - 1)


def main(given: Sequence[str] = ()) -> None:
    """Fit the constants, write the file, and print the errors before and after."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.OPS_AND_STEPS)
    parser.add_argument("--cache", type=Path, required=True, help="folder of traces and fits")
    args = parser.parse_args(given)
    Traces(args.cache).make_missing(chosen(args.data))
    base = fitted_without("", args.data, args.cache)
    steps = list(steps_of(base, published(args.data, args.cache)))
    fitted = constants(steps)
    (MODELS / "generations.toml").write_text(to_toml(steps, fitted), encoding="utf-8")
    before, after = ([_off(step, offsets) for step in steps] for offsets in ({}, fit(steps)))
    for name, off in (("before", before), ("after", after)):
        print(f"{name}: {len(off)} steps, mean error {statistics.mean(off):.1%}")
    print((MODELS / "generations.toml").read_text(encoding="utf-8"))
