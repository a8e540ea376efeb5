"""Facts about the models of the suite: data set, depth, tokens, name in TBD, sizes of decoders.
TBD's are from its tables II and III (Zhu et al., IISWC 2018), others from the model's paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tags:
    """What a model of the suite is trained on and what it consists of."""

    dataset: str = ""
    """The data set of its paper. The suite's own inputs are random, with that data set's shapes."""
    layers: str = ""
    """The number of layers, as TBD or the model's paper counts them."""
    tbd: str = ""
    """Its name in TBD; empty if it is not one of TBD's eight models."""
    tokens_per_sample: float | None = None
    """The mean number of tokens of a sample, padding not counted. None if it has no tokens."""


_IMAGENET = "ImageNet1K"
_BOOKS = "BooksCorpus and Wikipedia"

TAGS: Mapping[str, Tags] = {
    "resnet50": Tags(_IMAGENET, "50", "ResNet-50"),
    "inception-v3": Tags(_IMAGENET, "42", "Inception-v3"),
    "nmt": Tags("IWSLT15", "5", "Seq2Seq (NMT, Sockeye)", 25),
    "transformer": Tags("WMT-14", "12", "Transformer", 50),
    "faster-rcnn": Tags("Pascal VOC 2007", "101", "Faster R-CNN"),
    "deep-speech-2": Tags("LibriSpeech", "9", "Deep Speech 2"),
    "wgan-gp": Tags("Downsampled ImageNet", "14 + 14", "WGAN"),
    "a3c": Tags("Atari 2600", "4", "A3C"),
    "alexnet": Tags(_IMAGENET, "8"),
    "googlenet": Tags(_IMAGENET, "22"),
    "vgg16": Tags(_IMAGENET, "16"),
    "vgg19": Tags(_IMAGENET, "19"),
    "vit": Tags(_IMAGENET, "12"),
    "bert-base": Tags(_BOOKS, "12", tokens_per_sample=128),
    "bert-large": Tags(_BOOKS, "24", tokens_per_sample=128),
    "gpt2": Tags("WebText", "12", tokens_per_sample=1024),
    "gpt2-medium": Tags("WebText", "24", tokens_per_sample=1024),
    "llama-1b": Tags("", "16", tokens_per_sample=2048),
    "gnmt": Tags("WMT-14", "4 + 4", tokens_per_sample=50),
    "dcgan": Tags("LSUN", "5 + 5"),
    "latent-diffusion": Tags("LAION"),
    "dlrm": Tags("Criteo Kaggle"),
    "graphsage": Tags("ogbn-arxiv"),
}
"""The tags of each model, by its name."""

DEFAULT_SEQ = 2048
OWN_SIZES: Mapping[str, Mapping[str, int]] = {
    "gpt": {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 50_304},
    "llama": {
        **{"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192},
        **{"vocab": 128_256},
    },
    "mixtral": {
        **{"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14_336},
        **{"vocab": 32_000, "experts": 8, "top_k": 2, "shared_experts": 0, "dense_layers": 0},
        **{"kv_rank": 0, "q_rank": 0},
    },
}
"""Llama is that of 1B parameters (3.2), and mixtral as Jiang et al. 2024 (8x7B)."""


def complete_sizes(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given sizes of a decoder with those that follow from them, or are the model's own.

    Another width or number of heads is another model: without `kv_heads` there are then as many
    as `heads`. With another width, `ffn` is four times `hidden`. The heads divide `hidden`.

    >>> complete_sizes("llama", {"hidden": 4096})["kv_heads"]
    32
    """
    chosen = {size: value for size, value in given.items() if value is not None}
    own = dict(OWN_SIZES[name])
    if chosen.keys() & {"hidden", "heads"}:
        own.pop("kv_heads", None)
    if "hidden" in chosen:
        own.pop("ffn", None)
    sizes = {"seq": DEFAULT_SEQ, **own, **chosen}
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("ffn", 4 * sizes["hidden"])
    sizes.setdefault("head_size", sizes["hidden"] // max(sizes["heads"], 1))
    return sizes
