"""Habitat's networks, fitted on collected layer times, each with a card of its errors."""

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
    from wavecast.frameworks.pytorch.layers.mlp_fit import Recipe

Floats = NDArray[np.float64]

TARGETS = ("forward", "backward", "forward+backward")
FEWEST = 50
"""The fewest rows to fit on. A network of a thousand neurons would only memorise fewer."""


@dataclass(frozen=True)
class FittedNetwork:
    """A fitted network, and the card that says on what it was fitted and how wrong it is."""

    network: MlpNetwork
    card: Mapping[str, Any]


def fit(
    rows: Sequence[LayerRow],
    target: str = "forward+backward",
    recipe: Recipe | None = None,
    *,
    on: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
) -> FittedNetwork:
    """Fit a network as Habitat does (section 4.3), and measure its errors.

    The errors come from fits that leave data out: one leaves out a fifth of the configurations,
    and if there are several GPUs, one fit per GPU leaves that GPU out. The network that is
    returned was trained on all rows.

    Args:
        rows: measured layers of one kind, from `wavecast collect` on one or several GPUs.
        target: the time to predict, one of `TARGETS`.
        recipe: width, number of epochs and so on. None for Habitat's published values.
        on: where to train, "cpu" or "cuda".
        progress: called with a line of text when each fit begins.
    """
    from wavecast.frameworks.pytorch.layers import mlp_fit

    recipe = recipe or mlp_fit.Recipe()
    table = _table(rows, target)

    def trained(chosen: NDArray[np.bool_]) -> Any:
        return mlp_fit.fit(table.features[chosen], table.milliseconds[chosen], recipe, device=on)

    def error(fitted: Any, chosen: NDArray[np.bool_]) -> float:
        predicted = mlp_fit.milliseconds(fitted, table.features[chosen], on)
        return float(np.abs(predicted / table.milliseconds[chosen] - 1).mean() * 100)

    layers = table.features[:, : -len(DEVICE_FEATURES)]
    seen = mlp_fit.split_by_configuration(layers)
    progress(f"{len(layers)} {table.kind} layers, a fifth of them left out")
    held_out = error(trained(seen), ~seen)
    left_out = {}
    for gpu in table.gpus if len(table.gpus) > 1 else ():
        progress(f"{gpu} left out")
        on_gpu = table.gpu == gpu
        left_out[gpu] = error(trained(~on_gpu), on_gpu)
    progress("all rows")
    everything = np.ones(len(layers), dtype=bool)
    final = trained(everything)
    network = MlpNetwork(final.mean, final.scale, final.weights)
    scores = {
        "train_error": round(error(final, everything), 2),
        "configuration_error": round(held_out, 2),
        "left_out": {gpu: round(percent, 2) for gpu, percent in left_out.items()},
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
            f"these files have layers of several kinds ({', '.join(sorted(kinds))}); give files of "
            "one kind"
        )
    measured = [row for row in rows if row.time.status is LayerStatus.OK]
    if len(measured) < FEWEST:
        raise InvalidInput(
            f"{len(measured)} measured layers are too few to fit a network; collect {FEWEST} or "
            "more"
        )
    numbers = {gpu: device_features(device(gpu)) for gpu in {row.gpu for row in measured}}
    if unknown := [gpu for gpu, values in numbers.items() if values is None]:
        raise InvalidInput(
            f"the number of SMs of {', '.join(unknown)} is not known; leave out its rows"
        )
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
    # The range of the predictions: the worst mean error on data that was left out, in both
    # directions.
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
        "ranges": {
            name: list(least_most) for name, least_most in zip(table.names, ends, strict=True)
        },
    }
