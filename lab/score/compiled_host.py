"""How well is the host's side of compiled steps predicted, and do ranges hold what was measured?

    python -m lab score compiled_host FOLDER

FOLDER has traces of the steps, as `python -m lab score compiled trace FOLDER` writes them. Every
step is predicted with the reference host. The GPU's time is what was measured, so that only the
host is judged: an iteration takes what the slower of both needs. The last column and the shares of
steps within their ranges are of whole predictions, with predicted GPU times.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import wavecast
from lab import needs
from lab.measured.compiled import GPU, Timing, profiled, timing, unprofiled
from lab.pages import heading
from lab.score.compiled_calls import followed

TINY = "host"
"""The family of steps that were made so small that only the host counts."""


@dataclass(frozen=True)
class Compared:
    """One step, compiled or eager, beside its prediction."""

    measured: Timing
    host_s: float
    """The predicted time of the host."""
    predicted_s: float
    low_s: float | None
    high_s: float | None

    @property
    def host_error(self) -> float:
        """The relative error of the iteration with the measured GPU time."""
        return max(self.host_s, self.measured.busy_s) / self.measured.seconds - 1

    @property
    def error(self) -> float:
        """The relative error of the whole prediction."""
        return self.predicted_s / self.measured.seconds - 1

    @property
    def is_held(self) -> bool | None:
        """Whether the range holds what was measured; None without a range."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.measured.seconds <= self.high_s


def judged(folder: Path, name: str, how: str) -> Compared | None:
    """A step beside its prediction; None if there is no trace that followed it."""
    path = folder / f"{name}.{how}.json.gz"
    if not path.exists() or how not in profiled()[name]:
        return None
    trace = wavecast.load_trace(path)
    if not followed(trace):
        return None
    said = wavecast.predict(trace, GPU, host="reference")
    return Compared(timing(name, how), said.host_s, said.seconds, said.low_s, said.high_s)


def table(pairs: Sequence[tuple[Compared | None, Compared]]) -> Iterator[str]:
    """A line for each compiled step, and the mean errors."""
    yield from heading(
        "step | measured | GPU busy | host, predicted | host's error | eager | iteration"
    )
    for eager, row in sorted(pairs, key=lambda pair: pair[1].measured.step):
        m = row.measured
        before = f"{eager.host_error:+.0%}" if eager else ""
        held = {True: "", False: " (outside of its range)", None: " (no range)"}[row.is_held]
        yield (
            f"| {m.step} | {m.seconds * 1e3:.1f} ms | {m.busy_s / m.seconds:.0%} "
            f"| {row.host_s * 1e3:.1f} ms | {row.host_error:+.0%} | {before} "
            f"| {row.error:+.0%}{held} |"
        )
    means = [
        _mean(row.host_error for _, row in pairs),
        _mean(eager.host_error for eager, _ in pairs if eager),
        _mean(row.error for _, row in pairs),
    ]
    yield f"| **mean error, {len(pairs)} steps** | | | | {' | '.join(means)} |"


def _mean(errors: Iterable[float]) -> str:
    values = [abs(error) for error in errors]
    return f"{statistics.mean(values):.1%}" if values else ""


def coverage(name: str, rows: Sequence[Compared]) -> str:
    """The share of steps within their ranges."""
    held = [row.is_held for row in rows if row.is_held is not None]
    share = f"{sum(held) / len(held):.0%}" if held else ""
    return f"| {name} | {len(held)} | {share} |"


def slowed_by() -> Iterator[str]:
    """How much longer iterations took in the collections with a profiler, by the same step."""
    for how in ("compiled", "eager"):
        ratios = sorted(
            profiled()[name][how]["wall_s"] / row[how]["wall_s"]
            for name, row in unprofiled().items()
        )
        yield (
            f"{how}, with a profiler over without, {len(ratios)} steps: median "
            f"{statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )


def main(given: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = needs.parser(__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(given)
    pairs = []
    for name in profiled():
        row = judged(args.folder, name, "compiled")
        if row is not None:
            pairs.append((judged(args.folder, name, "eager"), row))
    tiny = [pair for pair in pairs if pair[1].measured.family == TINY]
    clean = [pair for pair in pairs if pair[1].measured.is_clean and pair not in tiny]
    slowed = [pair for pair in pairs if pair not in (*clean, *tiny)]
    print("Timed without a profiler, or bound by the GPU:\n", *table(clean), sep="\n")
    print("\nTimed only after a profiler had run in the process:\n", *table(slowed), sep="\n")
    print("\nTiny steps:\n", *table(tiny), sep="\n")
    print(*heading("compiled steps | with a range | within it"), sep="\n")
    bound = [row for _, row in pairs if row.measured.is_host_bound]
    print(coverage("bound by the host", bound))
    print(coverage("bound by the GPU", [row for _, row in pairs if row not in bound]), "\n")
    print("\n".join(slowed_by()))
