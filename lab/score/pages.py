"""Reads and writes the generated tables of the documentation, which stand between two marks."""

from __future__ import annotations

import re
from pathlib import Path

from lab.places import DOCS

APPENDIX = DOCS / "appendix"


def write(page: Path, mark: str, content: str) -> None:
    """Replace the text between `<!-- mark -->` and `<!-- end -->` on a page."""
    text = page.read_text(encoding="utf-8")
    marked = re.compile(rf"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert marked.search(text), f"{page} has no mark {mark}"
    page.write_text(marked.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text), encoding="utf-8")


def sums(table: str) -> str:
    """The head of a table and its lines of sums, whose first cells are bold."""
    lines = table.splitlines()
    return "\n".join([*lines[:2], *(line for line in lines if line.startswith("| **"))])


def section(page: Path, mark: str) -> str:
    """The text between `<!-- mark -->` and `<!-- end -->` on a page."""
    text = page.read_text(encoding="utf-8")
    return text.partition(f"<!-- {mark} -->\n")[2].partition("\n<!-- end -->")[0]
