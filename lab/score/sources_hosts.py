"""Is it the host that makes a source's steps slower than predicted?

    python -m lab.score.sources_hosts --data FOLDER [--source vTrain] [--rows 40] [--most-gpus 8]

Needs torch, pandas and the public table distributed (docs/sources.md). Each row is predicted with
hosts of several speeds. First it prints how much slower than the reference host the source's host
must have been, for the rows that the host holds up and for those that the GPU does. Then one factor
is chosen on all numbers of GPUs but one, and judged on that one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab import needs
from lab.measured.distributed_steps import NotRebuilt
from lab.measured.tables import read_rows
from lab.score.distributed import PublishedSteps, chosen_rows

FACTORS = (1.0, 1.25, 1.5, 1.75, 2.0)
BOUND = 0.7
"""From this share of the host's slowdown on, a step counts as held up by the host."""
FREE = 0.2


@dataclass(frozen=True)
class HostedStep:
    """A row predicted with several hosts."""

    gpus: int
    strategy: str
    measured_s: float
    predicted_s: tuple[float, ...]
    """One for each of `FACTORS`."""

    @property
    def share(self) -> float:
        """How much of a slower host's slowdown the step shows: 1 if the host holds it up."""
        first, last = self.predicted_s[0], self.predicted_s[-1]
        return (last / first - 1) / (FACTORS[-1] / FACTORS[0] - 1)

    @property
    def needed(self) -> float:
        """The factor of the host with which the prediction is the measurement."""
        return float(np.interp(self.measured_s, self.predicted_s, FACTORS))

    def error(self, factor: float) -> float:
        """The error with a host of this factor."""
        return abs(float(np.interp(factor, FACTORS, self.predicted_s)) / self.measured_s - 1)


def hosted(rows: Sequence[Mapping[str, Any]]) -> list[HostedStep]:
    """The rows that can be rebuilt, each with all hosts."""
    players = [PublishedSteps({}, factor) for factor in FACTORS]
    steps = []
    for row in rows:
        try:
            scored = [player.score(row) for player in players]
        except NotRebuilt:
            continue
        times = tuple(np.maximum.accumulate([one.seconds for one in scored]).tolist())
        first = scored[0].step
        steps.append(HostedStep(int(row["n_gpu"]), first.strategy_name, first.seconds, times))
    return steps


def best_factor(steps: Sequence[HostedStep]) -> float:
    """The factor with the smallest mean error, to 0.05; between `FACTORS` times are straight."""
    tried = np.arange(FACTORS[0], FACTORS[-1] + 0.01, 0.05)
    return float(min(tried, key=lambda factor: mean_error(steps, factor)))


def mean_error(steps: Sequence[HostedStep], factor: float) -> float:
    """The mean error of steps with one host."""
    return float(np.mean([step.error(factor) for step in steps]))


def reasons(steps: Sequence[HostedStep]) -> list[str]:
    """Lines of a table: how slow the host must have been, by what holds a step up."""
    lines = [
        "| steps | rows | measured / predicted | host needed, 10% to 90% |",
        "|---|---:|---:|---:|",
    ]
    bound = [step for step in steps if step.share >= BOUND]
    groups = {
        "the GPU holds them up": [step for step in steps if step.share <= FREE],
        "between": [step for step in steps if FREE < step.share < BOUND],
        "the host holds them up": bound,
    }
    for name in sorted({step.strategy for step in bound}):
        groups[f"of these, {name}"] = [step for step in bound if step.strategy == name]
    for name, members in groups.items():
        if members:
            ratio = np.median([step.measured_s / step.predicted_s[0] for step in members])
            low, middle, high = np.percentile([step.needed for step in members], (10, 50, 90))
            host = "" if members[0].share <= FREE else f"{middle:.2f} ({low:.2f} to {high:.2f})"
            lines.append(f"| {name} | {len(members)} | {ratio:.2f} | {host} |")
    return lines


def left_out(steps: Sequence[HostedStep]) -> list[str]:
    """Lines of a table: the factor of other numbers of GPUs, judged on one number."""
    lines = [
        "| GPUs left out | rows | factor of the others | mean error | with the reference host |",
        "|---|---:|---:|---:|---:|",
    ]
    errors = []
    for gpus in sorted({step.gpus for step in steps}):
        own = [step for step in steps if step.gpus == gpus]
        others = [step for step in steps if step.gpus != gpus]
        if not others:
            continue
        factor = best_factor(others)
        errors += [step.error(factor) for step in own]
        lines.append(
            f"| {gpus} | {len(own)} | {factor:.2f} | {mean_error(own, factor):.1%} "
            f"| {mean_error(own, 1.0):.1%} |"
        )
    if errors:
        lines.append(
            f"| **all** | {len(errors)} | | {np.mean(errors):.1%} | {mean_error(steps, 1.0):.1%} |"
        )
    return lines


def main(given: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, "distributed")
    parser.add_argument("--rows", type=int, default=40, help="at most so many rows, at random")
    parser.add_argument("--source", default="vTrain", help="the source")
    parser.add_argument("--most-gpus", type=int, default=8, help="only rows with at most so many")
    args = parser.parse_args(given)
    every = read_rows(args.data / "distributed" / "steps.parquet")
    own = [
        row
        for row in every
        if args.source in row["source"] and (row["n_gpu"] or 0) <= args.most_gpus
    ]
    steps = hosted(chosen_rows(own, args.rows))
    print("\n".join(reasons(steps)), end="\n\n")
    print("\n".join(left_out(steps)))


if __name__ == "__main__":
    main()
