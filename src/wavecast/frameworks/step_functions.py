"""The function that a target names: whether it can build a step, and with which arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from wavecast.errors import InvalidInput, UnknownName


def attribute_of(module: Any, name: str, text: str) -> Callable[..., Any]:
    """The function of a module that a target names."""
    value = getattr(module, name, None)
    if value is None:
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
        names = ", ".join(sorted(functions)) if functions else "no function at all"
        raise UnknownName(f"{text}: there is no function {name!r}; it has {names}")
    if not callable(value):
        raise InvalidInput(
            f"{text} is not a function but of type {type(value).__name__}; name one that builds "
            "model, optimizer and inputs and returns the function that runs one step"
        )
    refuse_async(value, text)
    make: Callable[..., Any] = value
    return make


def refuse_async(function: Any, text: str) -> None:
    """Refuse functions whose body does not run when they are called: nothing would be traced."""
    kinds = {
        "an async function": inspect.iscoroutinefunction,
        "a generator": inspect.isgeneratorfunction,
        "an async generator": inspect.isasyncgenfunction,
    }
    for kind, is_of_kind in kinds.items():
        if is_of_kind(function):
            raise InvalidInput(f"{text} is {kind}; write a plain function, without async and yield")


def arguments_for(
    make: Callable[..., Any], text: str, batch: int | None, precision: str | None
) -> dict[str, Any]:
    """The arguments for the function: batch and precision, as far as they are given."""
    try:
        accepted = inspect.signature(make).parameters
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{text}: Python does not know which arguments it takes; wrap it in a function (def)"
        ) from error
    given = {"batch": batch, "precision": precision}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for name, value in given.items():
        if value is not None and name not in accepted and not takes_any:
            raise InvalidInput(f"{text} has no parameter {name!r}; add one, or leave out --{name}")
    missing = [
        name
        for name, p in accepted.items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and (given.get(name) is None or p.kind is p.POSITIONAL_ONLY)
    ]
    if missing:
        hint = (
            "use --batch and --precision"
            if set(missing) <= set(given)
            else "only batch and precision can be given; give the others a default value"
        )
        raise InvalidInput(f"{text} needs a value for {', '.join(missing)}; {hint}")
    return {name: value for name, value in given.items() if value is not None}
