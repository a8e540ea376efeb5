"""What there is to choose from: models with their sizes, GPUs, precisions and clusters."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import wavecast
from wavecast.errors import MissingExtra
from wavecast.frameworks.decoders import DECODERS
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS
from wavecast.frameworks.pytorch.huggingface.presets import Preset, presets
from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of
from wavecast.hardware.clusters import clusters
from wavecast.planning.prices import price
from wavecast.server.questions import HUGGING_FACE, MOST_GPUS
from wavecast.server.traced import decoder_sizes
from wavecast.suite import PRECISIONS, Benchmark, benchmarks

_DECODER_TITLES = {
    "gpt": "GPT of any size",
    "llama": "Llama of any size",
    "mixtral": "Mixture of experts of any size",
}


def catalogue() -> dict[str, Any]:
    """The choices of the page, as plain data."""
    return {
        "version": wavecast.__version__,
        "models": _models(),
        "gpus": [
            {
                "id": gpu.id,
                "name": gpu.name,
                "vendor": gpu.vendor,
                "architecture": gpu.architecture,
                "memory_bytes": gpu.memory_bytes,
                "usd_per_hour": None if (offer := price(gpu)) is None else offer.usd_per_hour,
            }
            for gpu in wavecast.devices()
        ],
        "precisions": list(PRECISIONS),
        "compiles": True,
        "clusters": sorted(cluster.id for cluster in clusters()),
        "most_gpus": MOST_GPUS,
    }


def _models() -> list[dict[str, Any]]:
    """The models that can be traced here; none without torch."""
    try:
        own = [*map(_model, benchmarks()), *map(_decoder, DECODERS)]
        return [*own, *map(_preset, presets())] if find_spec("transformers") else own
    except MissingExtra:
        return []


def _model(model: Benchmark) -> dict[str, Any]:
    return {
        "name": model.name,
        "title": model.title,
        "domain": model.domain,
        "batch": model.default_batch,
        "unit": model.unit,
        "sizes": model.sizes(),
        "adapts": False,
    }


def _decoder(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": _DECODER_TITLES[name],
        "domain": "language modelling",
        "batch": 1,
        "unit": "tokens",
        "sizes": decoder_sizes(name),
        "adapts": False,
    }


def _preset(preset: Preset) -> dict[str, Any]:
    recipe = recipe_of(preset.name, None, None, NO_OPTIONS)
    return {
        "name": f"{HUGGING_FACE}{preset.name}",
        "title": preset.title,
        "domain": "Hugging Face",
        "batch": recipe.batch,
        "unit": recipe.task.unit,
        "sizes": {} if recipe.sequence is None else {"seq": recipe.sequence},
        "adapts": recipe.task.adapted is not None,
    }
