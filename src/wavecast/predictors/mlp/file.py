"""The files of a network: an .npz file of arrays, and a card in TOML beside it."""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.files import refusing_unwritable, replacing
from wavecast.predictors.mlp.network import MlpModel, MlpNetwork

_UNREADABLE = (ValueError, OSError, EOFError, zipfile.BadZipFile)


def read_model(arrays: IO[bytes], card: str) -> MlpModel:
    """The model from an open .npz file and the text of its card.

    Raises:
        InvalidInput: The two are not what `write_model` wrote.
    """
    try:
        table = tomllib.loads(card)
        with np.load(arrays, allow_pickle=False) as stored:
            layers = range(sum(name.startswith("matrix") for name in stored.files))
            pairs = [(stored[f"matrix{i}"], stored[f"bias{i}"]) for i in layers]
            weights = tuple((m.astype(np.float32), b.astype(np.float32)) for m, b in pairs)
            network = MlpNetwork(stored["mean"], stored["scale"], weights)
        return MlpModel(
            kind=table["kind"],
            target=table["target"],
            network=network,
            low=min(float(table["low"]), 1.0),
            high=max(float(table["high"]), 1.0),
            ranges={name: (ends[0], ends[1]) for name, ends in table["ranges"].items()},
            least_s=float(table["least_s"]),
            vendors=tuple(table["vendors"]),
        )
    except (*_UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a model written by wavecast: {error}") from None


def write_model(path: Path, network: MlpNetwork, card: Mapping[str, Any]) -> None:
    """Write `path` (.npz, weights in half precision) and its card beside it (.toml)."""
    arrays: dict[str, Any] = {"mean": network.mean, "scale": network.scale}
    for number, (matrix, bias) in enumerate(network.weights):
        arrays[f"matrix{number}"] = matrix.astype(np.float16)
        arrays[f"bias{number}"] = bias.astype(np.float16)
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
        card_draft.write_text(_toml({**card, "weights_sha256": digest}), encoding="utf-8")


def _toml(card: Mapping[str, Any]) -> str:
    """The card as TOML: values first, then tables.

    Strings, numbers and lists are written as in JSON, which TOML reads too.
    """
    values = [(key, value) for key, value in card.items() if not isinstance(value, Mapping)]
    lines = ["# A network as in Habitat; `data` names what it was fitted on."]
    lines += [f"{key} = {json.dumps(value)}" for key, value in values]
    for key, table in card.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{key}]"]
            lines += [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"
