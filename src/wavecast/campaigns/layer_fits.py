"""Habitat's networks fitted on what you collected: rows in, a model file with its card out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavecast.campaigns.layer_times import LayerRow
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.predictors.mlp.features import DEVICE_FEATURES, device_features, features_of
from wavecast.predictors.mlp.layers import LayerStatus
from wavecast.predictors.mlp.network import MlpNetwork

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.mlp_fit import Recipe

Floats = NDArray[np.float64]

TARGETS = ("forward", "backward", "forward+backward")
FEWEST = 50
"""Rows below which a network of a thousand neurons learns them by heart and nothing else."""


@dataclass(frozen=True)
class FittedNetwork:
    """A network, and the errors that its card says."""

    network: MlpNetwork
    card: Mapping[str, Any]


def fit(
    rows: Sequence[LayerRow],
    target: str = "forward+backward",
    recipe: Recipe | None = None,
    *,
    on: str = "cpu",
    told: Callable[[str], None] = lambda line: None,
) -> FittedNetwork:
    """Fit a network of Habitat's kind (section 4.3), and say how far it can be trusted.

    One fit leaves out a fifth of the configurations, one more each GPU in turn; the network that
    is kept has seen all rows.

    Args:
        rows: measured layers of one kind, from `wavecast collect` on one or several GPUs.
        target: what to predict, one of `TARGETS`.
        recipe: width, epochs and so on; the published ones if not given.
        on: where to train, "cpu" or "cuda".
        told: gets a line about each fit as it begins.
    """
    from wavecast.frameworks.pytorch import mlp_fit

    recipe = recipe or mlp_fit.Recipe()
    table = _table(rows, target)

    def trained(chosen: NDArray[np.bool_]) -> Any:
        return mlp_fit.fit(table.features[chosen], table.milliseconds[chosen], recipe, device=on)

    def error(fitted: Any, chosen: NDArray[np.bool_]) -> float:
        said = mlp_fit.milliseconds(fitted, table.features[chosen], on)
        return float(np.abs(said / table.milliseconds[chosen] - 1).mean() * 100)

    layers = table.features[:, : -len(DEVICE_FEATURES)]
    seen = mlp_fit.split_by_configuration(layers)
    told(f"{len(layers)} {table.kind} layers, a fifth of them left out")
    held_out = error(trained(seen), ~seen)
    left_out = {}
    for gpu in table.gpus if len(table.gpus) > 1 else ():
        told(f"{gpu} left out")
        own = table.gpu == gpu
        left_out[gpu] = error(trained(~own), own)
    told("all rows")
    everything = np.ones(len(layers), dtype=bool)
    kept = trained(everything)
    network = MlpNetwork(kept.mean, kept.scale, kept.weights)
    scores = {
        "train_error": round(error(kept, everything), 2),
        "configuration_error": round(held_out, 2),
        "left_out": {gpu: round(each, 2) for gpu, each in left_out.items()},
    }
    return FittedNetwork(network, _card(table, target, recipe, scores))


@dataclass(frozen=True)
class _LayerTable:
    kind: str
    features: Floats
    milliseconds: Floats
    gpu: NDArray[np.str_]
    names: tuple[str, ...]

    @property
    def gpus(self) -> list[str]:
        return sorted(set(self.gpu.tolist()))


def _table(rows: Sequence[LayerRow], target: str) -> _LayerTable:
    if target not in TARGETS:
        raise InvalidInput(f"unknown target {target!r}; known: {', '.join(TARGETS)}")
    kinds = {row.layer.KIND for row in rows}
    if len(kinds) > 1:
        raise InvalidInput(
            f"these files have layers of several kinds ({', '.join(sorted(kinds))}); fit one kind "
            "at a time"
        )
    measured = [row for row in rows if row.time.status is LayerStatus.OK]
    if len(measured) < FEWEST:
        raise InvalidInput(
            f"{len(measured)} measured layers are too few to fit; collect {FEWEST} or more"
        )
    numbers = {gpu: device_features(device(gpu)) for gpu in {row.gpu for row in measured}}
    if unknown := [gpu for gpu, known in numbers.items() if known is None]:
        raise InvalidInput(f"the number of SMs of {', '.join(unknown)} is not known")
    features = [features_of(row.layer, numbers[row.gpu] or ()) for row in measured]
    return _LayerTable(
        kind=kinds.pop(),
        features=np.array(features, dtype=np.float64),
        milliseconds=np.array([_seconds(row, target) for row in measured]) * 1e3,
        gpu=np.array([row.gpu for row in measured]),
        names=(*type(measured[0].layer).names(), *DEVICE_FEATURES),
    )


def _seconds(row: LayerRow, target: str) -> float:
    passes = {"forward": row.time.forward_s, "backward": row.time.backward_s}
    return sum(passes[name] or 0.0 for name in target.split("+"))


def _card(
    table: _LayerTable, target: str, recipe: Recipe, scores: Mapping[str, Any]
) -> dict[str, Any]:
    # On a GPU left out, answers were off by about this much either way.
    worst = max(scores["left_out"].values(), default=scores["configuration_error"]) / 100
    ends = zip(table.features.min(0).tolist(), table.features.max(0).tolist(), strict=True)
    return {
        "kind": table.kind,
        "target": target,
        "fitted": date.today().isoformat(),
        "data": "collected by wavecast collect",
        "rows": len(table.features),
        "gpus": table.gpus,
        "vendors": sorted({device(gpu).vendor for gpu in table.gpus}),
        **asdict(recipe),
        "least_s": float(table.milliseconds.min()) * 1e-3,
        "low": round(1 / (1 + worst), 3),
        "high": round(1 + worst, 3),
        **scores,
        "ranges": {name: list(each) for name, each in zip(table.names, ends, strict=True)},
    }
