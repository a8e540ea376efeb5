"""The files of a network: an .npz file of arrays, and a card in TOML beside it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.errors import InvalidInput
from wavecast.files import read_toml, refusing_unwritable, replacing, toml_text
from wavecast.predictors.mlp.network import MlpModel, MlpNetwork
from wavecast.reading import read_bytes

LARGEST_ARRAYS_BYTES = 1 << 27
"""The most bytes of a network's arrays, packed and unpacked. The published ones have 40 MB."""

EIGHT_BITS = 127
"""The largest whole number of a weight that is stored in 8 bits."""

_MOST_ARRAYS = 1000
_COMMENT = "A network as in Habitat; `data` names what it was fitted on."


def read_model(path: Path) -> MlpModel:
    """The model in an .npz file, with the card beside it.

    Raises:
        InvalidInput: The two are not what `write_model` wrote; says why, but does not name them.
    """
    card = read_toml(path.with_suffix(".toml"))
    packed = read_bytes(path, LARGEST_ARRAYS_BYTES)
    try:
        network = _network(packed)
        model = _model(network, card)
    # numpy and zipfile raise nearly everything for a damaged file; a card may have any types.
    except Exception as error:
        raise InvalidInput(f"not a model written by wavecast: {str(error)[:200]}") from None
    if reason := _contradiction(model):
        raise InvalidInput(f"not a model written by wavecast: {reason}")
    return model


def _network(packed: bytes) -> MlpNetwork:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        sizes = [entry.file_size for entry in archive.infolist()]
    if sum(sizes) > LARGEST_ARRAYS_BYTES or len(sizes) > _MOST_ARRAYS:
        raise ValueError(f"its {len(sizes)} arrays have {sum(sizes)} bytes")
    with np.load(io.BytesIO(packed), allow_pickle=False) as stored:
        layers = range(sum(name.startswith("matrix") for name in stored.files))
        weights = tuple(_layer(stored, i) for i in layers)
        mean, scale = (stored[name].astype(np.float64) for name in ("mean", "scale"))
        return MlpNetwork(mean, scale, weights)


def _layer(stored: Mapping[str, Any], number: int) -> tuple[Any, Any]:
    matrix = stored[f"matrix{number}"].astype(np.float32)
    if f"step{number}" in stored:
        matrix *= stored[f"step{number}"].astype(np.float32)[:, None]
    return matrix, stored[f"bias{number}"].astype(np.float32)


def _model(network: MlpNetwork, card: Mapping[str, Any]) -> MlpModel:
    return MlpModel(
        kind=card["kind"],
        target=card["target"],
        network=network,
        low=min(float(card["low"]), 1.0),
        high=max(float(card["high"]), 1.0),
        ranges=_ends(card["ranges"]),
        least_s=float(card["least_s"]),
        vendors=tuple(card["vendors"]),
        by_gpu={gpu: _ends(ranges) for gpu, ranges in card.get("by_gpu", {}).items()},
    )


def _contradiction(model: MlpModel) -> str | None:
    """What cannot be in a model; None if nothing."""
    texts = (model.kind, model.target, *model.vendors)
    if not all(isinstance(text, str) for text in texts):
        return "its kind, target and vendors must be texts"
    tables = (model.ranges, *model.by_gpu.values())
    if any(name not in model.ranges for table in tables for name in table):
        return "its ranges by GPU must be of features that its ranges name"
    ends = [end for table in tables for pair in table.values() for end in pair]
    numbers = [model.low, model.high, model.least_s, *ends]
    if not np.isfinite(numbers).all() or model.low < 0 or model.least_s < 0:
        return "its low, high, least_s and ranges must be finite numbers"
    network = model.network
    widths = [len(model.ranges)]
    for matrix, bias in network.weights:
        if matrix.ndim != 2 or matrix.shape[1] != widths[-1] or bias.shape != matrix.shape[:1]:
            return "its arrays do not fit together"
        widths.append(matrix.shape[0])
    if any(array.shape != (widths[0],) for array in (network.mean, network.scale)):
        return "its card and its arrays have different numbers of features"
    if len(widths) < 2 or widths[-1] != 1:
        return "its last layer must have one output"
    arrays = (network.mean, network.scale, *(part for pair in network.weights for part in pair))
    return None if all(np.isfinite(part).all() for part in arrays) else "its arrays are not finite"


def _ends(table: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (float(low), float(high)) for name, (low, high) in table.items()}


def steps_of(matrix: NDArray[Any]) -> NDArray[np.float32]:
    """What one step of 8 bits is worth in each row of a matrix: a 127th of its largest weight."""
    largest = np.abs(matrix).max(axis=1)
    return np.where(largest > 0, largest / EIGHT_BITS, 1.0).astype(np.float32)


def rounded(network: MlpNetwork, bits: int = 16) -> MlpNetwork:
    """The network as it is after it was written with so many bits a weight, and read again."""
    weights = []
    for matrix, bias in network.weights:
        if bits == 16:
            kept = matrix.astype(np.float16).astype(np.float32)
        else:
            steps = steps_of(matrix)[:, None]
            kept = np.rint(matrix / steps).astype(np.int8).astype(np.float32) * steps
        weights.append((kept, bias.astype(np.float16).astype(np.float32)))
    return MlpNetwork(network.mean, network.scale, tuple(weights))


def write_model(path: Path, network: MlpNetwork, card: Mapping[str, Any], bits: int = 16) -> None:
    """Write `path` (.npz) and its card beside it (.toml).

    Args:
        path: the file of the weights.
        network: the network.
        card: what it predicts, and what it was fitted on.
        bits: 16 for weights in half precision, 8 for whole numbers with one factor for each row.
    """
    arrays: dict[str, Any] = {"mean": network.mean, "scale": network.scale}
    for number, (matrix, bias) in enumerate(network.weights):
        arrays[f"bias{number}"] = bias.astype(np.float16)
        if bits == 16:
            arrays[f"matrix{number}"] = matrix.astype(np.float16)
        else:
            arrays[f"step{number}"] = steps_of(matrix)
            whole = np.rint(matrix / arrays[f"step{number}"][:, None])
            arrays[f"matrix{number}"] = whole.astype(np.int8)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    weights = packed.getvalue()
    digest = hashlib.sha256(weights).hexdigest()
    beside = path.with_suffix(".toml")
    with (  # both or none: a card and weights of different fits would be refused
        refusing_unwritable(path),
        replacing(path) as draft,
        refusing_unwritable(beside),
        replacing(beside) as card_draft,
    ):
        draft.write_bytes(weights)
        card_draft.write_text(
            toml_text({**card, "weights_sha256": digest}, [_COMMENT]), encoding="utf-8"
        )
