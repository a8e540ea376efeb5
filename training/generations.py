"""What whole steps say of a generation of GPUs: constants for chips whose ops nobody measured.

    python -m training.generations --data FOLDER --cache FOLDER

Op by op, few chips were measured; whole steps, on more. How far the op models are off on these
tells what a generation's chips sustain: of their plain cores and of their tensor cores, and how
its recurrent layers run. One constant for each, shared by all models and GPUs of the generation,
and shrunk to none: never one of a network or a GPU. Chips with trees of their own do without.

FOLDER of `--data` has the published steps (`benchmarks/public_steps`), that of `--cache` their
traces and the fits (`training/learned.py`), made when missing. Writes
data/models/generations.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

import wavecast
from benchmarks import public_steps
from benchmarks.public_steps.case import Case, Traces
from benchmarks.scoring import read
from training.learned import MODELS, chip_of, fitted_without
from wavecast import Prediction, Trace
from wavecast.columns import columns_of
from wavecast.op_models.batch import batch_of
from wavecast.op_models.gpus import Floats, gpu_of
from wavecast.predictors.learned import COMPUTING, Learned, with_steps

PULLS = {"compute": 20.0, "recurrent": 2.0}
"""How many usual steps a constant of zero counts for. Recurrent layers are in few steps."""
NEAR = 0.2
"""Errors (in the logarithm) from here on count by their size, no longer by its square."""
ROUNDS = 12

Key = tuple[str, str]
"""The sort of constant ("compute" or "recurrent"), and the class and generation ("cores.7")."""
Constants = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Step:
    """A measured step, taken apart by the constants that its predicted time depends on."""

    chip: tuple[str, int | None]
    source: str
    measured_s: float
    other_s: float
    parts_s: Mapping[Key, float]


def published(data: Path, cache: Path) -> list[tuple[Case, Trace]]:
    """Public steps with their traces; of the same one, those with the newest software."""
    cases = [case for case in public_steps.cases(data) if case.newest]
    return list(read(cases, Traces(cache)))


def steps_of(learned: Learned, traced: Iterable[tuple[Case, Trace]]) -> Iterator[Step]:
    """Steps that the GPU bounds, as models predict them that know no such constants."""
    for case, trace in traced:
        found = wavecast.predict(trace, case.gpu, predictor=learned)
        if found.bound_by == "gpu":
            parts_s = _parts(found, learned)
            yield Step(
                chip=chip_of(case.gpu),
                source=case.set,
                measured_s=case.measured_s,
                other_s=found.seconds - sum(parts_s.values()),
                parts_s=parts_s,
            )


def _parts(found: Prediction, learned: Learned) -> dict[Key, float]:
    columns = columns_of(found.trace)
    gpu = gpu_of(found.device)
    assert gpu is not None
    batch = batch_of(columns.launched, learned.models["stream"].families)
    sorts = {
        id(op): (COMPUTING[main], f"{'tensor' if gpu.tensor[unit] else 'cores'}.{gpu.generation}")
        for op, main, unit in zip(columns.launched, batch.main, batch.unit.tolist(), strict=True)
        if main in COMPUTING
    }
    seconds: Counter[Key] = Counter()
    for call, count, answer in zip(
        columns.works, columns.counts.tolist(), found.answers, strict=True
    ):
        if answer is not None and id(call.op) in sorts:
            seconds[sorts[id(call.op)]] += count * answer.seconds
    return dict(seconds)


def fit(steps: Sequence[Step]) -> dict[Key, float]:
    """Offsets of the logarithms of times: Gauss-Newton on relative errors, each source counting by
    the root of its steps, every constant pulled to zero."""
    keys = sorted({key for step in steps for key in step.parts_s})
    parts = np.array([[step.parts_s.get(key, 0.0) for key in keys] for step in steps])
    other = np.array([step.other_s for step in steps])
    measured = np.log([step.measured_s for step in steps])
    counts = Counter(step.source for step in steps)
    weight = np.array([counts[step.source] ** -0.5 for step in steps])
    weight /= weight.mean()
    pull = np.array([PULLS[sort] for sort, _ in keys])
    offsets = np.zeros(len(keys))
    for _ in range(ROUNDS):
        scaled = parts * np.exp(offsets)
        total = scaled.sum(axis=1) + other
        left: Floats = measured - np.log(total)
        shares = scaled / total[:, None]
        robust = shares * (weight / np.maximum(1.0, np.abs(left) / NEAR))[:, None]
        curve = robust.T @ shares + np.diag(pull)
        offsets = offsets + np.linalg.solve(curve, robust.T @ left - pull * offsets)
    return {key: float(f"{value:.3f}") for key, value in zip(keys, offsets, strict=True)}


def constants(steps: Sequence[Step], *, without: str = "") -> Constants:
    """By sort: the offsets of each class and generation; `without` leaves a GPU's chip out."""
    out = chip_of(without) if without else None
    found: dict[str, dict[str, float]] = {sort: {} for sort in COMPUTING.values()}
    for (sort, key), offset in fit([step for step in steps if step.chip != out]).items():
        found[sort][key] = offset
    return found


class LeftOut:
    """The predictor for a GPU of which neither ops nor steps were seen, nor of its chip."""

    def __init__(self, data: Path, cache: Path) -> None:
        self._data, self._cache = data, cache
        self._steps: dict[int, list[Step]] = {}

    @cached_property
    def _traced(self) -> list[tuple[Case, Trace]]:
        return published(self._data, self._cache)

    def __call__(self, gpu: str) -> Learned:
        """Models that were fitted for this GPU."""
        base = fitted_without(gpu, self._data, self._cache)
        if id(base) not in self._steps:
            self._steps[id(base)] = list(steps_of(base, self._traced))
        return with_steps(base, constants(self._steps[id(base)], without=gpu))


def digest(steps: Iterable[Step]) -> str:
    """A hash of the measurements that a fit sees."""
    rows = sorted(f"{step.source} {step.chip} {step.measured_s!r}" for step in steps)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def to_toml(steps: Sequence[Step], found: Constants) -> str:
    """The file's content."""
    lines = [
        "# What whole steps say of a generation (major compute capability, or architecture), as",
        "# offsets of the logarithm of an op's time. Made by training/generations.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f"steps = {len(steps)}",
        f"chips = {len({step.chip for step in steps})}",
        f'steps_sha256 = "{digest(steps)}"',
    ]
    for sort, offsets in found.items():
        lines += ["", f"[{sort}]", *(f'"{key}" = {value}' for key, value in offsets.items())]
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] | None = None) -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the public tables")
    parser.add_argument("--cache", type=Path, required=True, help="folder of traces and fits")
    args = parser.parse_args(given)
    Traces(args.cache).make_missing([c for c in public_steps.cases(args.data) if c.newest])
    base = fitted_without("", args.data, args.cache)
    steps = list(steps_of(base, published(args.data, args.cache)))
    found = constants(steps)
    (MODELS / "generations.toml").write_text(to_toml(steps, found), encoding="utf-8")
    after = steps_of(with_steps(base, found), published(args.data, args.cache))
    for name, some in (("before", steps), ("after", list(after))):
        off = [abs((s.other_s + sum(s.parts_s.values())) / s.measured_s - 1) for s in some]
        print(f"{name}: {len(off)} steps, mean error {statistics.mean(off):.1%}")
    print((MODELS / "generations.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
