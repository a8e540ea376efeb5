"""Is the time to a quality predicted, before a training and from its first steps?

    python -m lab score time_to_quality             writes the tables of docs/suite.md
    python -m lab score time_to_quality --predict   predicts the trainings on an H200 from nothing
    python -m lab score time_to_quality --seeds     how many steps do five other seeds take?

Measured were measurements/cpu/time_to_quality.json and measurements/h200/time_to_quality.json.
Predictions from nothing (the time of a step from its code,
times the steps that such trainings take on a CPU) were committed before the H200 ran them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import wavecast
from lab import needs, pages
from lab.pages import heading
from lab.places import DOCS, H200, ROOT
from wavecast.planning.prices import price_book
from wavecast.suite.demonstrations import (
    DEMONSTRATIONS,
    EVERY,
    FULL_SIZE,
    Demonstration,
    train_to_quality,
)
from wavecast.suite.training import TrainingStep

GPU = "h200-sxm"
CPU_TIMES = ROOT / "measurements" / "cpu" / "time_to_quality.json"
GPU_TIMES = H200 / "time_to_quality.json"
PREDICTED = H200 / "time_to_quality_predicted.json"
OTHER_SEEDS = (2, 3, 4, 5, 6)
PAGE = DOCS / "suite.md"
MARK = "begin: python -m lab score time_to_quality"


def predicted() -> Iterator[dict[str, Any]]:
    """The time of a step of each training on an H200, and of all its steps, from its code."""
    for name, demonstration in {"full": FULL_SIZE, **{d.model: d for d in DEMONSTRATIONS}}.items():
        step_s = wavecast.predict(_trace(demonstration), GPU, host="reference").seconds
        yield {
            "training": name,
            "step_s": step_s,
            "steps": demonstration.usual_steps or None,
            "seconds": demonstration.usual_steps * step_s or None,
        }


def _trace(demonstration: Demonstration) -> wavecast.Trace:
    def make_step() -> TrainingStep:
        with torch.device("cuda"):  # the data too, as `train_to_quality` makes them
            return demonstration.make(None, "cuda").step

    return wavecast.trace(make_step)


def usual_steps(demonstration: Demonstration) -> list[int]:
    """The steps that other seeds take to the needed quality, on this machine's CPU."""
    return [train_to_quality(demonstration, seed=seed).steps for seed in OTHER_SEEDS]


def read(path: Path) -> list[dict[str, Any]]:
    """The trainings of a file."""
    trainings: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return trainings


def table(path: Path) -> Iterator[str]:
    """What was predicted from a few steps, beside what it took."""
    titles = "training | seed | steps, usual | steps, needed | a few steps | predicted | took"
    yield from heading(f"{titles} | error | of the steps' time", "l")
    for row in read(path):
        if not row["usual_steps"]:
            continue
        spent = row["startup_s"] + row["steps"] * row["few_steps_s"]
        spent += row["steps"] // EVERY * row["test_s"]
        yield (
            f"| {_called(row['training'])} | {row['seed']} | {row['usual_steps']} | {row['steps']} "
            f"| {1e3 * row['few_steps_s']:.1f} ms | {row['predicted_s']:.2f} s "
            f"| {row['seconds']:.2f} s | {row['predicted_s'] / row['seconds'] - 1:+.0%} "
            f"| {spent / row['seconds'] - 1:+.0%} |"
        )


def from_nothing() -> Iterator[str]:
    """The time of a step that was predicted before, beside that of the first steps."""
    yield from heading("training | predicted step | measured step | error", "l")
    before = {row["training"]: row["step_s"] for row in read(PREDICTED)}
    for name, step_s in before.items():
        times = [row["step_s"] for row in read(GPU_TIMES) if row["training"] == name]
        if times:
            measured_s = statistics.median(times)
            yield (
                f"| {_called(name)} | {1e3 * step_s:.1f} ms | {1e3 * measured_s:.1f} ms "
                f"| {step_s / measured_s - 1:+.0%} |"
            )


def cost() -> str:
    """What the trainings at the published size cost on an H200, predicted and actual."""
    trainings = [row for row in read(GPU_TIMES) if row["training"] == "full" and row["usual_steps"]]
    price = price_book().cheapest(GPU)
    assert price is not None
    usd = [f"{price.usd_per_hour * row['predicted_s'] / 36:.3f}" for row in trainings]
    spent = [f"{price.usd_per_hour * row['seconds'] / 36:.3f}" for row in trainings]
    return (
        f"At ${price.usd_per_hour:.2f}/h, the cheapest offer of an H200, those at the published "
        f"size cost {' and '.join(spent)} cents ({' and '.join(usd)} predicted)."
    )


def mean_error(path: Path) -> str:
    """The mean and the largest error of predictions from a few steps, in words."""
    trainings = [row for row in read(path) if row["usual_steps"]]
    errors = [abs(row["predicted_s"] / row["seconds"] - 1) for row in trainings]
    worst = f"{statistics.mean(errors):.0%} on average, {max(errors):.0%} at worst"
    return f"the error is {worst}, over {len(errors)} trainings."


def sums() -> str:
    """What docs/suite.md shows: the errors on a CPU and on our H200, and those of steps."""
    lines = [f"On the CPU: {mean_error(CPU_TIMES)}", ""]
    lines += [f"On an H200: {mean_error(GPU_TIMES)} {cost()}", ""]
    lines += ["A step, predicted from the code before the H200 ran it:", "", *from_nothing()]
    return "\n".join(lines)


def _called(name: str) -> str:
    return f"{FULL_SIZE.model}, published size" if name == "full" else f"{name}, small"


def main(given: Sequence[str] = ()) -> None:
    """Print the tables, or predict."""
    parser = needs.parser(__doc__)
    parser.add_argument("--predict", action="store_true", help="write the predictions")
    parser.add_argument("--seeds", action="store_true", help="train other seeds on this CPU")
    args = parser.parse_args(given)
    if args.predict:
        PREDICTED.write_text(json.dumps(list(predicted()), indent=1) + "\n", encoding="utf-8")
    elif args.seeds:
        for demonstration in DEMONSTRATIONS:
            steps = usual_steps(demonstration)
            print(
                f"{demonstration.model}: {steps}, median {statistics.median(steps):g}", flush=True
            )
    else:
        print(*table(CPU_TIMES), "", *table(GPU_TIMES), "", sums(), sep="\n")
        pages.write(PAGE, MARK, sums())
