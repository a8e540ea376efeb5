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


# The names of GPUs in public tables, mapped to the ids of our devices.


NEUSIGHT = {
    "P4": "p4",
    "P100": "p100-pcie-16gb",
    "T4": "t4",
    "V100": "v100-pcie-32gb",
    "A100-PCIE-40GB": "a100-pcie-40gb",
    "MI100": "mi100",
}
NEUSIGHT_NVIDIA = {name: gpu for name, gpu in NEUSIGHT.items() if name != "MI100"}
KERNELS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "l40s": "l40s",
    "b200_sxm": "b200-sxm",
}
VIDUR = {"a100": "a100-sxm-80gb", "a40": "a40"}
DEEPBENCH = {
    "GTX 1080 Ti": "gtx-1080-ti",
    "Radeon Vega Frontier Edition": "vega-frontier-edition",
    "TITAN X Maxwell": "gtx-titan-x-maxwell",
    "TITAN X Pascal": "titan-x-pascal",
    "Tesla M40": "m40",
    "Tesla P100 PCIe 16GB": "p100-pcie-16gb",
    "Tesla V100 SXM2 16GB": "v100-sxm-16gb",
}
DEEPBENCH_NVIDIA = {name: gpu for name, gpu in DEEPBENCH.items() if "Radeon" not in name}
