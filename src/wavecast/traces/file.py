"""Trace files: gzipped JSON with a version and a checksum, read strictly.

A file is one JSON object {"format", "version", "sha256", "trace"}, in which what repeats, such as
equal layers, is stored once (`wavecast.traces.encoding`).
"""

from __future__ import annotations

import bisect
import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.reading import MissingFile, parse_json, read_bytes
from wavecast.traces.checked_json import Malformed, short
from wavecast.traces.encoding import decode, encode
from wavecast.traces.step import Call, Kernel, Trace

FORMAT = "wavecast-trace"
VERSION = 3
_READ = (2, VERSION)
"""The versions that are read. Version 2 has no values, and counts the calls of compiled graphs."""

SUFFIXES = (".json.gz", ".trace")
"""The endings of trace file names."""


def write(trace: Trace, path: Path) -> None:
    """Write a trace. The same trace always gives the same bytes."""
    try:
        body = encode(trace)
        document = {
            "format": FORMAT,
            "version": VERSION,
            "sha256": _digest(body),
            "trace": body,
        }
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except (ValueError, IndexError) as error:
        raise InvalidInput(f"cannot write the trace {path}: {error}") from error
    write_whole(path, gzip.compress(text.encode(), mtime=0))


def read(path: Path, *, follow: bool = True) -> Trace:
    """The trace in a file, which may be a link if `follow`; InvalidInput if it is damaged."""
    document = _parse(path, follow)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _refuse(path, "it is not a wavecast trace; Trace.save writes one")
    version = document.get("version")
    if version not in _READ or type(version) is not int:
        _refuse(
            path,
            f"it has trace format version {short(version)}, this wavecast reads versions "
            f"{_READ[0]} to {VERSION}; trace the step again, or use the wavecast that wrote it",
        )
    if set(document) != {"format", "version", "sha256", "trace"}:
        _refuse(path, "it has missing or unknown fields")
    if document["sha256"] != _digest(document["trace"]):
        _refuse(path, "its checksum does not match: the file was altered")
    try:
        return decode(document["trace"], version)
    except Malformed as error:
        _refuse(path, str(error))


def _parse(path: Path, follow: bool) -> Any:
    prefix = f"{_refusal(path)}it "
    try:
        text = read_bytes(path, packed=True, prefix=prefix, follow=follow)
    except MissingFile:
        raise InvalidInput(f"there is no trace file {path}") from None
    return parse_json(text, unique=True, prefix=prefix)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise InvalidInput(f"{_refusal(path)}{reason}")


def _refusal(path: Path) -> str:
    return f"cannot read the trace {path}: "


def _digest(body: Any) -> str:
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# Intervals of time in which kernels ran.


Interval = tuple[float, float]
"""Begin and end, in seconds."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals: in order, without overlaps."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The total time of intervals that do not overlap."""
    return sum(end - begin for begin, end in intervals)


def covered(interval: Interval, by: Sequence[Interval]) -> float:
    """The time of an interval that lies within others, which are in order and do not overlap."""
    begin, end = interval
    total = 0.0
    for first, last in by[max(0, bisect.bisect_right(by, (begin, float("inf"))) - 1) :]:
        if first >= end:
            break
        total += max(0.0, min(end, last) - max(begin, first))
    return total


def interval_of(kernel: Kernel) -> Interval | None:
    """The interval in which a kernel ran; None if its start was not recorded."""
    return None if kernel.start_s is None else (kernel.start_s, kernel.start_s + kernel.seconds)


def busy_s(kernels: Iterable[Kernel]) -> float:
    """The seconds in which at least one kernel ran; kernels without a start count in full."""
    runs = [(kernel, interval_of(kernel)) for kernel in kernels]
    without_start = sum(kernel.seconds for kernel, interval in runs if interval is None)
    return without_start + length(union(interval for _, interval in runs if interval is not None))


def exposed_s(calls: Sequence[Call], hidden: Sequence[bool]) -> list[float]:
    """The busy time of the GPU, shared out among the calls, in seconds.

    Where kernels of several streams overlap, the time counts for the one that began first. Calls
    marked `hidden` count only where no other call runs: communication behind computation.
    """
    exposed = [0.0] * len(calls)
    runs = []
    for index, call in enumerate(calls):
        for kernel in call.kernels:
            interval = interval_of(kernel)
            if interval is None:
                exposed[index] += kernel.seconds
            else:
                runs.append((hidden[index], interval, index))
    in_front = union(interval for is_hidden, interval, _ in runs if not is_hidden)
    until = {False: float("-inf"), True: float("-inf")}
    for is_hidden, (begin, end), index in sorted(runs):
        rest = max(begin, until[is_hidden]), end
        until[is_hidden] = max(until[is_hidden], end)
        if rest[0] < end:
            behind_s = covered(rest, in_front) if is_hidden else 0.0
            exposed[index] += max(0.0, end - rest[0] - behind_s)
    return exposed
