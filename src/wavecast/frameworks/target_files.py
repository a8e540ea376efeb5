"""Files of Python that a target names, imported as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput

_imported: set[str] = set()
"""The names under which files were imported. Each trace imports its file anew."""


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
