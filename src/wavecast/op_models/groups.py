"""Products of groups: one kernel where torch has one for the GPU, one by one elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavecast.op_models.gpus import Floats, Gpu
from wavecast.op_models.parts import ONE_BY_ONE, TOGETHER
from wavecast.op_models.tiles import Columns


def apart(columns: Columns, gpu: Gpu) -> tuple[Columns, Floats | float]:
    """What each row launches, and how many times."""
    if "grouped" not in columns or not columns["grouped"].any():
        return columns, 1.0
    times = np.where(_looped(columns["grouped"], gpu), columns["batch"], 1.0)
    times = np.maximum(times, 1.0)
    one = {name: columns[name] / times for name in ("batch", "bytes")}
    return {**columns, **one}, times


def _looped(grouped: Floats, gpu: Gpu) -> Any:
    return (grouped == ONE_BY_ONE) | ((grouped == TOGETHER) & ~np.asarray(gpu.groups))
