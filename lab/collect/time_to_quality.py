"""How long do trainings take to reach a quality, and how good are predictions from a few steps?

    python -m lab collect time_to_quality OUT.json [--device cpu]

Trains the suite's small models on made-up data until they are good enough, and on a GPU also
ResNet-50 at its published size: a first training says how many steps it takes, and the next two are
predicted from their own first steps. Needs only torch. OUT.json becomes
measurements/h200/time_to_quality.json or measurements/cpu/time_to_quality.json;
`lab.score.time_to_quality` reads it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lab import needs
from wavecast.suite.demonstrations import DEMONSTRATIONS, FULL_SIZE, train_to_quality

SEEDS = (11, 12)
FULL_SIZE_SEEDS = (1, 11, 12)
"""The first is the training whose steps the others are predicted from."""


def main(given: Sequence[str] = ()) -> None:
    """Train, and write what was predicted and what it took."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=150, help="begin none after this time")
    args = parser.parse_args(given)
    from wavecast.frameworks.pytorch.measurement.layers import gpu_id

    gpu, began = gpu_id(args.device), time.monotonic()
    trainings: list[dict[str, object]] = []
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def keep(name: str, **options: object) -> int:
        if time.monotonic() - began > args.seconds:
            print(f"no time left for {name}, {options}", flush=True)
            return 0
        one = FULL_SIZE if name == "full" else next(d for d in DEMONSTRATIONS if d.model == name)
        training = train_to_quality(one, device=args.device, gpu=gpu, **options)  # type: ignore[arg-type]
        trainings.append({"training": name, **options, **asdict(training)})
        print(trainings[-1], flush=True)
        args.out.write_text(json.dumps(trainings, indent=1) + "\n", encoding="utf-8")
        return training.steps

    if args.device == "cuda":
        usual = None
        for seed in FULL_SIZE_SEEDS:
            steps = keep("full", seed=seed, usual_steps=usual)
            usual = usual or steps
    for demonstration in DEMONSTRATIONS:
        for seed in SEEDS:
            keep(demonstration.model, seed=seed)
