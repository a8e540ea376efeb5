"""A model of the suite over its batches: what TBD looks at, as predicates and in figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from wavecast.runs.suite_results import SuiteResult

RECURRENT = frozenset({"nmt", "gnmt", "deep-speech-2"})
"""Models that spend most of their time in recurrent layers."""
LSTM = RECURRENT - {"deep-speech-2"}
"""Those with LSTM layers. TBD's Deep Speech 2 has plain ones, and keeps the GPU busy."""

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

Sweep = tuple[SuiteResult, ...]
"""The results of a model in one precision on one GPU, in order of batch."""


def sweeps(rows: Sequence[SuiteResult]) -> Iterator[Sweep]:
    """The results of each model, precision and GPU in order of batch, where at least two ran."""
    groups: dict[tuple[str, str, str, str], list[SuiteResult]] = {}
    for row in rows:
        if row.seconds is not None or row.status == "ok":
            key = row.gpu, row.framework, row.model, row.precision
            groups.setdefault(key, []).append(row)
    for group in groups.values():
        if len(group) > 1:
            yield tuple(sorted(group, key=lambda row: row.batch))


def cores(row: SuiteResult) -> float:
    """The utilisation of the cores that compute: FP32 and tensor cores together."""
    return (row.fp32_utilisation or 0.0) + (row.tensor_utilisation or 0.0)


def feature_map_share(row: SuiteResult) -> float:
    """The share of feature maps in the memory of TBD's five kinds."""
    maps = row.feature_maps_bytes or 0
    kinds = row.weights_bytes, row.weight_gradients_bytes, row.workspace_bytes, row.dynamic_bytes
    return maps / max(1, maps + sum(kind or 0 for kind in kinds))


def rising(name: str) -> Callable[[Sweep], bool]:
    """A function that says whether an attribute falls nowhere with the batch."""

    def holds(sweep: Sweep) -> bool:
        values = [getattr(row, name) or 0.0 for row in sweep]
        return all(after >= (1 - NOISE) * before for before, after in pairwise(values))

    return holds


def rising_cores(sweep: Sweep) -> bool:
    """Whether the utilisation of the cores falls nowhere with the batch."""
    return all(cores(after) >= (1 - NOISE) * cores(before) for before, after in pairwise(sweep))


def _ratio(sweep: Sweep, last: int = 0) -> float:
    """The throughput at the largest batch, divided by that at another one."""
    return (sweep[-1].throughput_per_s or 0.0) / (sweep[last].throughput_per_s or 1.0)


def growing(sweep: Sweep) -> bool:
    """Whether the last step of the batch still pays: the GPU is not saturated."""
    return _ratio(sweep, -2) >= SATURATED


def gain(sweep: Sweep) -> float:
    """What the last step of the batch gains in throughput."""
    return _ratio(sweep, -2) - 1


def last_below(limit: float) -> Callable[[Sweep], bool]:
    """A function that says whether GPU utilisation at the largest batch is below a limit."""
    return lambda sweep: (sweep[-1].gpu_utilisation or 0.0) < limit


def feature_maps_dominate(sweep: Sweep) -> bool:
    """Whether feature maps are most of the memory at the largest batch."""
    return feature_map_share(sweep[-1]) > 0.5


def _per_sample(sweep: Sweep) -> list[float]:
    """The bytes of each sample, relative to those in the largest batch."""
    nbytes = [(row.feature_maps_bytes or 0) / row.batch for row in sweep]
    return [one / nbytes[-1] for one in nbytes] if nbytes[-1] else [1.0]


def proportional(sweep: Sweep) -> bool:
    """Whether each sample takes as many bytes in every batch as in the largest one."""
    return all(abs(one - 1) < EQUAL for one in _per_sample(sweep))


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0%}"


def growth(found: Sequence[Sweep]) -> str:
    """How throughput grows from the smallest to the largest batch."""
    ratios = [_ratio(sweep) for sweep in found]
    return f"from smallest to largest batch x {min(ratios):.2f} to {max(ratios):.2f}"


def typical_gain(found: Sequence[Sweep]) -> str:
    """What the last step of the batch gains."""
    gains = [gain(sweep) for sweep in found]
    return f"last step of the batch {min(gains):+.0%} to {max(gains):+.0%}, median {_median(gains)}"


def between(name: str) -> Callable[[Sequence[Sweep]], str]:
    """A function that tells the median of an attribute at the smallest and the largest batch."""

    def told(found: Sequence[Sweep]) -> str:
        ends = [[getattr(sweep[end], name) or 0.0 for sweep in found] for end in (0, -1)]
        return f"median {_median(ends[0])} at the smallest, {_median(ends[1])} at the largest batch"

    return told


def core_use(found: Sequence[Sweep]) -> str:
    """The median use of the cores at the smallest and the largest batch."""
    ends = [[cores(sweep[end]) for sweep in found] for end in (0, -1)]
    return f"median {_median(ends[0])} at the smallest, {_median(ends[1])} at the largest batch"


def each(
    value: Callable[[Sweep], float],
    shown: Callable[[float], str],
    name: Callable[[SuiteResult], str],
) -> Callable[[Sequence[Sweep]], str]:
    """A function that tells a value of each sweep, with its name."""
    return lambda found: ", ".join(f"{name(s[0])} {shown(value(s))}" for s in found)


def feature_map_shares(found: Sequence[Sweep]) -> str:
    """The share of feature maps in the memory."""
    shares = [feature_map_share(sweep[-1]) for sweep in found]
    return f"{min(shares):.0%} to {max(shares):.0%} of the memory, median {_median(shares)}"


def disproportion(found: Sequence[Sweep]) -> str:
    """How far feature maps are from proportional."""
    worst = max(abs(one - 1) for sweep in found for one in _per_sample(sweep))
    return f"bytes for each sample differ by at most {worst:.1%}"
