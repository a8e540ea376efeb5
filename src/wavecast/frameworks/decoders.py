"""Decoders of any size as targets of commands: `wavecast predict gpt --layers 24 --hidden 2048`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wavecast.errors import InvalidInput, needing_extra
from wavecast.frameworks.pytorch.huggingface.options import SIZES, WEIGHTS, ModelOptions

DEFAULT_SEQ = 2048
_TAKEN = {"--seq", "--weights", "--checkpointing", *("--" + s.replace("_", "-") for s in SIZES)}


@dataclass(frozen=True)
class DecoderTarget:
    """A decoder to trace."""

    name: str
    batch: int
    """Sequences."""
    precision: str
    samples: int
    """Tokens of the batch."""
    make_step: Callable[[], Callable[[], Any]]


def is_decoder(text: str, options: ModelOptions) -> bool:
    """Whether a target is a decoder of any size.

    `llama` without sizes is the suite's Llama 3.2 1B.
    """
    return text == "gpt" or (text == "llama" and bool(options.sizes()))


def decoder_of(text: str, batch: int, precision: str, options: ModelOptions) -> DecoderTarget:
    """The decoder that a target and its options describe.

    Raises:
        InvalidInput: an option is not for decoders, or sizes do not fit each other.
    """
    others = [name for name in options.given() if name not in _TAKEN]
    if others:
        raise InvalidInput(
            f"{', '.join(others)}: not for {text}, which takes {', '.join(sorted(_TAKEN))}"
        )
    weights = options.weights or "fp32"
    if weights not in WEIGHTS:
        raise InvalidInput(f"unknown --weights {weights!r}; known: {', '.join(WEIGHTS)}")
    seq = options.seq or DEFAULT_SEQ

    def make_step() -> Callable[[], Any]:
        with needing_extra("tracing"):
            from wavecast.suite import decoders
        make: Callable[..., Callable[[], Any]] = decoders.gpt if text == "gpt" else decoders.llama
        recompute = "full" if options.checkpointing else "none"
        return make(
            batch, precision, seq=seq, weights=weights, recompute=recompute, **options.sizes()
        )

    chosen = ", ".join(f"{name} {value}" for name, value in options.sizes().items())
    name = f"{text} ({chosen})" if chosen else text
    title = f"{name}, batch {batch}, {precision}"
    return DecoderTarget(title, batch, precision, batch * seq, make_step)
