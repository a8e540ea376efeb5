"""Reading the published tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .csv or .parquet file; a missing value is None."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        sys.exit("the published tables need pandas and pyarrow: pip install pandas pyarrow")
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return rows


def version(text: str | None) -> tuple[int, ...]:
    """ "1.13.0a0+d0d6b1f" -> (1, 13): as text, 1.9 would be newer."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return tuple(map(int, found.groups())) if found else ()
