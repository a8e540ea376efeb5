"""TBD's observations (Zhu et al., IISWC 2018, section IV) on measurements of the suite.

    python -m lab.score.observations RESULTS.csv TRACES

RESULTS.csv and the folder TRACES are what `wavecast suite run --traces` wrote. Each observation
that one GPU and one framework can show is printed with the models that show it. Those about
frameworks (3), two GPUs (9) and several machines (12) are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lab.measured import campaigns
from wavecast import Device, Trace, device
from wavecast.runs.suite_results import SuiteResult, read_results
from wavecast.steps.profiling import profile_measured

RECURRENT = frozenset({"nmt", "gnmt", "deep-speech-2"})
"""Models whose time is in recurrent layers."""

_BATCH_NORM = re.compile(r"batch_norm|bn_(?:fw|bw)")

NOISE = 0.03
"""A drop smaller than this does not count."""
SATURATED = 1.10
"""A GPU is saturated if doubling the batch gains less: TBD has Inception-v3 below it."""
LOW = 0.8
"""GPU utilisation that TBD calls low; the other models reach 0.95."""


@dataclass(frozen=True)
class Observation:
    """One of the paper's findings, and the models that show it here."""

    number: int
    claim: str
    agreeing: tuple[str, ...]
    """The models (with their precision) that show it."""
    others: tuple[str, ...]
    """Those that do not."""

    @property
    def share(self) -> float:
        """The part of the models that show it."""
        total = len(self.agreeing) + len(self.others)
        return len(self.agreeing) / total if total else 0.0


def observe(rows: Sequence[SuiteResult]) -> tuple[Observation, ...]:
    """Every observation that the rows can show."""
    sweeps = list(_sweeps(rows))

    def each(
        number: int,
        claim: str,
        holds: Callable[[Sequence[SuiteResult]], bool],
        chosen: Callable[[str], bool] = lambda model: True,
    ) -> Observation:
        asked = [sweep for sweep in sweeps if chosen(sweep[0].model)]
        names = {True: [], False: []}  # type: dict[bool, list[str]]
        for sweep in asked:
            names[holds(sweep)].append(f"{sweep[0].model} {sweep[0].precision}")
        return Observation(number, claim, tuple(names[True]), tuple(names[False]))

    recurrent, plain = RECURRENT.__contains__, lambda model: model not in RECURRENT
    return (
        each(1, "throughput does not fall with the batch", _rising("throughput_per_s")),
        each(2, "recurrent models are not saturated at the largest batch", _growing, recurrent),
        each(2, "the others are", lambda sweep: not _growing(sweep), plain),
        each(4, "GPU utilisation does not fall with the batch", _rising("gpu_utilisation")),
        each(5, "recurrent models use the GPU little", _last_below(LOW), recurrent),
        each(5, "the others use it by 95% or more", _last_above(0.95), plain),
        each(6, "utilisation of the cores does not fall with the batch", _rising_cores),
        each(10, "feature maps are most of the memory", _feature_maps_dominate),
        each(11, "feature maps grow in proportion to the batch", _proportional),
        _seventh(sweeps),
    )


def _sweeps(rows: Sequence[SuiteResult]) -> Iterator[tuple[SuiteResult, ...]]:
    """The rows of a model in one precision by batch, where at least two ran."""
    groups: dict[tuple[str, str], list[SuiteResult]] = {}
    for row in rows:
        if row.status == "ok":
            groups.setdefault((row.model, row.precision), []).append(row)
    for group in groups.values():
        if len(group) > 1:
            yield tuple(sorted(group, key=lambda row: row.batch))


def _cores(row: SuiteResult) -> float:
    return (row.fp32_utilisation or 0.0) + (row.tensor_utilisation or 0.0)


def _rising(name: str) -> Callable[[Sequence[SuiteResult]], bool]:
    def holds(sweep: Sequence[SuiteResult]) -> bool:
        values = [getattr(row, name) or 0.0 for row in sweep]
        return all(after >= (1 - NOISE) * before for before, after in pairwise(values))

    return holds


def _rising_cores(sweep: Sequence[SuiteResult]) -> bool:
    return all(_cores(after) >= (1 - NOISE) * _cores(before) for before, after in pairwise(sweep))


def _growing(sweep: Sequence[SuiteResult]) -> bool:
    before, after = sweep[-2:]
    return (after.throughput_per_s or 0.0) >= SATURATED * (before.throughput_per_s or 0.0)


def _last_below(limit: float) -> Callable[[Sequence[SuiteResult]], bool]:
    return lambda sweep: (sweep[-1].gpu_utilisation or 0.0) < limit


def _last_above(limit: float) -> Callable[[Sequence[SuiteResult]], bool]:
    return lambda sweep: (sweep[-1].gpu_utilisation or 0.0) >= limit


def _feature_maps_dominate(sweep: Sequence[SuiteResult]) -> bool:
    row = sweep[-1]
    kinds = (row.weights_bytes, row.weight_gradients_bytes, row.dynamic_bytes)
    return (row.feature_maps_bytes or 0) > sum(kind or 0 for kind in kinds)


def _proportional(sweep: Sequence[SuiteResult]) -> bool:
    """Within a tenth of a straight line through the first and last batch."""
    first, last = sweep[0], sweep[-1]
    low, high = first.feature_maps_bytes or 0, last.feature_maps_bytes or 0
    slope = (high - low) / (last.batch - first.batch)
    return slope > 0 and all(
        abs((row.feature_maps_bytes or 0) / (low + slope * (row.batch - first.batch)) - 1) < 0.1
        for row in sweep
    )


def _seventh(sweeps: Sequence[Sequence[SuiteResult]]) -> Observation:
    """Recurrent models against the middle one of the others, in the same precision."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for sweep in sweeps:
        last = sweep[-1]
        others = sorted(
            _cores(each[-1])
            for each in sweeps
            if each[0].model not in RECURRENT and each[0].precision == last.precision
        )
        if last.model in RECURRENT and others:
            below = _cores(last) < others[len(others) // 2]
            names[below].append(f"{last.model} {last.precision}")
    claim = "recurrent models use the cores less than the middle one of the others"
    return Observation(7, claim, tuple(names[True]), tuple(names[False]))


def observe_kernels(traces: Mapping[str, Trace], device: Device) -> Observation:
    """The eighth: batch normalisation is among the long kernels below the average."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for name, trace in traces.items():
        if any("batch_norm" in call.op.base for call in trace):
            worst = profile_measured(name, trace, device).wasteful(5)
            names[any(_BATCH_NORM.search(kernel.name) for kernel in worst)].append(name)
    claim = "of the five longest kernels below the average, one is batch normalisation"
    return Observation(8, claim, tuple(names[True]), tuple(names[False]))


def main(path: Path, folder: Path) -> None:
    """Print every observation, and the models that do not show it."""
    rows = read_results(path)
    found = (*observe(rows), observe_kernels(campaigns.loose_traces(folder), device(rows[0].gpu)))
    for each in sorted(found, key=lambda found: found.number):
        total = len(each.agreeing) + len(each.others)
        print(f"{each.number:2}. {each.claim}: {len(each.agreeing)} of {total}")
        if each.others:
            print(f"    not: {', '.join(each.others)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
