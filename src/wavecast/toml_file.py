"""TOML files, read with one clear error."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file; what cannot be read is an InvalidInput without the path."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidInput("is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # TOML errors, and numbers of 5000 digits
        raise InvalidInput(f"is not TOML: {error}") from None
