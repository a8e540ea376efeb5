"""Count how many kernels each op launches, in the traces measured on our H200.

    python -m lab fit kernel_counts

Needs measurements/h200, no GPU and no public tables; takes a minute. Writes
src/wavecast/data/models/kernel_counts.toml: the median over all calls of an op, rounded down, for
ops that were called more than twice and launch more than one kernel.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lab import needs
from lab.measured import campaigns
from wavecast import Trace, ops
from wavecast.files import shipped, write_whole
from wavecast.ops import Kind
from wavecast.ops.costs import COUNTED

OUT = shipped("models/kernel_counts.toml")
OWN_COSTS = {Kind.RNN, Kind.CONVOLUTION, Kind.OPTIMIZER}
"""Kinds whose number of kernels does not follow from the op's name."""
OWN_RULES = {"aten.index_put", "aten.index_put_", "aten._index_put_impl_"}
"""Ops that launch many kernels or one, by their arguments (wavecast.ops.costs)."""
FEWEST_CALLS = 3

_HEAD = """\
# Written by python -m lab fit kernel_counts: how many kernels one call of an op launches.
# The median over all calls in measurements/h200, rounded down, copies and fills included, for ops
# that were called more than twice and launch more than one kernel (torch 2.11, cuDNN 9.19, H200).
# Convolutions, recurrent layers and ops on lists are absent: their count depends on layouts,
# algorithms and sizes. So is index_put, which depends on whether it accumulates.

[kernels]
"""


def measured_traces() -> Iterator[Trace]:
    """All measured traces except those with hardware counters, which run kernels several times."""
    for name in campaigns.names():
        for key, trace in campaigns.traces(name).items():
            if "counters" not in key:
                yield trace


def counts(traces: Iterable[Trace]) -> dict[str, list[int]]:
    """The number of kernels of each call, by the op's name."""
    kernels: dict[str, list[int]] = defaultdict(list)
    for trace in traces:
        for call in trace:
            if call.kernels and ops.kind(call.op) not in OWN_COSTS:
                kernels[call.op.base].append(len(call.kernels))
    return kernels


def fit(kernels: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The kernels of one call of each op that launches more than one."""
    medians = {
        name: int(statistics.median(numbers))
        for name, numbers in sorted(kernels.items())
        if len(numbers) >= FEWEST_CALLS and name not in OWN_RULES
    }
    return {name: median for name, median in medians.items() if median > 1}


def to_toml(fitted: Mapping[str, int]) -> str:
    """The content of the file."""
    return _HEAD + "".join(f'"{name}" = {count}\n' for name, count in sorted(fitted.items()))


def main(given: Sequence[str] = ()) -> None:
    """Count, write the file, and print each op beside what shipped before."""
    needs.parser(__doc__).parse_args(given)
    kernels = counts(measured_traces())
    fitted = fit(kernels)
    for name in sorted(fitted.keys() | COUNTED.keys()):
        calls = len(kernels.get(name, ()))
        print(f"{name:56} {calls:6} calls: {fitted.get(name, 1)}, before {COUNTED.get(name, 1)}")
    write_whole(OUT, to_toml(fitted))
