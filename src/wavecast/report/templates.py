"""The shipped templates of pages, and how they are filled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

_PLACE = re.compile(r"\{\{(\w+)\}\}")


@cache
def template(name: str) -> str:
    """The text of a shipped template, style sheet or script."""
    folder = resources.files("wavecast.report").joinpath("templates")
    return folder.joinpath(name).read_text("utf-8")


def filled(name: str, values: Mapping[str, str]) -> str:
    """A template with its places, such as {{title}}, filled with HTML.

    Each place is filled once: what looks like a place within a value stays as it is.
    """
    return _PLACE.sub(lambda place: values[place[1]], template(name))
