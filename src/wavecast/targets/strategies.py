"""A strategy as users write it, data=8,shard=3,cluster=dgx-h100, for a target."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS, ModelOptions
from wavecast.parallel.strategy import HABITS, Parallel

_TEXTS = ("cluster", "schedule", "offload")
_SWITCHES = ("sequence", "reshard", "reentrant", *HABITS)


def strategy_of(text: str, target: str, options: ModelOptions = NO_OPTIONS) -> Parallel:
    """The strategy that the option names, with the tensor plan of a Hugging Face model.

    Args:
        text: the option.
        target: the target of the command.
        options: how an `hf:` target is trained. Adapters wrap its layers, so its plan is not used.

    Raises:
        InvalidInput: it is malformed, as `parse_parallel` says.
    """
    strategy = parse_parallel(text)
    return (
        strategy
        if strategy.tensor == 1
        else replace(strategy, tensor_plan=plan_of_target(target, options))
    )


def plan_of_target(target: str, options: ModelOptions = NO_OPTIONS) -> dict[str, str] | None:
    """The tensor plan that transformers has for a target; None if the rule is to find one."""
    if not target.startswith("hf:") or options.lora or options.qlora:
        return None
    from wavecast.frameworks.pytorch.huggingface.training import tensor_plan_of

    return tensor_plan_of(target.removeprefix("hf:"), options.task)


def parse_parallel(text: str) -> Parallel:
    """The strategy that the option names; one GPU if it is empty.

    Raises:
        InvalidInput: it is not of the form AXIS=N,..., or the strategy contradicts itself.
    """
    known = [field.name for field in fields(Parallel) if field.name != "tensor_plan"]
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise InvalidInput(
                f"--parallel does not know {name!r}; it takes {', '.join(known)}, as in "
                "data=8,shard=3"
            )
        if name in values:
            raise InvalidInput(f"--parallel has {name} twice; give it once")
        values[name] = _value(name, value if equals else "", text)
    if text and not values:
        raise InvalidInput(f"--parallel {text!r} names no axis; write AXIS=N, as in data=8,shard=3")
    return Parallel(**values)


def _value(name: str, value: str, text: str) -> Any:
    if name in _TEXTS:
        if not value:
            raise InvalidInput(f"--parallel {text}: {name} needs a name, as in {name}=NAME")
        return value
    if name in _SWITCHES:
        if value.lower() in ("", "yes", "true", "1"):
            return True
        if value.lower() in ("no", "false", "0"):
            return False
        raise InvalidInput(f"--parallel {text}: {name} is yes or no, not {value!r}")
    longest = 15 if name == "bucket_bytes" else 9
    if not value.isascii() or not value.isdigit() or len(value) > longest:
        raise InvalidInput(f"--parallel {text}: {name} is a whole number, not {value!r}")
    return int(value)
