"""How long prompts and single tokens take with language models, predicted against measured.

    python -m lab score decodes

Needs transformers. Reads measurements/h200/decodes.json (`lab collect decodes`), and prints the
table of docs/howto/predict-a-hugging-face-model.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import wavecast
from lab import needs
from lab.markdown import heading
from lab.places import H200
from wavecast.frameworks.pytorch.huggingface.inference import make_step
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of

GPU = "h200-sxm"


def predict(row: dict[str, Any]) -> wavecast.Prediction:
    """The prediction of a measured step."""
    options = ModelOptions(task=row["task"], seq=row["seq"])
    recipe = recipe_of(row["model"], row["batch"], None, options)
    return wavecast.predict(wavecast.trace(lambda: make_step(recipe), gpu=GPU), GPU)


def main(given: Sequence[str] = ()) -> None:
    """Print each step, and the errors of all."""
    needs.parser(__doc__).parse_args(given)
    rows = json.loads((H200 / "decodes.json").read_text(encoding="utf-8"))["steps"]
    print(
        *heading("model | task | batch | measured ms | predicted ms | error | memory", "ll"),
        sep="\n",
    )
    errors, in_range = [], 0
    for row in rows:
        found = predict(row)
        assert found.memory is not None
        error = found.seconds / row["seconds"] - 1
        memory = found.memory.peak_bytes / row["peak_bytes"] - 1
        errors.append(abs(error))
        in_range += (found.low_s or 0.0) <= row["seconds"] <= (found.high_s or 0.0)
        times = f"{row['seconds'] * 1e3:.2f} | {found.seconds * 1e3:.2f} | {error:+.0%}"
        print(f"| {row['model']} | {row['task']} | {row['batch']} | {times} | {memory:+.1%} |")
    median = statistics.median(errors)
    print(f"\n{len(rows)} steps: mean error {statistics.mean(errors):.0%}, median {median:.0%}")
    print(f"in the range: {in_range}")
