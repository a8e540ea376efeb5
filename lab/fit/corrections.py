"""How far the features of layers vary: the scales of what measured ops say about others.

    python -m lab fit corrections

Needs only measurements/h200. Writes src/wavecast/data/models/corrections.toml: for each op model
the standard deviation of each feature over the ops of swept layers; 0 for a feature that did not
vary. `wavecast.predictors.corrected` counts the distance between two ops in these units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab import needs
from lab.measured import campaigns
from lab.places import MODELS
from wavecast.files import toml_text, write_whole
from wavecast.hardware.devices import device
from wavecast.predictors.corrected import features_of
from wavecast.predictors.learned.gpus import gpu_of

GPU = "h200-sxm"
SWEEPS = ("sweep", "newer", "odd", "sounds")
"""The campaigns of single layers."""


def spreads() -> dict[str, list[float]]:
    """The standard deviation of each feature, by op model."""
    traces = [trace for name in SWEEPS for trace in campaigns.traces(name).values()]
    given = list(dict.fromkeys(call.op for trace in traces for call in trace if call.kernels))
    gpu = gpu_of(device(GPU))
    assert gpu is not None
    rows: dict[str, list[tuple[float, ...]]] = {}
    for model, features in features_of(given, gpu).values():
        rows.setdefault(model, []).append(features)
    return {model: np.std(rows[model], axis=0).round(2).tolist() for model in sorted(rows)}


def main(given: Sequence[str] = ()) -> None:
    """Write the standard deviations."""
    needs.parser(__doc__).parse_args(given)
    path = MODELS / "corrections.toml"
    write_whole(path, toml_text({"scales": spreads()}).encode())
    print(f"wrote {path.name}")
