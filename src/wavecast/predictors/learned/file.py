"""The op models as the arrays of an .npz file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from wavecast.predictors.learned.model import OpModel
from wavecast.predictors.learned.trees import FOREST, Forest


def stored(models: Mapping[str, OpModel]) -> dict[str, np.ndarray]:
    """The arrays that the file of the shipped fit contains."""
    arrays: dict[str, np.ndarray] = {}
    for name, model in models.items():
        arrays |= {f"{name}/{key}": array for key, array in model.forest.arrays().items()}
        arrays[f"{name}/names"] = np.array(list(model.theta))
        arrays[f"{name}/values"] = np.array(list(model.theta.values()))
        arrays[f"{name}/families"] = np.array(list(model.families), dtype=str)
        arrays[f"{name}/factors"] = np.array(list(model.families.values()), dtype=np.float64)
        arrays[f"{name}/generations"] = np.array(list(model.generations), dtype=str)
        arrays[f"{name}/offsets"] = np.array(list(model.generations.values()), dtype=np.float64)
        arrays[f"{name}/chips"] = np.array(list(model.chips), dtype=str)
        for chip, forest in model.chips.items():
            arrays |= {f"{name}/{chip}/{key}": array for key, array in forest.arrays().items()}
    return arrays


def restored(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, OpModel]:
    """The models of these names, from the arrays that `stored` returned."""
    return {name: _model(name, arrays) for name in names}


def _model(name: str, arrays: Mapping[str, np.ndarray]) -> OpModel:
    of_name = {key.partition("/")[2]: a for key, a in arrays.items() if key.startswith(name + "/")}

    def table(keys: str, values: str) -> dict[str, float]:
        return dict(zip(of_name[keys].tolist(), of_name[values].tolist(), strict=True))

    chips = {
        chip: Forest.of({key: of_name[f"{chip}/{key}"] for key in FOREST})
        for chip in of_name["chips"].tolist()
    }
    return OpModel(
        name=name,
        theta=table("names", "values"),
        forest=Forest.of(of_name),
        families=table("families", "factors"),
        generations=table("generations", "offsets"),
        chips=chips,
    )
