"""How long do linear layers, products, convolutions and LSTMs take? Measures them on this GPU.

    python -m lab fit mlp prepare FOLDER public.npz      first, where the public tables are
    python -m lab collect layers public.npz OUT          on the GPU machine

Needs a GPU and only torch and numpy. For each kind it measures layers of public tables
(public.npz), then random layers from Habitat's ranges. Writes OUT/GPU-KIND-SEED.csv, which becomes
a file of measurements/h200/layers; `lab.fit.mlp` and `lab.fit.learned` read it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from lab import needs
from lab.measured.mlp_data import public, shared_layers
from wavecast.campaigns.layer_times import collect
from wavecast.campaigns.progress import Progress
from wavecast.predictors.mlp import KINDS, Layer, PassTimes


def measure(args: argparse.Namespace) -> None:
    """Measure the layers of public tables, then random ones, until the time of each kind is up."""
    from wavecast.frameworks.pytorch.measurement.layers import gpu_id, software, time_layer

    gpu = gpu_id(args.device)

    def timed(layer: Layer) -> PassTimes:
        return time_layer(layer, args.device, benchmark=args.benchmark)

    def shown(at: Progress) -> None:
        if at.done % 500 == 0:
            print(f"  {at.done} of {at.total}, {at.remaining_s:.0f} s to go", flush=True)

    for kind in args.kinds:
        shared = shared_layers(public(args.public, kind), kind)
        plans: list[tuple[int | str, list[Layer] | None, float]] = [
            ("public", shared, args.seconds * 0.4),
            (args.seed, None, args.seconds * 0.6),
        ]
        for seed, layers, limit_s in plans:
            began, path = time.perf_counter(), args.out / f"{gpu}-{kind}-{seed}.csv"
            count = args.count if layers is None else min(args.count, len(layers))
            rows = collect(
                kind,
                seed,
                count,
                path,
                timed,
                gpu=gpu,
                software=software(args.benchmark),
                layers=layers,
                limit_s=limit_s,
                progress=shown,
            )
            spent_s = time.perf_counter() - began
            print(f"{path}: {rows} of {count} rows, {spent_s:.0f} s", flush=True)


def main(given: Sequence[str] = ()) -> None:
    """Measure into a folder."""
    parser = needs.parser(__doc__)
    parser.add_argument("public", type=Path, help="layers of public tables")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=90, help="time for each kind")
    parser.add_argument("--count", type=int, default=2500, help="most layers of each list")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--benchmark", action="store_true", help="let cuDNN search for algorithms")
    measure(parser.parse_args(given))
