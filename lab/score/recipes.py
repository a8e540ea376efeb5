"""Do the recipes of `wavecast choose` take as long as it says?

    python -m lab score recipes [--predict]

Compares the steps of four recipes with measurements/h200/recipes.json (`lab collect recipes`),
prints the table and writes it into docs/appendix/choices.md.
`--predict` writes measurements/h200/recipes_predicted.json instead, as was done before they were
measured. The questions, each for our GPU alone:

    choose hf:llama-3.1-8b --weights bf16 --lora r=16 --seq 2048 --samples 50000
    choose hf:llama-3.1-8b --precision bf16 --weights bf16 --seq 2048 --samples 50000
    choose resnet50 --epochs 90 --dataset-samples 1281167 --allow precision
    choose hf:sd-1.5-unet --samples 1e6 --allow precision
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import wavecast
from lab import needs
from lab.collect.recipes import RECIPES, MeasuredRecipe
from lab.markdown import heading
from lab.places import H200
from lab.score import pages
from wavecast.hardware.devices import device
from wavecast.targets.sources import captured

GPU = "h200-sxm"
PAGE = pages.APPENDIX / "choices.md"
PREDICTED, MEASURED = H200 / "recipes_predicted.json", H200 / "recipes.json"


def predicted(recipe: MeasuredRecipe) -> dict[str, float]:
    """The iteration of a recipe with its range, and its memory."""
    found = wavecast.predict(captured(recipe.make_step, gpu=device(GPU)), GPU)
    assert found.memory is not None
    times = {name: getattr(found, name) for name in ("seconds", "low_s", "high_s", "gpu_s")}
    return {**times, "peak_bytes": found.memory.peak_bytes}


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


def _line(name: str, recipe: MeasuredRecipe, told: dict[str, Any], found: dict[str, Any]) -> str:
    if "seconds" not in found:
        return f"| {name} | {recipe.batch} | {told['seconds']:.3f} s | not measured | | | | | |"
    hours = recipe.samples / recipe.batch / 3600
    held = "yes" if told["low_s"] <= found["seconds"] <= told["high_s"] else "no"
    cells = [
        *(name, str(recipe.batch), f"{told['seconds']:.3f} s", f"{found['seconds']:.3f} s"),
        *(f"{told['seconds'] / found['seconds'] - 1:+.0%}", held),
        *(f"{told['seconds'] * hours:.2f} h", f"{found['seconds'] * hours:.2f} h"),
        f"{told['peak_bytes'] / found['peak_bytes'] - 1:+.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def main(given: Sequence[str] = ()) -> None:
    """Print and write the table, or write the predictions."""
    parser = needs.parser(__doc__)
    parser.add_argument("--predict", action="store_true", help="write the predictions")
    if parser.parse_args(given).predict:
        rows = {name: predicted(recipe) for name, recipe in RECIPES.items()}
        PREDICTED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return
    table = "\n".join(lines())
    print(table)
    pages.write(PAGE, "begin: python -m lab score recipes", table)
