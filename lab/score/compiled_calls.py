"""Are the kernels of compiled steps found, and how long do their library calls take?

    python -m lab score compiled_calls FOLDER

FOLDER has traces of the steps (`python -m lab score compiled trace FOLDER`). The first table has,
for each step, the share of the measured GPU time whose library call (same op, same sizes, as often)
or fused kernel (same kind, points, length of sums, bytes) also stands in the trace. The second has
the predicted time of library calls over the measured time, by kind of op, precision and layout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import wavecast
from lab import needs
from lab.measured.compiled import GPU, LISTS, MAIN, PRODUCTS, Calls, Key, Row, by_name, ran, traced
from lab.pages import heading
from wavecast import ops
from wavecast.hardware.devices import device
from wavecast.ops import Kind, convolution
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, Trace

FAILED = "could not be followed"
"""What a note says where compiled code was traced as eager."""
MERGED = set(MAIN.values())
"""Ops whose measured time may be that of an outer op, with other kernels in it."""
LEAST_S = 20e-6
"""Kinds of library calls that take less in all steps together are not listed."""


@dataclass(frozen=True)
class StepAgreement:
    """The seconds of a step's kernels, and of those that also stand in its trace."""

    name: str
    library_s: float
    library_found_s: float
    fused_s: float
    fused_found_s: float
    unknown_s: float
    """The time of kernels whose op the profiler does not say; it is in no share."""

    @property
    def share(self) -> float:
        """The share of the time whose kernels were found."""
        return (self.library_found_s + self.fused_found_s) / (self.library_s + self.fused_s)


@dataclass
class KindTimes:
    """The library calls of one kind in all steps."""

    real_s: float = 0.0
    said_s: float = 0.0
    off_s: float = 0.0
    calls: int = 0
    steps: set[str] = field(default_factory=set)


def agreement(row: Row, said: dict[Key, Calls]) -> StepAgreement:
    """Which of the calls of a measured step the trace has, each as often as it ran."""
    real, unknown_s = ran(row)
    total_s, found_s = [0.0, 0.0], [0.0, 0.0]
    for key, calls in real.items():
        is_fused = int(key[0] == "fused")
        times = min(said[key].count, calls.count) if key in said else 0
        total_s[is_fused] += calls.seconds
        found_s[is_fused] += calls.seconds * times / calls.count
    return StepAgreement(row["step"], total_s[0], found_s[0], total_s[1], found_s[1], unknown_s)


def kind_of(op: Op) -> str:
    """The kind of a library call: its op, and where it matters its precision and layout."""
    kind = ops.kind(op)
    if kind is Kind.CONVOLUTION:
        layout = "channels last" if any(t.channels_last for t in op.inputs[:3]) else "NCHW"
        form = "depthwise " if convolution.depthwise(op) else ""
        unit = op.inputs[0].dtype if form else ops.unit(op)
        return f"{form}{op.base.removeprefix('aten.')}, {unit}, {layout}"
    if kind in (Kind.MATMUL, Kind.ATTENTION):
        return f"{op.base.removeprefix('aten.')}, {ops.unit(op)}"
    return op.base.removeprefix("aten.")


def add_times(
    kinds: dict[str, KindTimes], name: str, real: dict[Key, Calls], said: dict[Key, Calls]
) -> None:
    """Add the library calls that both the step and its trace have."""
    shared = [key for key in real if key in said and key[0] != "fused"]
    shared = [key for key in shared if key[0] not in MERGED and not _is_list(key)]
    shared_ops = [op for key in shared for op in said[key].ops]
    answers = iter(Learned.shipped().predict_all(shared_ops, device(GPU)))
    for key in shared:
        calls, kind = real[key], kinds[kind_of(said[key].ops[0])]
        each_s = [a.seconds if (a := next(answers)) else 0.0 for _ in said[key].ops]
        # Equal calls that follow each other are counted as one, except for products.
        times = calls.count / len(each_s) if key[0] in PRODUCTS else 1.0
        kind.real_s += calls.seconds
        kind.said_s += sum(each_s) * times
        kind.off_s += abs(sum(each_s) * times - calls.seconds)
        kind.calls += len(each_s)
        kind.steps.add(name)


def _is_list(key: Key) -> bool:
    return str(key[0]).startswith(LISTS)


def followed(trace: Trace) -> bool:
    """Whether all compiled code of a trace was captured, and none traced as eager code."""
    return not any(FAILED in note for note in trace.notes)


def steps(folder: Path) -> Iterator[tuple[str, Row, dict[Key, Calls]]]:
    """The measured steps that were captured: name, measurement, calls of the trace."""
    known = by_name()
    for path in sorted(folder.glob("*.compiled.json.gz")):
        name = path.name.removesuffix(".compiled.json.gz")
        trace = wavecast.load_trace(path)
        if name in known and followed(trace):
            yield name, known[name], traced(trace)


def agreement_table(rows: list[StepAgreement]) -> str:
    """The shares of each step, and of all."""
    lines = [*heading("step | library calls | fused kernels | all | ms not attributed")]
    for row in rows:
        shares = (
            row.library_found_s / max(row.library_s, 1e-12),
            row.fused_found_s / max(row.fused_s, 1e-12),
        )
        cells = " | ".join(f"{share:.1%}" for share in (*shares, row.share))
        lines.append(f"| {row.name} | {cells} | {row.unknown_s * 1e3:.2f} |")
    mean = sum(row.share for row in rows) / max(len(rows), 1)
    found_s = sum(row.library_found_s + row.fused_found_s for row in rows)
    total_s = sum(row.library_s + row.fused_s for row in rows)
    lines.append(f"| **mean of {len(rows)} steps** | | | {mean:.1%} | |")
    lines.append(f"| **by GPU time of all steps** | | | {found_s / total_s:.1%} | |")
    return "\n".join(lines)


def kind_table(kinds: dict[str, KindTimes]) -> str:
    """The errors of library calls by kind, those with the most time first."""
    names = "library call | steps | calls | ms | predicted / measured | mean error by time"
    lines = [*heading(names)]
    for name, kind in sorted(kinds.items(), key=lambda item: -item[1].real_s):
        if kind.real_s >= LEAST_S:
            lines.append(
                f"| {name} | {len(kind.steps)} | {kind.calls} | {kind.real_s * 1e3:.2f} | "
                f"{kind.said_s / kind.real_s:.2f} | {kind.off_s / kind.real_s:.1%} |"
            )
    return "\n".join(lines)


def main(given: Sequence[str] = ()) -> None:
    """Print both tables."""
    parser = needs.parser(__doc__)
    parser.add_argument("folder", type=Path)
    rows: list[StepAgreement] = []
    kinds: dict[str, KindTimes] = defaultdict(KindTimes)
    for name, row, said in steps(parser.parse_args(given).folder):
        rows.append(agreement(row, said))
        add_times(kinds, name, ran(row)[0], said)
    print(agreement_table(rows), kind_table(kinds), sep="\n\n")
