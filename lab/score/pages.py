"""Tables that benchmarks write into pages of the documents, between marks."""

from __future__ import annotations

import re
from pathlib import Path


def write(page: Path, name: str, content: str) -> None:
    """Put a table between `<!-- name -->` and `<!-- end -->` on a page."""
    text = page.read_text(encoding="utf-8")
    mark = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert mark.search(text), f"{page} has no mark {name}"
    page.write_text(mark.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text), encoding="utf-8")
