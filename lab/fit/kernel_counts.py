"""Count the kernels that each op launches, in the traces of our H200.

    python -m lab.fit.kernel_counts

Prints the median over all calls of an op where it is more than one, for `COUNTED` in
src/wavecast/ops/kernel_counts.py.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator

from lab.measured import campaigns
from wavecast import Trace, ops
from wavecast.ops import Kind
from wavecast.ops.kernel_counts import COUNTED

OWN_COSTS = {Kind.RNN, Kind.CONVOLUTION, Kind.OPTIMIZER}
"""Kinds of which other numbers than the op's name say how many there are."""


def counts(traces: Iterable[Trace]) -> dict[str, list[int]]:
    """Of each op, the kernels of each of its calls."""
    found: dict[str, list[int]] = defaultdict(list)
    for trace in traces:
        for call in trace:
            if call.kernels and ops.kind(call.op) not in OWN_COSTS:
                found[call.op.base].append(len(call.kernels))
    return found


def measured_traces() -> Iterator[Trace]:
    """All traces but those with hardware counters, for which kernels are run several times."""
    for name in campaigns.names():
        yield from (t for key, t in campaigns.traces(name).items() if "counters" not in key)


def main() -> None:
    """Print them beside those that are known."""
    for name, each in sorted(counts(measured_traces()).items()):
        median = statistics.median(each)
        if median > 1 or name in COUNTED:
            print(f"{name:56} {len(each):6} calls, median {median:g}, known {COUNTED.get(name, 1)}")


if __name__ == "__main__":
    main()
