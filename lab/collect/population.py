"""How long do ops of real models take? Measures steps of many models on this machine's GPU.

    python -m lab.collect.population OUT [--seconds 600]

Needs a GPU, timm, torchvision and transformers. The steps are those of `lab.steps.population`,
without the models of the blind test. They add layers with the shapes of real models to the random
layers of `lab.collect.sweep`. Writes a measured trace of each step to the folder OUT, until SECONDS
have passed. Steps whose trace OUT already has are not measured again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lab.collect.gpu_steps import NamedStep, folder_and_seconds, record_missing
from lab.needs import require
from lab.steps.population import SEEN, draw, make_step

ROUNDS = 9


def steps() -> Iterator[NamedStep]:
    """One step of each model, then another of each, and so on."""
    for seed in range(ROUNDS):
        for name in SEEN:
            drawn = draw(name, seed)
            yield NamedStep(drawn.title, partial(make_step, drawn), drawn.batch)


def main() -> None:
    """Measure the steps that the folder lacks."""
    given = folder_and_seconds(__doc__, 600.0).parse_args()
    require("this population", "torchvision", "timm", "transformers")
    record_missing(given.out, given.seconds, steps(), warm_up=3, repeats=3)


if __name__ == "__main__":
    main()
