"""The kernels of one iteration as torch.profiler records them, with the op that launched each."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
REGIONS = (
    "TorchDynamo Cache Lookup",
    "Torch-Compiled Region",
    "Pregraph bytecode",
    "AOTDispatcher Runtime Wrapper Prologue",
    "CompiledFunction",
    "CompiledFunctionBackward",
    "## Call CompiledFxGraph",
    "Optimizer.step",
    "Optimizer.zero_grad",
)
"""The beginnings of the names of the host's regions in compiled steps."""

Event = dict[str, Any]


def profiled(
    run: Callable[[], Any], turn: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> list[Event]:
    """The events of a run, as Chrome's trace format has them.

    Args:
        run: what to profile.
        turn: entered before the run, when the profiler has started, which takes long.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as watched, turn():
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
    return [event for event in document["traceEvents"] if event.get("ph") == "X"]


def kernels_of(events: list[Event]) -> list[Event]:
    """One row for each kernel, copy and fill, in the order in which they ran."""
    owners = _owners(events)
    rows = []
    works = [event for event in events if event.get("cat") in GPU_WORK]
    works.sort(key=lambda event: float(event["ts"]))
    begin = float(works[0]["ts"]) if works else 0.0
    for event in works:
        details = event.get("args", {})
        rows.append(
            {
                "name": event["name"],
                "us": float(event["dur"]),
                "at_us": round(float(event["ts"]) - begin, 3),
                "grid": details.get("grid"),
                "block": details.get("block"),
                "registers": details.get("registers per thread"),
                "shared": details.get("shared memory"),
                "stream": details.get("stream", 0),
                "op": owners.get(details.get("correlation")),
            }
        )
    return rows


def _owners(events: list[Event]) -> dict[Any, list[Any]]:
    """The outermost aten op around each launch: its name, and shapes and types of its inputs."""
    by_thread: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op" and str(event["name"]).startswith("aten::"):
            by_thread[event["tid"]].append(event)
    outermost: dict[Any, list[Event]] = {}
    for thread, called in by_thread.items():
        called.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
        kept: list[Event] = []
        for event in called:
            if not kept or float(event["ts"]) >= float(kept[-1]["ts"]) + float(kept[-1]["dur"]):
                kept.append(event)
        outermost[thread] = kept
    owners: dict[Any, list[Any]] = {}
    for event in events:
        if event.get("cat") not in RUNTIME or "correlation" not in event.get("args", {}):
            continue
        owner = _around(outermost.get(event["tid"], []), float(event["ts"]))
        if owner is not None:
            details = owner.get("args", {})
            shapes, types = details.get("Input Dims"), details.get("Input type")
            owners[event["args"]["correlation"]] = [owner["name"], shapes, types]
    return owners


def _around(called: list[Event], moment: float) -> Event | None:
    """The event of a sorted list that contains a moment."""
    low, high = 0, len(called)
    while low < high:
        middle = (low + high) // 2
        if float(called[middle]["ts"]) <= moment:
            low = middle + 1
        else:
            high = middle
    if not low:
        return None
    found = called[low - 1]
    return found if moment <= float(found["ts"]) + float(found["dur"]) else None


def busy_s(rows: list[Event]) -> float:
    """The seconds in which at least one kernel ran."""
    busy = until = 0.0
    for row in rows:
        begin, end = row["at_us"], row["at_us"] + row["us"]
        busy += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return busy * 1e-6


def regions(events: list[Event]) -> dict[str, list[float]]:
    """How often each region of the host's compiled code ran, and for how many microseconds."""
    found: dict[str, list[float]] = {}
    for event in events:
        name = str(event["name"])
        start = next((region for region in REGIONS if name.startswith(region)), None)
        if start is None and event.get("cat") in RUNTIME:
            start = name
        if start is not None and event.get("cat") not in GPU_WORK:
            entry = found.setdefault(start, [0, 0.0])
            entry[0] += 1
            entry[1] = round(entry[1] + float(event["dur"]), 1)
    return found
