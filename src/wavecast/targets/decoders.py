"""Decoders of any size as targets of commands: `wavecast predict gpt --layers 24 --hidden 2048`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from wavecast.errors import InvalidInput, needing_extra
from wavecast.frameworks.pytorch.huggingface.options import (
    DECODER_WAYS,
    MIXTURE_SIZES,
    SIZES,
    WEIGHTS,
    ModelOptions,
    lora_of,
)
from wavecast.suite.tags import complete_sizes

DECODERS = ("gpt", "llama", "mixtral")
"""The decoders of any size: functions of `wavecast.suite.decoders`."""
_TRAINING = (
    *("seq", "weights", "checkpointing", "lora", "targets"),
    *DECODER_WAYS,
)
_DROPOUT = 0.1
"""The share of scores that unfused attention drops: Megatron's default."""


def sizes_of(name: str) -> tuple[str, ...]:
    """The sizes that a decoder takes."""
    return (*SIZES, *MIXTURE_SIZES) if name == "mixtral" else SIZES


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
    model: str
    """The model with its sizes and its parameters."""


def is_decoder(text: str, options: ModelOptions) -> bool:
    """Whether a target is a decoder of any size.

    `llama` without sizes is the suite's Llama 3.2 1B.
    """
    return text in DECODERS and (text != "llama" or bool(options.sizes()))


def decoder_of(text: str, batch: int, precision: str, options: ModelOptions) -> DecoderTarget:
    """The decoder that a target and its options describe.

    Raises:
        InvalidInput: an option is not for decoders, or sizes do not fit each other.
    """
    taken = {"--" + option.replace("_", "-") for option in (*_TRAINING, *sizes_of(text))}
    others = [name for name in options.given() if name not in taken]
    if others:
        raise InvalidInput(
            f"{', '.join(others)}: not for {text}, which takes {', '.join(sorted(taken))}"
        )
    weights = options.weights or "fp32"
    if weights not in WEIGHTS:
        raise InvalidInput(f"unknown --weights {weights!r}; known: {', '.join(WEIGHTS)}")
    shape: dict[str, Any] = {**options.sizes(), "seq": options.seq}
    if options.untied:
        shape["tied"] = False
    chosen: dict[str, Any] = {}
    if adapters := lora_of(options):
        _refuse_dropout(adapters.dropout)
        chosen["lora"] = adapters.rank
    if options.unfused_attention:
        chosen |= {"fused_attention": False, "dropout": _DROPOUT}
    if options.joint:
        chosen["joint"] = True
    if options.targets is not None:
        chosen["adapted"] = tuple(options.targets.split(","))

    def make_step() -> Callable[[], Any]:
        with needing_extra("tracing"):
            from wavecast.suite import decoders
        recompute = options.recompute or ("full" if options.checkpointing else "none")
        make = getattr(decoders, text)
        step: Callable[[], Any] = make(
            batch, precision, weights=weights, recompute=recompute, **shape, **chosen
        )
        return step

    model = _model_name(text, shape, {k: v for k, v in chosen.items() if k != "adapted"})
    samples = batch * int(complete_sizes(text, shape)["seq"])
    name = f"{model}, batch {batch}, {precision}"
    return DecoderTarget(name, batch, precision, samples, make_step, model)


def _model_name(text: str, shape: Mapping[str, Any], ways: Mapping[str, Any]) -> str:
    """The model with all of its sizes and its parameters: nothing is chosen silently."""
    given = {name: value for name, value in shape.items() if value is not None}
    sizes = ", ".join(f"{name} {value}" for name, value in (given | dict(ways)).items())
    others = complete_sizes(text, shape)
    usual = ", ".join(f"{n} {size}" for n, size in others.items() if size and n not in given)
    count = _parameters(text, tuple(sorted(given.items())))
    counted = f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
    parts = [sizes, usual and f"by default {usual}", f"{counted} parameters"]
    return f"{text} ({'; '.join(part for part in parts if part)})"


@cache
def _parameters(text: str, shape: tuple[tuple[str, Any], ...]) -> int:
    with needing_extra("tracing"):
        from wavecast.suite.decoders import parameter_count
    return parameter_count(text, **dict(shape))


def _refuse_dropout(share: float) -> None:
    if share:
        raise InvalidInput(f"--lora with dropout={share}: decoders of any size have no dropout")
