"""Options that several commands share, and that a command gets together as one value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer


def grouped(
    command: Callable[..., Any],
    name: str,
    group: type,
    annotations: Mapping[str, Any],
    inner: Sequence[str] = (),
) -> Callable[..., Any]:
    """A command with more options, which it gets together as its parameter `name`.

    Args:
        command: the command, one of whose parameters has that name.
        name: the parameter.
        group: a dataclass with a field for each option, all with defaults.
        annotations: what typer is told about each option, by field.
        inner: fields that are groups of options themselves, which other decorators give.
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
    own += [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in inner]

    @functools.wraps(command)
    def with_options(**arguments: Any) -> Any:
        chosen = {p.name: arguments.pop(p.name) for p in shared}
        chosen |= {each: arguments.pop(each) for each in inner}
        return command(**arguments, **{name: group(**chosen)})

    own = [p.replace(kind=p.KEYWORD_ONLY) for p in own]
    needed = sum(p.default is p.empty and p.name not in inner for p in own)
    early = needed if inner else 0
    place = early or len(own)  # the options of a step come after what a command must be given
    ordered = [*own[:place], *shared, *own[place:]]
    with_options.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in ordered}
    return with_options


def option_group(
    name: str, group: type, about: Mapping[str, str], panel: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command one option for each field of a dataclass.

    Args:
        name: the parameter of the command that gets them together.
        group: the dataclass.
        about: the help of each field, in the order in which the options are listed.
        panel: the heading in the help of the command.
    """
    hints = get_type_hints(group)
    annotations = {
        field: Annotated[
            hints[field],
            typer.Option("--" + field.replace("_", "-"), help=text, rich_help_panel=panel),
        ]
        for field, text in about.items()
    }
    return lambda command: grouped(command, name, group, annotations)


# The option of commands that can run on a Ray cluster.


RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help='Run on a Ray cluster: HOST:PORT of its head, "auto", or "local" to start one here.',
    ),
]
