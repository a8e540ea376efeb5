"""Options that several commands share: a command gets a dataclass of them as one argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import typer

Command = Callable[..., Any]


def option_group(
    parameter: str, group: type, about: Mapping[str, str], panel: str
) -> Callable[[Command], Command]:
    """A decorator that gives a command one option for each field of a dataclass.

    Args:
        parameter: the parameter of the command that gets them together.
        group: the dataclass.
        about: the help of each field, in the order in which the options are listed.
        panel: the heading in the help of the command.
    """
    hints = get_type_hints(group)
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(group, name),
            annotation=Annotated[
                hints[name],
                typer.Option("--" + name.replace("_", "-"), help=text, rich_help_panel=panel),
            ],
        )
        for name, text in about.items()
    ]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != parameter]

        @functools.wraps(command)
        def with_options(**arguments: Any) -> Any:
            chosen = {p.name: arguments.pop(p.name) for p in shared}
            return command(**arguments, **{parameter: group(**chosen)})

        with_options.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *shared]
        )
        with_options.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        return with_options

    return decorate
