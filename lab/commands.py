"""The commands of the lab: modules of `lab.fit`, `lab.score` and `lab.collect` with a `main`."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

KINDS = ("fit", "score", "collect")
Main = Callable[[Sequence[str]], None]


def names(kind: str) -> dict[str, str]:
    """The commands of a kind, each with the first line of what it says about itself."""
    found = {}
    for path in sorted(Path(__file__).with_name(kind).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main_of(kind: str, name: str) -> Main:
    """The function that runs a command, given its arguments.

    Raises:
        ValueError: there is no such command; the message has the nearest.
    """
    known = list(names(kind))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"no {kind} is called {name!r}{meant}; there are {', '.join(known)}")
    main: Main = import_module(f"lab.{kind}.{name}").main
    return main
