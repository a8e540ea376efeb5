"""The processor time of this process and of its worker processes, such as data loaders."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

_PROCESSES = Path("/proc")


def processor_s(processes: Path = _PROCESSES) -> float:
    """The CPU seconds that this process and its descendants have used so far.

    Descendants that have ended count once their parent has waited for them. Those that still run
    are read from /proc, so they count on Linux only.

    Args:
        processes: the folder that describes the running processes.
    """
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + _running_s(processes)


def _running_s(processes: Path) -> float:
    """The CPU seconds of the descendants that run now, and of those that they waited for."""
    children: dict[int, list[int]] = defaultdict(list)
    used_ticks: dict[int, int] = {}
    for place in processes.glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold spaces and parentheses of its own.
            fields = place.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        pid = int(place.parent.name)
        children[int(fields[1])].append(pid)
        used_ticks[pid] = sum(map(int, fields[11:15]))
    waiting, ticks = list(children[os.getpid()]), 0
    while waiting:
        pid = waiting.pop()
        ticks += used_ticks[pid]
        waiting += children[pid]
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0
