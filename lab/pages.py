"""Tables in Markdown, and their places on pages of the documents, between two marks."""

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


def heading(names: str, align: str = "l") -> tuple[str, str]:
    """The first line of a table, and the line that aligns its columns.

    ```python
    heading("step | measured | error")    # the first column to the left, the others to the right
    ```

    Args:
        names: the names of the columns, with " | " between.
        align: "l" or "r" for the first columns; the others are numbers, to the right.
    """
    sides = align.ljust(len(names.split("|")), "r")
    marks = ("---" if side == "l" else "---:" for side in sides)
    return f"| {names} |", f"|{'|'.join(marks)}|"
