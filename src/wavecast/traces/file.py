"""Trace files: gzipped JSON with a version and a checksum, read strictly.

A file is one JSON object {"format", "version", "sha256", "trace"}. Tensors, ops, module paths and
launches are tables; calls and allocations are columns of indices into these tables, so that a layer
repeated a hundred times is stored once (`wavecast.traces.encoding`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.reading import MissingFile, parse_json, read_bytes
from wavecast.traces.checked_json import Malformed, short
from wavecast.traces.decoding import decode
from wavecast.traces.encoding import encode
from wavecast.traces.step import Trace

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
    """The trace in a file.

    Args:
        path: the file.
        follow: whether the path may be a link.

    Raises:
        InvalidInput: the file is not a complete and unaltered trace file.
    """
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
