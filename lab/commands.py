"""The commands of the lab: modules of `lab.fit`, `lab.score` and `lab.collect` with a `main`.

Those of `lab.score` that only print tables are in the table of `lab.scores`.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from lab.scores import SCORES

KINDS = ("fit", "score", "collect")
Main = Callable[[Sequence[str]], None]


def names(kind: str) -> dict[str, str]:
    """The commands of a kind, each with the first line of what it says about itself."""
    abouts, commands = {}, {}
    for path in sorted(Path(__file__).with_name(kind).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        abouts[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            commands[path.stem] = abouts[path.stem]
    if kind == "score":
        commands |= {name: abouts[score.module] for name, score in SCORES.items()}
    return dict(sorted(commands.items()))


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
    if kind == "score" and name in SCORES:
        return SCORES[name]
    main: Main = import_module(f"lab.{kind}.{name}").main
    return main
