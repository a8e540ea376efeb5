"""TOML files: read with one clear error, written all or nothing."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
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


def write_checked(path: Path, text: str, read: Callable[[Path], object]) -> None:
    """Write a file, all or nothing: what `read` cannot read again must not replace what it can."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        read(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
