"""Fit the time of XLA's fused kernels (JAX), measured on our H200.

    python -m lab fit xla

Needs only measurements/h200/jax. Writes src/wavecast/data/models/xla.toml (ranges, errors) and
xla.npz (constants, trees). The physics is that of Inductor's fused kernels, with constants of its
own, and errors and ranges are found in the same way (`lab/fit/fused.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from lab import needs
from lab.fit.fused import digest, fit, left_out
from lab.fit.learned import ONE_GPU_SPREAD, RANGE
from lab.measured.compiled import GPU, FusedKernel
from lab.measured.jax_steps import fused_kernels
from lab.places import MODELS
from wavecast.predictors.learned.file import stored
from wavecast.predictors.learned.gpus import Floats


def card(rows: Sequence[FusedKernel], others_s: Floats) -> str:
    """The content of the file."""
    seconds = np.array([row.seconds for row in rows])
    total = np.array([row.seconds * row.runs for row in rows])
    off = np.abs(others_s / seconds - 1)
    low, high = np.quantile(seconds / others_s, RANGE)
    families = sorted({row.family for row in rows})
    lines = [
        "# The model of the fused kernels that XLA makes.",
        "# Written by lab/fit/xla.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f'data = "{len(rows)} kernels of JAX steps of {len(families)} families on our H200, '
        'jax 0.11.2 (measurements/h200/jax)"',
        f"rows = {len(rows)}",
        f'rows_sha256 = "{digest(rows)}"',
        f'gpus = ["{GPU}"]',
        "",
        "# mean, median: relative errors of the kernels of steps whose family was left out of the",
        "# fit. by_time: the same, each kernel by its share of the time. low, high: the range of",
        "# nine in ten ratios of measured to predicted time there. Only one GPU was measured, so",
        f"# the range is widened; it was {low:.3f} to {high:.3f}.",
        "[groups]",
        f'"xla" = {{ low = {low / ONE_GPU_SPREAD:.3f}, high = {high * ONE_GPU_SPREAD:.3f}, '
        f"mean = {off.mean():.3f}, median = {np.median(off):.3f}, "
        f"by_time = {(off * total).sum() / total.sum():.3f}, ops = {len(rows)}, gpus = 1, "
        "left_out = true }",
        "",
        "[families]",
    ]
    for family in families:
        here = np.array([row.family == family for row in rows])
        said_s = (others_s / seconds * total)[here].sum()
        ratio = said_s / total[here].sum() - 1
        lines.append(f'"{family}" = {{ kernels = {here.sum()}, total = {ratio:.3f} }}')
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the files and print the card."""
    needs.parser(__doc__).parse_args(given)
    rows = fused_kernels()
    model, others_s = fit(rows, "xla"), left_out(rows, "xla")
    np.savez_compressed(MODELS / "xla.npz", **stored({"xla": model}))  # type: ignore[arg-type]
    path = MODELS / "xla.toml"
    path.write_text(card(rows, others_s), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
