"""Files of Python that a target names, imported as modules."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.keras_models import backend_of

_imported: set[str] = set()
"""The names under which files were imported. Each trace imports its file anew."""

_JAX = ("jax", "flax", "optax", "equinox", "haiku")


_LONGEST_NAME, _LONGEST_PATH = 255, 1000


def is_too_long(text: str) -> bool:
    """Whether a text is too long for a path, so that no file of this name can be looked for."""
    longest = max(map(len, re.split(r"[/\\:]", text)))
    return len(text) > _LONGEST_PATH or longest > _LONGEST_NAME


@dataclass(frozen=True)
class Imports:
    """What a file of Python imports of the frameworks."""

    jax: bool = False
    """Whether its step is one of JAX: it imports JAX or a library on it, and not torch."""
    keras: str | None = None
    """The framework that Keras shall run on, if the file imports Keras; else None."""


def imports_of(place: str) -> Imports:
    """The frameworks that a file imports; none if it is no file, or cannot be read."""
    if not place.endswith(".py"):
        return Imports()
    try:
        tree = ast.parse(Path(place).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return Imports()  # importing it will say what is wrong
    roots = {name.partition(".")[0] for name in _imported_names(tree)}
    if "keras" in roots and "torch" not in roots:
        backend = "tensorflow" if "tensorflow" in roots else backend_of(tree)
        return Imports(backend == "jax", backend)
    return Imports(bool(roots & set(_JAX)) and "torch" not in roots)


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def import_file(place: str) -> Any:
    """The module that a file defines, under its own name or, if that is taken, a longer one."""
    path = Path(place).resolve()
    name = path.stem
    while name in sys.modules and name not in _imported:
        name = f"{name}_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{place} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    # Torch's compiler imports the modules of the code that it compiles by their names.
    _imported.add(name)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).splitlines()), "no message")


def place_of(error: Exception, folder: str) -> str:
    """The innermost line of the user's code in the traceback of an error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(folder) and "site-packages" not in f.filename]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"
