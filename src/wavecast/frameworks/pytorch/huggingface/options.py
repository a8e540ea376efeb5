"""How a Hugging Face model is trained: the options of `hf:` targets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from wavecast.errors import InvalidInput

WEIGHTS = ("fp32", "bf16", "fp16")
"""The precisions that weights can be stored in."""
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab")
"""The options that only decoders of any size take."""
MIXTURE_SIZES = (
    *("experts", "top_k", "shared_experts", "dense_layers", "dense_ffn"),
    *("kv_rank", "q_rank"),
)
"""The options that only mixtures of experts of any size take (`mixtral`)."""
CACHES = ("dynamic", "static")
"""The caches of keys and values, by transformers' names: one grows, one has a place for each token
from the start, as compiled code and CUDA graphs need it."""
QUANTIZED = ("int8", "nf4")
"""How weights of linear layers can be stored for inference: in 8 or in 4 bits, by bitsandbytes."""
DECODER_WAYS = ("recompute", "unfused_attention", "untied", "joint")
"""How a decoder of any size is trained, beside its sizes."""


@dataclass(frozen=True)
class ModelOptions:
    """The options of an `hf:` target, or of a decoder of any size.

    Options that are not given follow from the model's task, or are the decoder's defaults.
    """

    task: str | None = None
    """What the model is trained for, one of `tasks.TASKS`. None to read it from the config."""
    seq: int | None = None
    """The number of tokens in a sequence. None for the task's default."""
    cache: str | None = None
    """How decoding keeps keys and values, one of `CACHES`. None for "dynamic"."""
    quantize: str | None = None
    """How inference stores the weights of linear layers, one of `QUANTIZED`. None for as they
    are."""
    context: int | None = None
    """`seq` by its name in inference: the tokens of the prompt, or in the cache."""
    weights: str | None = None
    """One of `WEIGHTS`. None for float32, or as QLoRA needs it."""
    lora: str | None = None
    """The adapters, as "r=16" or "r=16,alpha=32,dropout=0.05". None to train all weights."""
    targets: str | None = None
    """The layers that get adapters: names with commas between, or "all-linear"."""
    qlora: bool = False
    """Whether linear layers are stored in 4 bits, and only adapters train."""
    checkpointing: bool = False
    """Whether activations are recomputed in the backward pass (checkpointing)."""
    recompute: str | None = None
    """What a decoder recomputes in the backward pass: one of `wavecast.suite.decoders`'
    `RECOMPUTE`. None for nothing, or for whole blocks with `checkpointing`."""
    unfused_attention: bool = False
    """Whether a decoder's attention writes its scores to memory and drops a tenth of them."""
    untied: bool = False
    """Whether a decoder's output layer has a weight of its own."""
    joint: bool = False
    """Whether one matmul of `llama` gives queries, keys and values, which are copied from its
    result, and one both inputs of the gate."""
    layers: int | None = None
    """The blocks of a decoder of any size (`gpt`, `llama`, `mixtral`). None for its default."""
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    experts: int | None = None
    """The experts of each block of a mixture, whose inner width is `ffn`."""
    top_k: int | None = None
    shared_experts: int | None = None
    dense_layers: int | None = None
    dense_ffn: int | None = None
    kv_rank: int | None = None
    """The rank of DeepSeek's attention. None for ordinary attention."""
    q_rank: int | None = None

    def given(self) -> tuple[str, ...]:
        """The names of the options that differ from their defaults, as on the command line."""
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return tuple(
            "--" + name.replace("_", "-") for name, value, default in values if value != default
        )

    def words(self) -> list[str]:
        """The options that differ from their defaults, as they are typed with their values."""
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                option = "--" + field.name.replace("_", "-")
                words += [option] if value is True else [option, str(value)]
        return words

    def sizes(self) -> dict[str, int]:
        """The given sizes of a decoder, by name."""
        named = {name: getattr(self, name) for name in (*SIZES, *MIXTURE_SIZES)}
        return {name: value for name, value in named.items() if value is not None}

    def refuse_sizes(self, target: str) -> None:
        """Raise InvalidInput if options of decoders are given for a target that has its own."""
        own = [name.replace("_", "-") for name in (*SIZES, *MIXTURE_SIZES, *DECODER_WAYS)]
        named = [name for name in self.given() if name.removeprefix("--") in own]
        if named:
            raise InvalidInput(
                f"{', '.join(named)}: only for decoders of any size (gpt, llama, mixtral), "
                f"not for {target}"
            )

    @classmethod
    def named(cls, given: Mapping[str, object]) -> ModelOptions:
        """The options of a table in a file.

        Raises:
            InvalidInput: there is no such option, or its value is of another type.
        """
        known = {option.name: str(option.type) for option in fields(cls)}
        kinds = {"bool": bool, "int | None": int, "str | None": str}
        named: dict[str, Any] = {name.replace("-", "_"): value for name, value in given.items()}
        for name, value in named.items():
            if name not in known:
                raise InvalidInput(
                    f"options.{name} is not an option of a model; known are {', '.join(known)}"
                )
            expected = kinds[known[name]]
            if type(value) is not expected:
                raise InvalidInput(
                    f"options.{name} must be of type {expected.__name__}, not {value!r}"
                )
        return cls(**named)


NO_OPTIONS = ModelOptions()
"""Everything as the model's task and its library have it by default."""


@dataclass(frozen=True)
class Lora:
    """The sizes of low-rank adapters (Hu et al., LoRA, ICLR 2022)."""

    rank: int = 8
    alpha: float = 8.0
    """The scale of the adapters times their rank. Rank and alpha are peft's defaults."""
    dropout: float = 0.0

    def __str__(self) -> str:
        return f"r={self.rank}"


def lora_of(options: ModelOptions) -> Lora | None:
    """The adapters that the options ask for. None if all weights train.

    Raises:
        InvalidInput: the text of `lora` cannot be read, or a value is out of its range.
    """
    if options.lora is None:
        if options.targets is not None and not options.qlora:
            raise InvalidInput("--targets names layers that get adapters; give --lora r=16, too")
        return Lora() if options.qlora else None
    read: dict[str, str] = {}
    for part in options.lora.split(","):
        match = re.fullmatch(r"\s*(?:(r|alpha|dropout)\s*=)?\s*([0-9.]+)\s*", part)
        if match is None or (match[1] or "r") in read:
            raise InvalidInput(
                f"cannot read --lora {options.lora!r}; write r=16, or r=16,alpha=32,dropout=0.05"
            )
        read[match[1] or "r"] = match[2]
    return _checked(read, options.lora)


def _checked(read: dict[str, str], text: str) -> Lora:
    try:
        adapters = Lora(
            rank=int(read["r"]) if "r" in read else Lora.rank,
            alpha=float(read["alpha"]) if "alpha" in read else Lora.alpha,
            dropout=float(read.get("dropout", 0.0)),
        )
    except ValueError as error:
        raise InvalidInput(f"cannot read --lora {text!r}: {error}") from None
    if adapters.rank < 1 or not 0 <= adapters.dropout < 1:
        raise InvalidInput(
            f"--lora {text!r}: r must be at least 1, and dropout at least 0 and below 1"
        )
    return adapters


def check(options: ModelOptions) -> None:
    """Refuse options that are wrong by themselves, before anything is read or built."""
    if options.weights is not None and options.weights not in WEIGHTS:
        raise InvalidInput(
            f"unknown precision {options.weights!r} of --weights; known: {', '.join(WEIGHTS)}"
        )
    if options.cache is not None and options.cache not in CACHES:
        raise InvalidInput(f"unknown cache {options.cache!r}; known: {', '.join(CACHES)}")
    if options.cache is not None and options.task != "decode":
        raise InvalidInput("--cache is how --task decode keeps keys and values; give both")
    for name, length in (("seq", options.seq), ("context", options.context)):
        if length is not None and length < 1:
            raise InvalidInput(f"--{name} must be at least 1, not {length}")
    if options.seq is not None and options.context is not None:
        raise InvalidInput("--context is --seq by another name; give one of them")
    if options.quantize is not None and options.quantize not in QUANTIZED:
        raise InvalidInput(
            f"unknown weights {options.quantize!r} of --quantize; known: {', '.join(QUANTIZED)}"
        )
    if options.qlora and options.weights is not None:
        raise InvalidInput(
            "--qlora stores the weights of linear layers in 4 bits and the others in float32; "
            "leave --weights out"
        )
    lora_of(options)
