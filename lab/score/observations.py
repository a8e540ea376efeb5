"""Do TBD's observations (Zhu et al., IISWC 2018, section IV) hold in measurements of the suite?

    python -m lab score observations RESULTS.csv TRACES

`wavecast suite run --traces` writes RESULTS.csv and the folder TRACES. The command prints how many
models show each observation that can be made on one GPU with one framework, and names the models
that do not. The observations about frameworks (3), two GPUs (9) and several machines (12) are left
out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lab import needs
from lab.measured import campaigns
from wavecast import Device, Trace, device
from wavecast.runs.suite_results import SuiteResult, read_results
from wavecast.steps.profile import profile_measured

RECURRENT = frozenset({"nmt", "gnmt", "deep-speech-2"})
"""Models that spend most of their time in recurrent layers."""

_BATCH_NORM = re.compile(r"batch_norm|bn_(?:fw|bw)")

NOISE = 0.03
"""A relative drop smaller than this does not count as one."""
SATURATED = 1.10
"""A GPU is saturated if doubling the batch multiplies the throughput by less than this.

TBD calls Inception-v3 saturated, which is below it."""
EQUAL = 0.02
"""Bytes per sample that differ by less than this are equal: the largest part of the difference is
padding, since sentences and utterances are padded to the longest of their batch."""
LOW = 0.8
"""GPU utilisation below this is low in TBD; its models that are not recurrent reach 0.95."""


@dataclass(frozen=True)
class Observation:
    """One of the paper's findings, and the models that show it here."""

    number: int
    claim: str
    agreeing: tuple[str, ...]
    """The models (with their precision) that show it."""
    others: tuple[str, ...]
    """The models that do not."""

    @property
    def share(self) -> float:
        """The share of the models that show it."""
        total = len(self.agreeing) + len(self.others)
        return len(self.agreeing) / total if total else 0.0


def observe(rows: Sequence[SuiteResult]) -> tuple[Observation, ...]:
    """Every observation that the rows can show."""
    sweeps = list(_sweeps(rows))

    def observation(
        number: int,
        claim: str,
        holds: Callable[[Sequence[SuiteResult]], bool],
        chosen: Callable[[str], bool] = lambda model: True,
    ) -> Observation:
        names = {True: [], False: []}  # type: dict[bool, list[str]]
        for sweep in (sweep for sweep in sweeps if chosen(sweep[0].model)):
            names[holds(sweep)].append(f"{sweep[0].model} {sweep[0].precision}")
        return Observation(number, claim, tuple(names[True]), tuple(names[False]))

    recurrent, plain = RECURRENT.__contains__, lambda model: model not in RECURRENT
    return (
        observation(1, "throughput does not fall with the batch", _rising("throughput_per_s")),
        observation(
            2, "recurrent models are not saturated at the largest batch", _growing, recurrent
        ),
        observation(2, "the other models are saturated", lambda sweep: not _growing(sweep), plain),
        observation(4, "GPU utilisation does not fall with the batch", _rising("gpu_utilisation")),
        observation(5, "GPU utilisation of recurrent models is low", _last_below(LOW), recurrent),
        observation(
            5, "GPU utilisation of the other models is 95% or more", _last_above(0.95), plain
        ),
        observation(6, "utilisation of the cores does not fall with the batch", _rising_cores),
        observation(10, "feature maps are most of the memory", _feature_maps_dominate),
        observation(11, "feature maps grow in proportion to the batch", _proportional),
        _seventh(sweeps),
    )


def _sweeps(rows: Sequence[SuiteResult]) -> Iterator[tuple[SuiteResult, ...]]:
    """The rows of each model and precision in order of batch, where at least two ran."""
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
    kinds = (
        *(row.weights_bytes, row.weight_gradients_bytes),
        *(row.workspace_bytes, row.dynamic_bytes),
    )
    return (row.feature_maps_bytes or 0) > sum(kind or 0 for kind in kinds)


def _proportional(sweep: Sequence[SuiteResult]) -> bool:
    """Whether each sample takes as many bytes in every batch as in the largest one."""
    per_sample = [(row.feature_maps_bytes or 0) / row.batch for row in sweep]
    return all(abs(nbytes / per_sample[-1] - 1) < EQUAL for nbytes in per_sample if per_sample[-1])


def _seventh(sweeps: Sequence[Sequence[SuiteResult]]) -> Observation:
    """Recurrent models compared with the median of the others, in the same precision."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for sweep in sweeps:
        last = sweep[-1]
        others = sorted(
            _cores(other[-1])
            for other in sweeps
            if other[0].model not in RECURRENT and other[0].precision == last.precision
        )
        if last.model in RECURRENT and others:
            below = _cores(last) < others[len(others) // 2]
            names[below].append(f"{last.model} {last.precision}")
    claim = "recurrent models use the cores less than the median of the other models"
    return Observation(7, claim, tuple(names[True]), tuple(names[False]))


def observe_kernels(traces: Mapping[str, Trace], device: Device) -> Observation:
    """Observation 8: batch normalisation is among the long kernels of low utilisation."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for name, trace in traces.items():
        if any("batch_norm" in call.op.base for call in trace):
            worst = profile_measured(name, trace, device).wasteful(5)
            names[any(_BATCH_NORM.search(kernel.name) for kernel in worst)].append(name)
    claim = "batch normalisation is among the five longest kernels of below-average utilisation"
    return Observation(8, claim, tuple(names[True]), tuple(names[False]))


def main(given: Sequence[str] = ()) -> None:
    """Print every observation, and the models that do not show it."""
    parser = needs.parser(__doc__)
    parser.add_argument("results", type=Path, help="results of wavecast suite run")
    parser.add_argument("folder", type=Path, help="the traces that were measured with them")
    args = parser.parse_args(given)
    rows = read_results(args.results)
    eighth = observe_kernels(campaigns.loose_traces(args.folder), device(rows[0].gpu))
    for seen in sorted((*observe(rows), eighth), key=lambda observation: observation.number):
        total = len(seen.agreeing) + len(seen.others)
        print(f"{seen.number:2}. {seen.claim}: {len(seen.agreeing)} of {total}")
        if seen.others:
            print(f"    not in: {', '.join(seen.others)}")
