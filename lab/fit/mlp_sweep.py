"""How deep and how wide must Habitat's networks be (section 5.3.2 of its paper)?

    python -m lab.fit.mlp_sweep public.npz measurements/h200/layers/*.csv --kinds bmm linear

For each kind of layer, depth and width it fits one network on 80% of the configurations, and prints
the mean error on the rest. `python -m lab.fit.mlp prepare` makes public.npz. The defaults are the
paper's sweep: 2 to 8 layers of 32 to 2,048 neurons, 80 epochs, all rows. On a CPU, give fewer
`--epochs` and `--rows`. Needs torch and numpy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fit.mlp import Array, Floats, error
from lab.measured.mlp_data import collected, joined, public
from wavecast.hardware.devices import device
from wavecast.predictors.mlp.features import device_features
from wavecast.predictors.mlp.layers import KINDS

DEPTHS = tuple(range(2, 9))
WIDTHS = tuple(2**power for power in range(5, 12))

Errors = Mapping[tuple[int, int], float]
"""The mean error in per cent, by depth and width."""


def rows_of(
    public_file: Path, files: Sequence[Path], kind: str, least_s: float, limit: int | None
) -> tuple[Array, Floats, Floats]:
    """The layers of NVIDIA GPUs, their features, and their milliseconds in the forward pass."""
    rows = joined([public(public_file, kind), collected(files, kind)])
    gpus = {str(gpu): device(str(gpu)) for gpu in np.unique(rows.gpu)}
    nvidia = [name for name, gpu in gpus.items() if gpu.vendor == "NVIDIA"]
    rows = rows.where((rows.forward_s >= least_s) & np.isin(rows.gpu, nvidia))
    if limit is not None and len(rows) > limit:
        rows = rows.where(np.random.default_rng(0).permutation(len(rows))[:limit])
    numbers = np.array([device_features(gpus[str(name)]) for name in rows.gpu], dtype=np.float64)
    return rows.layers, np.hstack([rows.layers.astype(np.float64), numbers]), rows.forward_s * 1e3


def swept(
    layers: Array,
    features: Floats,
    ms: Floats,
    sizes: Sequence[tuple[int, int]],
    epochs: int,
    where: str = "cpu",
) -> dict[tuple[int, int], float]:
    """The error on configurations left out of the fit, by depth and width."""
    from wavecast.frameworks.pytorch.mlp_fit import (
        Recipe,
        fit,
        milliseconds,
        split_by_configuration,
    )

    train = split_by_configuration(layers)
    errors = {}
    for depth, width in sizes:
        began = time.perf_counter()
        recipe = replace(Recipe.sized(width, epochs), depth=depth)
        fitted = fit(features[train], ms[train], recipe, device=where)
        predicted = milliseconds(fitted, features[~train], where)
        errors[depth, width] = float(error(predicted, ms[~train])["mean"])
        spent_s = time.perf_counter() - began
        print(f"  depth {depth}, width {width}: {errors[depth, width]:.1f}% in {spent_s:.0f} s")
    return errors


def table(errors: Errors) -> str:
    """A table in Markdown: one row for each depth, one column for each width."""
    depths = sorted({depth for depth, _ in errors})
    widths = sorted({width for _, width in errors})
    lines = [f"| layers | {' | '.join(map(str, widths))} |", "|---" * (len(widths) + 1) + "|"]
    for depth in depths:
        cells = [errors.get((depth, width)) for width in widths]
        shown = " | ".join("" if cell is None else f"{cell:.1f}" for cell in cells)
        lines.append(f"| {depth} | {shown} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Fit all sizes and print one table for each kind of layer."""
    parser = argparse.ArgumentParser(prog="python -m lab.fit.mlp_sweep")
    parser.add_argument("public", type=Path)
    parser.add_argument("collected", type=Path, nargs="*")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--depths", nargs="+", type=int, default=list(DEPTHS))
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--rows", type=int, help="use at most this many")
    parser.add_argument("--least-ms", type=float, default=0.02, help="shorter rows are left out")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(given)
    sizes = [(depth, width) for depth in args.depths for width in args.widths]
    for kind in args.kinds:
        rows = rows_of(args.public, args.collected, kind, args.least_ms * 1e-3, args.rows)
        print(f"{kind}: {len(rows[0])} rows, {args.epochs} epochs", flush=True)
        print(table(swept(*rows, sizes, args.epochs, args.device)))


if __name__ == "__main__":
    main()
