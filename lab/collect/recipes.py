"""Do the recipes of `wavecast choose` take as long as it says? Times their steps on this GPU.

    python -m lab collect recipes OUT.json

Needs a GPU with 120 GB, transformers, peft and diffusers; what is missing is written as an error.
Each recipe is what `choose` answered for our GPU alone (`lab.score.recipes` has the questions, and
wrote its predictions before). Every step runs in a process of its own, unprofiled: the median of
three blocks of iterations, and the peak of allocated memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import needs
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.targets.targets import resolve

LIMIT_S = 60


@dataclass(frozen=True)
class MeasuredRecipe:
    """The step that a recipe runs, and the samples of the whole training."""

    target: str
    batch: int
    precision: str | None
    samples: int
    options: Mapping[str, object] = field(default_factory=dict)

    def make_step(self) -> Callable[[], Any]:
        """The step on this machine's GPU."""
        options = ModelOptions.named(self.options)
        make_step = resolve(self.target, self.batch, self.precision, options).make_step
        assert make_step is not None
        return make_step()


RECIPES = {
    "lora": MeasuredRecipe(
        "hf:llama-3.1-8b", 4, None, 50_000, {"seq": 2048, "weights": "bf16", "lora": "r=16"}
    ),
    "full": MeasuredRecipe("hf:llama-3.1-8b", 4, "bf16", 50_000, {"seq": 2048, "weights": "bf16"}),
    "resnet": MeasuredRecipe("resnet50", 512, "bf16", 90 * 1_281_167),
    "diffusion": MeasuredRecipe("hf:sd-1.5-unet", 64, "bf16", 1_000_000),
}


def main(given: Sequence[str] = ()) -> None:
    """Time each recipe in a process of its own, and write all of them."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--one", choices=RECIPES, help="print one recipe's times")
    args = parser.parse_args(given)
    if args.one:
        from lab.collect.advice import measured

        seconds, peak = measured(RECIPES[args.one].make_step)
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}))
        return
    found: dict[str, Any] = {}
    for name in RECIPES:
        command = [sys.executable, "-m", "lab", "collect", "recipes", str(args.out), "--one", name]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=True
            )
            found[name] = json.loads(run.stdout.splitlines()[-1])
        except subprocess.SubprocessError as error:
            said = getattr(error, "stderr", None) or ""
            found[name] = {"error": f"{type(error).__name__}: {str(said)[-400:]}"}
        print(name, found[name], flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
