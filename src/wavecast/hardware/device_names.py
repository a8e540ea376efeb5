"""Matching the names that people write for GPUs to known devices."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable

from wavecast.hardware.device import Device

_BRANDS = frozenset(
    {"nvidia", "amd", "ati", "intel", "corporation", "geforce", "tesla", "instinct", "radeon"}
    | {"generation", "edition", "graphics", "card", "gpu"}
)


@functools.lru_cache(maxsize=4096)
def words_of(name: str) -> frozenset[str]:
    """The words that identify a device: "NVIDIA A100-SXM4-80GB" gives a100, sxm and 80gb."""
    text = name.lower().replace("pci-e", "pcie")
    text = re.sub(r"(geforce|quadro|tesla|titan|super|rtx|gtx|pcie|sxm\d?)", r" \1 ", text)
    text = re.sub(r"\b(rx|pro)(?=\d)", r"\1 ", text)
    text = re.sub(r"(?<=\d)(ti|xtx|xt|ada)\b", r" \1", text)
    # A socket's number follows from the GPU's generation, but V100 exists as SXM2 and SXM3.
    text = re.sub(r"\bsxm[2456]\b", "sxm", text)
    text = re.sub(r"\b(\d+) ?(gb|gib|g)\b", r"\1gb", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _BRANDS


@functools.lru_cache(maxsize=4096)
def _keys(device: Device) -> tuple[frozenset[str], ...]:
    """All sets of words that are full names of the device."""
    keys = [words_of(name) for name in (device.id, device.name, *device.aliases)]
    # "3090" alone is the RTX 3090, and "rtx 3090 24gb" is too.
    keys += [key - {"rtx", "gtx", "rx"} for key in keys if any(word.isdigit() for word in key)]
    keys += [key | {f"{round(device.memory_bytes / 2**30)}gb"} for key in keys]
    return tuple(dict.fromkeys(key for key in keys if key))


_LONGEST_NAME = 200
"""The longest name that is compared with those of GPUs. A profile may hold any."""


def fitting(name: str, devices: tuple[Device, ...]) -> list[Device]:
    """The devices with exactly the words of the name, else those with these words and others."""
    words = words_of(name)
    exact = [d for d in devices if words in _keys(d)]
    if exact or not words:
        return exact
    return [d for d in devices if any(words <= key for key in _keys(d))]


def nearest(name: str, devices: Iterable[Device]) -> list[Device]:
    """Up to five devices with similar names, the most similar first."""
    wanted = "".join(sorted(words_of(name))) or name.lower()
    if len(wanted) > _LONGEST_NAME:  # comparing takes time with the product of both lengths
        return []

    def likeness(device: Device) -> float:
        joined = ("".join(sorted(key)) for key in _keys(device))
        single = (word for key in _keys(device) for word in key if any(c.isdigit() for c in word))
        return max(
            difflib.SequenceMatcher(None, wanted, text).ratio() for text in (*joined, *single)
        )

    scored = [(likeness(d), d) for d in devices]
    enough = max(0.6, max((score for score, _ in scored), default=0) - 0.15)
    best = sorted((pair for pair in scored if pair[0] >= enough), key=lambda pair: -pair[0])
    return [device for _, device in best[:5]]
