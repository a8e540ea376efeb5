"""Read public tables: CSV and parquet files in the folder that `--data` names.

The tables are not part of the repository; docs/sources.md says where each comes from.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.needs import needing

if TYPE_CHECKING:
    import pandas as pd


def read_frame(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """A table as a data frame, with all columns or only those named."""
    with needing("reading public tables"):
        import pandas
        import pyarrow  # noqa: F401  (pandas would ask for it later, with a longer message)

    if path.suffix == ".csv":
        return pandas.read_csv(path, usecols=columns)
    return pandas.read_parquet(path, columns=columns)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table; a missing value is None."""
    frame = read_frame(path)
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def version(text: str | None) -> tuple[int, ...]:
    """A version as numbers: "1.13.0a0+d0d6b1f" -> (1, 13). As text, 1.9 would be newer."""
    numbers = re.match(r"(\d+)\.(\d+)", text or "")
    return tuple(map(int, numbers.groups())) if numbers else ()
