"""Tables in Markdown, as commands print them and pages show them."""

from __future__ import annotations


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
