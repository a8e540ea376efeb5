"""Options that several commands share, and that a command gets together as one value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any


def grouped(
    command: Callable[..., Any], name: str, group: type, annotations: Mapping[str, Any]
) -> Callable[..., Any]:
    """A command with more options, which it gets together as its parameter `name`.

    Args:
        command: the command, one of whose parameters has that name.
        name: the parameter.
        group: a dataclass with a field for each option, all with defaults.
        annotations: what typer is told about each option, by field.
    """
    defaults = {field.name: field.default for field in fields(group)}
    shared = [
        inspect.Parameter(
            option, inspect.Parameter.KEYWORD_ONLY, default=defaults[option], annotation=annotation
        )
        for option, annotation in annotations.items()
    ]
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != name]

    @functools.wraps(command)
    def with_options(**arguments: Any) -> Any:
        chosen = {p.name: arguments.pop(p.name) for p in shared}
        return command(**arguments, **{name: group(**chosen)})

    with_options.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *shared]
    )
    with_options.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return with_options
