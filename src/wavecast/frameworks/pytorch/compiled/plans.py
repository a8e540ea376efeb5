"""What one compiled graph does when it runs: its kernels in order, and the memory around them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import types
import typing
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from wavecast.errors import InvalidInput
from wavecast.files import cache_folder, replacing
from wavecast.frameworks.pytorch.compiled.fused_ops import PlannedOp
from wavecast.reading import MissingFile, parse_json, read_bytes
from wavecast.traces.step import TensorSpec


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """Memory that a step of a graph allocates."""

    name: str
    spec: TensorSpec
    source: str | None = None
    """The buffer whose memory it gets. None for new memory."""
    is_shared: bool = False
    """Whether the source lives on, as this is a part of it."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One scheduled node: what it allocates, its kernels, and what is freed after it."""

    buffers: tuple[PlannedBuffer, ...]
    ops: tuple[PlannedOp, ...]
    """Its kernels and library calls. Empty if it only allocates."""
    frees: tuple[str, ...]
    """The buffers and inputs that nothing needs any more."""
    module: str
    """The path of the module whose code it runs, from the root of the compiled code."""
    line: str
    """The innermost line of that code, as "file.py:12"."""
    source: str = ""
    """The innermost line outside of torch, as the trace shows it."""


@dataclass(frozen=True, slots=True)
class PlannedResult:
    """One result of a graph: a buffer or an input, maybe seen with another shape."""

    name: str | None
    """The buffer or input. None for a result that is no tensor."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    constant: Any = None


@dataclass(frozen=True)
class GraphPlan:
    """All that a compiled graph does when it runs."""

    inputs: tuple[str, ...]
    steps: tuple[PlanStep, ...]
    results: tuple[PlannedResult, ...]
    aliases: dict[str, str]
    """Buffers without memory of their own, and the buffer that they are part of."""
    constants: dict[str, TensorSpec]
    """Tensors that are part of the compiled code."""


# Plans of compiled graphs, kept between traces: lowering a graph takes half of a trace's time.
#
# A graph has a key, a digest of all that its lowering depends on (`inductor.key_of`), and the plan
# is stored under it. What torch calls is a run of the plan (`compiling.GraphRun`); a graph with
# symbols for sizes has a plan and a run for each of its sizes (`compiling.SizedRun`).
#
# Each plan is a file of its own in the user's cache folder, named by the key of its graph; those
# of scripts, whose processes may write nothing there, are in a folder for each script. A file is
# written as a whole or not at all, so that several processes may write the same one. It holds
# plain data with a checksum; one that is damaged is as good as none.


MOST_PLANS = 1000
"""Plans that are kept; those that were not read for the longest time are removed first."""
_PLAN = re.compile(r"[0-9a-f]{64}\.plan")
_LARGEST_BYTES = 1 << 28
_MOST_ADOPTED_BYTES = 1 << 26
_DIGEST_BYTES = hashlib.sha256().digest_size


def plans_folder() -> Path:
    """The folder of the plans."""
    return cache_folder() / "compiled"


def script_folder(program: str) -> Path:
    """The folder of the plans of one script, which no other trace reads."""
    name = hashlib.sha256(str(Path(program).resolve()).encode(errors="replace")).hexdigest()
    return plans_folder() / "scripts" / name


class _Apart:
    """What a process that runs a script does with plans: it reads known ones, and writes none."""

    def __init__(self) -> None:
        self.known: Path | None = None
        """The folder that it reads. None in any other process."""
        self.new: dict[str, GraphPlan] = {}


_apart = _Apart()


def keep_apart(known: Path) -> None:
    """In a process that runs a script: read plans from a folder, and keep new ones for `leave`.

    A script can change whatever its process does, so what it leaves is for this script alone.
    """
    _apart.known = known


def leave(folder: Path) -> None:
    """Write the new plans of a process that has run a script."""
    for key, plan in _apart.new.items():
        _write(key, plan, folder)


def adopt(new: Path, folder: Path) -> None:
    """Keep the plans that the process of a script has left in a folder of its own.

    They are not looked into: whatever they hold, only processes of this script will read it.
    """
    left_bytes = _MOST_ADOPTED_BYTES
    with suppress(OSError), os.scandir(new) as entries:
        for entry in itertools.islice(entries, MOST_PLANS):
            if _PLAN.fullmatch(entry.name):
                if entry.stat(follow_symlinks=False).st_size > left_bytes:
                    continue  # it may have a terabyte of nothing, and so may all of them
                with suppress(InvalidInput):
                    content = read_bytes(Path(entry), left_bytes, follow=False)
                    left_bytes -= len(content)
                    _keep(content, folder / entry.name)


def stored_plan(key: str, folder: Path | None = None) -> GraphPlan | None:
    """The plan of the graph with a key; None if none is kept, or its file is damaged."""
    if key in _apart.new:
        return _apart.new[key]
    return _read_if_whole((folder or _apart.known or plans_folder()) / f"{key}.plan")


def _read_if_whole(path: Path) -> GraphPlan | None:
    try:
        plan = read_plan(path)
    except MissingFile:
        return None
    except InvalidInput:
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)
    return plan


def store_plan(key: str, plan: GraphPlan, folder: Path | None = None) -> None:
    """Keep a plan. Where nothing can be written, nothing is kept."""
    if _apart.known is not None:
        _apart.new[key] = plan
    else:
        _write(key, plan, folder or plans_folder())


def _write(key: str, plan: GraphPlan, folder: Path) -> None:
    body = zlib.compress(json.dumps(_plain(plan)).encode(), 1)
    _keep(hashlib.sha256(body).digest() + body, folder / f"{key}.plan")


def _keep(content: bytes, path: Path) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            draft.write_bytes(content)
        _remove_oldest(path.parent)


def read_plan(path: Path) -> GraphPlan:
    """The plan in a file.

    Raises:
        MissingFile: there is no such file.
        InvalidInput: it cannot be read, or does not hold what was written.
    """
    content = read_bytes(path, prefix=f"cannot read {path}: it ")
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise InvalidInput(f"{path} is damaged; delete it")
    try:
        unpacked = zlib.decompressobj().decompress(body, _LARGEST_BYTES)
        plan: GraphPlan = _typed(GraphPlan, parse_json(unpacked, constants=True))
    except (zlib.error, ValueError, TypeError, RecursionError, InvalidInput) as error:
        raise InvalidInput(f"{path} holds no plan of a graph: {error}; delete it") from None
    return plan


def _remove_oldest(folder: Path) -> None:
    paths = list(folder.glob("*.plan"))
    if len(paths) > MOST_PLANS:
        for path in sorted(paths, key=_last_used)[: len(paths) - MOST_PLANS]:
            path.unlink(missing_ok=True)


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has removed it
        return 0.0


def _plain(value: Any) -> Any:
    """A value of a plan as lists: records as their fields, in order."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return [[key, _plain(item)] for key, item in value.items()]
    names = _names(kind)
    return value if names is None else [_plain(getattr(value, name)) for name in names]


_SCALARS = (str, int, float, bool, type(None))


@functools.cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """The names of a record's fields, in order; None for what is no record."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


def _typed(kind: Any, value: Any) -> Any:
    """A value of a type from what `_plain` made of it. ValueError or TypeError if it is none."""
    if kind in (str, int, bool):
        if type(value) is not kind:
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType) and inner[-1] is type(None):
        return None if value is None else _typed(inner[0], value)
    if kind is Any or origin in (Union, types.UnionType):
        return _scalar(value)
    if type(value) is not list:
        raise TypeError(f"{value!r} is no list")
    if origin is dict:
        return {_typed(inner[0], key): _typed(inner[1], item) for key, item in value}
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(
            _typed(inner_kind, item) for inner_kind, item in zip(kinds, value, strict=True)
        )
    kinds = _fields(kind)
    return kind(*(_typed(item_kind, item) for item_kind, item in zip(kinds, value, strict=True)))


def _scalar(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_scalar(item) for item in value)
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TypeError(f"{value!r} is no attribute of an op")


@functools.cache
def _fields(kind: Any) -> tuple[Any, ...]:
    """The types of a record's fields, in order."""
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return tuple(hints[field.name] for field in dataclasses.fields(kind) if field.init)
    return tuple(hints[name] for name in kind._fields)
