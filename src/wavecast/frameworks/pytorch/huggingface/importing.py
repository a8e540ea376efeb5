"""Why transformers cannot be imported, where it is known: a torchvision that does not fit torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from wavecast.errors import CaptureError

REMEDY = "pip uninstall torchvision, or install the one for your build of torch"


def torchvision_fault() -> str | None:
    """What is wrong with the installed torchvision; None if nothing is, or there is none."""
    try:
        found = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return None
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # it may fail in any way
        said = f"{found} cannot be imported: {type(error).__name__}: {error}"
        return said.splitlines()[0]
    return None


@contextmanager
def naming_torchvision(what: str) -> Iterator[None]:
    """A context in which a failed import names torchvision, if that is what fails.

    transformers says "Could not import module 'LlamaConfig'" then, and no more.

    Args:
        what: what is imported, for the message.
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:
        fault = torchvision_fault()
        if fault is None:
            raise
        raise CaptureError(f"{what} needs torchvision {fault}; {REMEDY}") from error
