"""Tables of documents that benchmarks write, between marks."""

from __future__ import annotations

import re
from pathlib import Path


def write(page: Path, name: str, content: str) -> None:
    """Put a table between its marks on a page."""
    text = page.read_text(encoding="utf-8")
    mark = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    assert mark.search(text), f"{page} has no mark {name}"
    page.write_text(mark.sub(lambda m: m[1] + content + m[2], text), encoding="utf-8")
