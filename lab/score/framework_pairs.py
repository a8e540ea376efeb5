"""Which is faster for the same model, torch or JAX? Predicted for our H200, and measured.

python -m lab score framework_pairs                committed predictions, and what was measured
python -m lab score framework_pairs --suite FILE   what was measured, for `wavecast suite observe`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.measured.compiled import GPU
from lab.measured.jax_steps import FOLDER, steps
from wavecast.runs.suite_results import SuiteResult, write_results

PREDICTED, MEASURED = FOLDER / "pairs-predictions.json", FOLDER / "pairs.json"
SOFTWARE = {"torch": "torch 2.11.0", "jax": "jax 0.11.2"}
FRAMEWORKS = ("torch", "jax")
PAIRS = {
    "mlp": (2048, "fp32"),
    "vgg": (96, "bf16"),
    "resnet50": (64, "bf16"),
    "gpt2": (4, "bf16"),
    "vit": (64, "bf16"),
    "lstm": (64, "fp32"),
}
"""Models that were written in both frameworks, with their batches and precisions."""


def lines(rows: Sequence[dict[str, Any]], measurements: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of predictions and measurements, and how often the faster one is named."""
    said = {(row["framework"], row["name"]): row for row in rows}
    true = {(row["framework"], row["name"]): row for row in measurements}
    yield f"{'model':10} {'torch ms':>18} {'JAX ms':>18} {'torch / JAX':>14}  faster"
    right, off = [], {name: list[float]() for name in FRAMEWORKS}
    for model in PAIRS:
        keys = [(name, model) for name in FRAMEWORKS]
        if not all(key in true for key in keys):
            continue
        said_s, true_s = ([table[key]["seconds"] for key in keys] for table in (said, true))
        for name, guess, seconds in zip(FRAMEWORKS, said_s, true_s, strict=True):
            off[name].append(abs(guess / seconds - 1))
        ratios = said_s[0] / said_s[1], true_s[0] / true_s[1]
        right.append((ratios[0] > 1) == (ratios[1] > 1))
        times = " ".join(
            f"{a * 1e3:9.3f} {b * 1e3:8.3f}" for a, b in zip(said_s, true_s, strict=True)
        )
        verdict = "right" if right[-1] else "wrong"
        yield f"{model:10} {times} {ratios[0]:7.2f} {ratios[1]:6.2f}  {verdict}"
    for name, errors in off.items():
        if errors:
            yield f"{name}: mean error of the iteration {np.mean(errors):.1%}, {len(errors)} steps"
    yield f"the faster one is named in {sum(right)} of {len(right)}"


def measured() -> list[dict[str, Any]]:
    """What was measured; three of the JAX steps on a later day, with other JAX steps."""
    rows: list[dict[str, Any]] = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    later = steps("more")
    for model in PAIRS:
        if (row := later.get(f"pair_{model}")) is not None:
            rows.append({"name": model, "framework": "jax", **row["default"]})
    return rows


def suite_rows() -> Iterator[SuiteResult]:
    """What was measured, as results of the suite."""
    rows = {(row["framework"], row["name"]): row for row in measured()}
    for model, (batch, precision) in PAIRS.items():
        for framework in FRAMEWORKS:
            seconds = rows[framework, model]["seconds"]
            yield SuiteResult(
                model,
                batch,
                precision,
                GPU,
                "ok",
                seconds=seconds,
                throughput_per_s=batch / seconds,
                software=SOFTWARE[framework],
            )


def main(given: Sequence[str] = ()) -> None:
    """Compare predictions with measurements, or write these as results of the suite."""
    parser = needs.parser(__doc__)
    parser.add_argument("--suite", type=Path, help="write what was measured as suite results")
    options = parser.parse_args(given)
    if options.suite:
        write_results(options.suite, tuple(suite_rows()))
        return
    rows = json.loads(PREDICTED.read_text(encoding="utf-8"))
    print("\n".join(lines(rows, measured())))
