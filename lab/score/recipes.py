"""Do the recipes of `wavecast choose` take as long as it says?

    python -m lab score recipes

Compares what was predicted of the steps of four recipes, before they were measured, with
measurements/h200/recipes.json, prints the table and writes it into docs/appendix/choices.md. The
questions, each for our GPU alone:

    choose hf:llama-3.1-8b --weights bf16 --lora r=16 --seq 2048 --samples 50000
    choose hf:llama-3.1-8b --precision bf16 --weights bf16 --seq 2048 --samples 50000
    choose resnet50 --epochs 90 --dataset-samples 1281167 --allow precision
    choose hf:sd-1.5-unet --samples 1e6 --allow precision
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lab import pages
from lab.pages import heading
from lab.places import H200
from lab.scores import ScoreTable

PAGE = pages.APPENDIX / "choices.md"
PREDICTED, MEASURED = H200 / "recipes_predicted.json", H200 / "recipes.json"


@dataclass(frozen=True)
class MeasuredRecipe:
    """The step that a recipe runs, and the samples of the whole training."""

    batch: int
    samples: int


RECIPES = {
    "lora": MeasuredRecipe(4, 50_000),
    "full": MeasuredRecipe(4, 50_000),
    "resnet": MeasuredRecipe(512, 90 * 1_281_167),
    "diffusion": MeasuredRecipe(64, 1_000_000),
}


def lines() -> Iterator[str]:
    """The table: an iteration, the whole training, and the memory."""
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (PREDICTED, MEASURED))
    yield from heading(
        "recipe | batch | step, predicted | measured | error | in range | training, predicted "
        "| as measured | memory",
        "l",
    )
    for name, recipe in RECIPES.items():
        yield _line(name, recipe, before[name], after[name])


def _line(
    name: str, recipe: MeasuredRecipe, prediction: dict[str, Any], row: dict[str, Any]
) -> str:
    if "seconds" not in row:
        return (
            f"| {name} | {recipe.batch} | {prediction['seconds']:.3f} s | not measured | | | | | |"
        )
    hours = recipe.samples / recipe.batch / 3600
    held = "yes" if prediction["low_s"] <= row["seconds"] <= prediction["high_s"] else "no"
    cells = [
        *(name, str(recipe.batch), f"{prediction['seconds']:.3f} s", f"{row['seconds']:.3f} s"),
        *(f"{prediction['seconds'] / row['seconds'] - 1:+.0%}", held),
        *(f"{prediction['seconds'] * hours:.2f} h", f"{row['seconds'] * hours:.2f} h"),
        f"{prediction['peak_bytes'] / row['peak_bytes'] - 1:+.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def tables() -> Iterator[ScoreTable]:
    """The table of the page."""
    yield ScoreTable("\n".join(lines()), PAGE, "begin: python -m lab score recipes")
