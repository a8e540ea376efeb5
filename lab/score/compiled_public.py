"""How well are published compiled steps predicted, and the gain of compiling, on other GPUs?

    python -m lab score compiled_public --data FOLDER --traces FOLDER [--rows 40] [--source timm]

Needs torch, transformers, timm, pandas and the public tables neusight and timm (docs/sources.md).
Steps that the folder of traces lacks are traced, eager and compiled, which takes half a minute for
each compiled model. `--rows` takes so many rows of each source and GPU: every nth, in the order of
families, so that no prediction decides. Prints the tables of docs/compiled.md.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import wavecast
from lab import needs
from lab.measured.compiled_rows import CompiledRow, neusight_rows, timm_rows
from lab.measured.public_steps.case import Case, Traces
from lab.pages import heading
from lab.score.compiled_calls import followed
from wavecast import Trace

SOURCES: dict[str, Callable[[Path], Iterator[CompiledRow]]] = {
    "neusight": neusight_rows,
    "timm": timm_rows,
}


@dataclass(frozen=True)
class ScoredCompiled:
    """Relative errors of a compiled step, of the eager one, and of the gain."""

    row: CompiledRow
    compiled: float
    eager: float | None
    gain: float | None

    @property
    def predicted_gain(self) -> float | None:
        """How many times as fast the compiled step is, as predicted."""
        measured = self.row.gain
        return None if self.gain is None or measured is None else measured * (1 + self.gain)


def scored(row: CompiledRow, traces: Traces) -> ScoredCompiled | str:
    """The errors of a row, or why it has none."""
    compiled = _traced(row.compiled, traces)
    if compiled is None:
        return f"not traced ({traces.failure(row.compiled)})"
    if not followed(compiled):
        return "torch.compile was not followed"
    error = wavecast.predict(compiled, row.compiled.gpu).seconds / row.compiled.measured_s - 1
    plain = _traced(row.eager, traces) if row.eager is not None else None
    if row.eager is None or plain is None:
        return ScoredCompiled(row, error, None, None)
    other = wavecast.predict(plain, row.eager.gpu).seconds / row.eager.measured_s - 1
    return ScoredCompiled(row, error, other, (1 + other) / (1 + error) - 1)


def _traced(case: Case, traces: Traces) -> Trace | None:
    return traces.find(case) or (None if traces.failure(case) else traces.make(case))


def sampled(rows: Iterable[CompiledRow], count: int | None) -> list[CompiledRow]:
    """So many rows of each GPU, every nth in the order of families and sizes."""
    by_gpu: dict[str, list[CompiledRow]] = defaultdict(list)
    for row in rows:
        by_gpu[row.compiled.gpu].append(row)
    chosen = []
    for own in by_gpu.values():
        own.sort(key=lambda row: (row.compiled.family, row.compiled.model, row.compiled.batch))
        step = 1 if count is None else max(-(-len(own) // count), 1)
        chosen += own[::step]
    return chosen


def table(results: Sequence[ScoredCompiled]) -> str:
    """A line for each step, and a mean for each source and GPU."""
    lines = [
        *heading(
            "step | GPU | software | compiled | eager | gain measured | gain predicted | its error",
            "lll",
        )
    ]
    groups: dict[tuple[str, str], list[ScoredCompiled]] = defaultdict(list)
    for result in results:
        case = result.row.compiled
        groups[case.set, case.gpu].append(result)
        lines.append(
            f"| {case.set.split()[0]} {case.model}, batch {case.batch} | {case.gpu} "
            f"| {case.software} | {result.compiled:+.1%} | {_percent(result.eager)} "
            f"| {_times(result.row.gain)} | {_times(result.predicted_gain)} "
            f"| {_percent(result.gain)} |"
        )
    for (source, gpu), own in groups.items():
        compiled, eager = _mean(o.compiled for o in own), _mean(o.eager for o in own)
        lines.append(
            f"| **mean error, {source}, {len(own)} steps** | {gpu} | | {compiled} | {eager} | | "
            f"| {_mean(o.gain for o in own)} |"
        )
    return "\n".join(lines)


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def _times(gain: float | None) -> str:
    return "" if gain is None else f"{gain:.2f}"


def _mean(errors: Iterable[float | None]) -> str:
    known = [abs(error) for error in errors if error is not None]
    return f"{statistics.mean(known):.1%}" if known else ""


def main(given: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *SOURCES)
    parser.add_argument("--traces", type=Path, required=True, help="keeps the traces")
    parser.add_argument("--rows", type=int, help="at most so many rows of each source and GPU")
    parser.add_argument("--source", choices=list(SOURCES))
    args = parser.parse_args(given)
    traces = Traces(args.traces)
    results, failures = [], []
    for source in [args.source] if args.source else list(SOURCES):
        rows = sampled(SOURCES[source](args.data / source), args.rows)
        if not rows:
            print(f"The table {source} has no compiled rows.\n")
        for row in rows:
            result = scored(row, traces)
            if isinstance(result, ScoredCompiled):
                results.append(result)
            else:
                failures.append(f"{source} {row.compiled.name}: {result}")
    if results:
        print(table(results))
    for failure in failures:
        print(f"\nNot compared: {failure}")
