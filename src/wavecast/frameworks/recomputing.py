"""Targets that recompute activations in the backward pass, as far as they can."""

from __future__ import annotations

from dataclasses import replace

from wavecast.frameworks.decoders import is_decoder
from wavecast.frameworks.targets import Target, resolve


def recompute_ways(target: Target) -> tuple[str, ...]:
    """What a target can recompute, the least first; what its options ask for, if they do."""
    asked = target.options.recompute or ("full" if target.options.checkpointing else None)
    if asked is not None or target.trace is not None:
        return (asked or "none",)
    if is_decoder(target.text, target.options):
        return ("none", "selective", "full") if target.options.unfused_attention else _ALL
    return _ALL if target.text.startswith("hf:") else ("none",)


_ALL = ("none", "full")


def recomputing(target: Target, way: str) -> Target:
    """The target, with so much recomputed: one of its `recompute_ways`."""
    if way not in ("selective", "full") or way == target.options.recompute:
        return target
    if way == "full":
        options = replace(target.options, checkpointing=True)
    else:
        options = replace(target.options, recompute=way)
    step = resolve(target.text, target.batch, target.precision, options)
    return replace(step, assume=target.assume, ranks=target.ranks, compiled=target.compiled)
