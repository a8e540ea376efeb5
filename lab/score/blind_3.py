"""How well were 30 steps of 2025 and 2026 predicted before they ran on our H200?

    python -m lab score blind_3 [--write]

Reads measurements/h200/blind_3: `predictions.json`, committed before anything was measured, and
`measured.json` (`lab collect step_times blind_3 --brief`). Two of the 30 were not ready in time.
Memory was measured of 16, in a second run. `--write` puts the tables into
docs/appendix/accuracy-blind.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from lab import needs
from lab.markdown import heading
from lab.places import H200
from lab.score import pages

FOLDER = H200 / "blind_3"
MARK = "third test"


@dataclass(frozen=True)
class BlindStep:
    """A step, predicted and then measured."""

    name: str
    mode: str
    gpu_error: float
    error: float
    """That of the iteration."""
    memory_error: float | None
    within: bool
    """Whether the iteration lies in its range."""

    @classmethod
    def of(
        cls, name: str, told: dict[str, Any], found: dict[str, Any], peak_bytes: int | None
    ) -> BlindStep:
        """A step from what was predicted (`told`) and what was measured (`found`)."""
        return cls(
            name=name.partition("-")[2],
            mode="compiled" if told["mode"] == "default" else told["mode"],
            # A profiler may slow kernels down that wait for others: no GPU is busy for longer.
            gpu_error=told["gpu_s"] / min(found["busy_s"], found["wall_s"]) - 1,
            error=told["seconds"] / found["wall_s"] - 1,
            memory_error=told["peak_bytes"] / peak_bytes - 1 if peak_bytes else None,
            within=told["low_s"] <= found["wall_s"] <= told["high_s"],
        )


def predicted(folder: Path) -> dict[str, Any]:
    """The predictions of a test by the name of the step."""
    document = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    predictions: dict[str, Any] = document["predictions"]
    return predictions


def steps() -> Iterator[BlindStep]:
    """The steps that were measured."""
    measured = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))
    for name, told in predicted(FOLDER).items():
        if (found := measured["first"].get(name)) is not None:
            again = measured["again"].get(name, {})
            yield BlindStep.of(name, told, found, again.get("peak_bytes"))


def table(every: Sequence[BlindStep]) -> Iterator[str]:
    """The errors of each step, then their means."""
    yield from heading("step | how | GPU time | iteration | memory | in range", "ll")
    for one in every:
        memory = "" if one.memory_error is None else f"{one.memory_error:+.1%}"
        errors = f"{one.gpu_error:+.0%} | {one.error:+.0%} | {memory}"
        yield f"| {one.name} | {one.mode} | {errors} | {'yes' if one.within else 'no'} |"
    yield ""
    yield from heading("steps | number | GPU time, mean / median | iteration | memory | in range")
    for mode in ("eager", "compiled", ""):
        chosen = [one for one in every if mode in ("", one.mode)]
        gpu, whole = ([abs(getattr(o, f)) for o in chosen] for f in ("gpu_error", "error"))
        sizes = [abs(one.memory_error) for one in chosen if one.memory_error is not None]
        memory = f"{mean(sizes):.1%} ({len(sizes)} steps)" if sizes else ""
        held = sum(one.within for one in chosen)
        yield (
            f"| {mode or 'all'} | {len(chosen)} | {mean(gpu):.1%} / {median(gpu):.1%} | "
            f"{mean(whole):.1%} / {median(whole):.1%} | {memory} | {held} |"
        )


def main(given: Sequence[str] = ()) -> None:
    """Print the tables, and write them into the page if asked."""
    parser = needs.parser(__doc__)
    parser.add_argument("--write", action="store_true", help="write them into the page")
    args = parser.parse_args(given)
    text = "\n".join(table(list(steps())))
    print(text)
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-blind.md", MARK, text)
