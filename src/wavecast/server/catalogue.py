"""What there is to choose from: models with their sizes, GPUs, precisions and clusters."""

from __future__ import annotations

from typing import Any

import wavecast
from wavecast.errors import MissingExtra
from wavecast.frameworks.decoders import DECODERS
from wavecast.hardware.clusters import clusters
from wavecast.planning.prices import price
from wavecast.server.questions import MOST_GPUS
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
        return [*map(_model, benchmarks()), *map(_decoder, DECODERS)]
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
    }


def _decoder(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": _DECODER_TITLES[name],
        "domain": "language modelling",
        "batch": 1,
        "unit": "tokens",
        "sizes": decoder_sizes(name),
    }
