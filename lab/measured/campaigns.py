"""Measured traces: one file for each campaign, written and read here.

A campaign is a set of traces that were measured together, such as the suite, the population or the
sweep of single layers. Read one:

    from lab.measured import campaigns

    suite = campaigns.traces("suite")            # a mapping; a trace is decoded on access
    trace = suite["resnet50-b16-fp32"]           # a wavecast.Trace

`python -m lab collect campaigns` packs the traces of a folder into a campaign, and unpacks one.

A campaign's file is a .npz with LZMA compression, so `numpy.load` can open it, too. It holds the
columns of `lab.measured.packed_traces` and two JSON texts: `texts.json` (names) and `traces.json`
(the data of each trace as a whole, such as its framework and its measurement).
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.measured.packed_traces import PackedTraces, Tables, encode
from lab.places import H200
from wavecast import Trace, load_trace
from wavecast.errors import InvalidInput
from wavecast.files import write_whole

FOLDER = H200 / "traces"
"""The folder of campaigns, one file NAME.npz for each."""
TRACED = H200 / "traced"
"""The folder of traces that were made without a GPU, packed like campaigns."""
SUFFIX = ".json.gz"
VERSION = 1
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The time stamp of every member, so that the same traces always give the same file."""


def names(folder: Path = FOLDER) -> list[str]:
    """The names of all campaigns, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.npz"))


def traces(name: str, folder: Path = FOLDER) -> Mapping[str, Trace]:
    """The traces of a campaign by key, ordered like the files KEY.json.gz would be.

    A trace is decoded on each access. Decoding all traces of the largest campaign takes seconds.

    Raises:
        InvalidInput: there is no such campaign.
    """
    return _read(folder / f"{name}.npz")


def write(name: str, traces: Mapping[str, Trace], folder: Path = FOLDER) -> Path:
    """Write a campaign, replacing an existing one. Returns the path of the file."""
    path = folder / f"{name}.npz"
    tables = encode({key: traces[key] for key in sorted(traces, key=lambda key: key + SUFFIX)})
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, _packed(tables))
    _read.cache_clear()
    return path


def loose_traces(folder: Path) -> dict[str, Trace]:
    """The traces of a folder with one file KEY.json.gz for each, by key.

    Raises:
        InvalidInput: the folder has no trace.
    """
    by_key = {p.name.removesuffix(SUFFIX): load_trace(p) for p in sorted(folder.glob(f"*{SUFFIX}"))}
    if not by_key:
        raise InvalidInput(f"there are no traces (KEY{SUFFIX}) in {folder}")
    return by_key


def pack(name: str, loose: Path, folder: Path = FOLDER) -> Path:
    """Add the traces of a folder to a campaign, which may be new. Returns the path of the file."""
    packed = dict(traces(name, folder)) if name in names(folder) else {}
    return write(name, {**packed, **loose_traces(loose)}, folder)


def unpack(name: str, loose: Path, folder: Path = FOLDER) -> None:
    """Write each trace of a campaign to its own file, as `Trace.save` does."""
    loose.mkdir(parents=True, exist_ok=True)
    for key, trace in traces(name, folder).items():
        trace.save(loose / f"{key}{SUFFIX}")


def digest(name: str, folder: Path = FOLDER) -> str:
    """A hash of the traces of a campaign. It does not depend on how the campaign is packed."""
    hasher = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder_of_files:
        unpack(name, Path(folder_of_files), folder)
        for path in sorted(Path(folder_of_files).iterdir()):
            hasher.update(path.read_bytes())
    return hasher.hexdigest()


@cache
def _read(path: Path) -> PackedTraces:
    if not path.exists():
        existing = ", ".join(names(path.parent)) or "none"
        raise InvalidInput(f"there is no campaign {path}; the campaigns are: {existing}")
    with zipfile.ZipFile(path) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    head = json.loads(members.pop("traces.json"))
    if head["version"] != VERSION:
        raise InvalidInput(
            f"{path} has version {head['version']}; only version {VERSION} can be read"
        )
    texts = json.loads(members.pop("texts.json"))
    columns = {member.removesuffix(".npy"): _array(data) for member, data in members.items()}
    return PackedTraces(Tables(columns, texts, head["traces"]))


def _array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _packed(tables: Tables) -> bytes:
    columns, texts, heads = tables
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for member, data in _members(columns, texts, heads):
            info = zipfile.ZipInfo(member, _OLDEST)
            file.writestr(info, data, compress_type=zipfile.ZIP_LZMA)
    return packed.getvalue()


def _members(
    columns: Mapping[str, Any], texts: Any, heads: Sequence[Any]
) -> Iterator[tuple[str, bytes]]:
    about = {"version": VERSION, "traces": heads}
    for name, value in (("traces.json", about), ("texts.json", texts)):
        yield name, json.dumps(value, indent=0, allow_nan=False).encode()
    for name, column in columns.items():
        data = io.BytesIO()
        np.save(data, column, allow_pickle=False)
        yield f"{name}.npy", data.getvalue()


def describe(name: str) -> str:
    campaign = traces(name)
    calls = kernels = 0
    for trace in campaign.values():
        calls += len(trace)
        kernels += sum(len(call.kernels) for call in trace)
    nbytes = (FOLDER / f"{name}.npz").stat().st_size
    counted = f"{len(campaign):4} traces {calls:8,} calls {kernels:8,} kernels"
    return f"{name:12} {counted} {nbytes:10,} bytes"


# Traces of steps that were made without a GPU, before the steps were measured: one tar file.


def read_traces(archive: Path) -> dict[str, Trace]:
    """The traces of an archive with one file NAME.json.gz for each step, by name."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
        return loose_traces(Path(folder))
