"""Fit the times of what XLA runs (JAX), measured on our H200.

    python -m lab fit xla

Needs only measurements/h200/jax. Writes src/wavecast/data/models/xla.toml (ranges, errors) and
xla.npz (constants, trees). The physics of fused kernels is that of Inductor's, with constants of
its own, and errors and ranges are found in the same way (`lab/fit/fused.py`). Library calls, and
what the tuner chose, are in `lab/fit/xla_libraries.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from lab import needs
from lab.fit.fused import card, families_of, fit, left_out
from lab.fit.xla_libraries import MODEL, TunedDepthwise, TunedMatmuls, library_lines
from lab.measured.compiled import FusedKernel
from lab.measured.jax_steps import fitted, fused_kernels
from lab.places import MODELS
from wavecast.predictors.learned.autotuned import CHOICE
from wavecast.predictors.learned.predictor import stored


def _head(rows: Sequence[FusedKernel]) -> list[str]:
    return [
        "# The model of the fused kernels that XLA makes.",
        "# Written by lab/fit/xla.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f'data = "{len(rows)} kernels of JAX steps of {len(families_of(rows))} families on our '
        'H200, jax 0.11.2 (measurements/h200/jax)"',
    ]


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the files and print the card."""
    needs.parser(__doc__).parse_args(given)
    rows, choice, depthwise = fused_kernels(), TunedMatmuls(fitted()), TunedDepthwise(fitted())
    model, others_s = fit(rows, "xla"), left_out(rows, "xla")
    arrays = stored({"xla": model, MODEL: depthwise.fit()})
    arrays |= {CHOICE + key: array for key, array in choice.forest().arrays().items()}
    np.savez_compressed(MODELS / "xla.npz", **arrays)  # type: ignore[arg-type]
    path = MODELS / "xla.toml"
    fused_card = card(rows, others_s, "xla", _head(rows))
    groups, families = fused_card.split("\n\n[families]")
    lines = [f"{groups}\n{depthwise.card()}\n\n[families]{families.rstrip()}"]
    path.write_text("\n".join([*lines, *choice.card(), *library_lines(), ""]), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
