"""Measured traces: one file for each campaign, written and read here.

A campaign is a set of traces that were measured together: the suite, the population, the sweep of
single layers. Read one:

    from lab.measured import campaigns

    suite = campaigns.traces("suite")            # a mapping; a trace is decoded when asked for
    trace = suite["resnet50-b16-fp32"]           # a wavecast.Trace

On the command line:

    python -m lab.measured.campaigns list
    python -m lab.measured.campaigns pack NAME FOLDER      # adds the traces of a folder
    python -m lab.measured.campaigns unpack NAME FOLDER    # writes FOLDER/KEY.json.gz

The scripts of lab/collect run on a GPU machine and write one KEY.json.gz for each trace. `pack`
puts these into the campaign's file; a key that is there already is replaced.

A file is a .npz, so `numpy.load` opens it, too. It is compressed by LZMA. Inside are the columns
of `lab.measured.trace_columns` and two JSON texts: `texts.json` (names) and `traces.json` (what
is known of each trace as a whole).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.measured.packed_traces import PackedTraces
from lab.measured.trace_columns import Tables, encode
from lab.places import H200
from wavecast import Trace, load_trace
from wavecast.errors import InvalidInput
from wavecast.files import write_whole

FOLDER = H200 / "traces"
"""Has one file for each campaign, NAME.npz."""
SUFFIX = ".json.gz"
VERSION = 1
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The time stamp of every member, so that the same traces always give the same file."""


def names(folder: Path = FOLDER) -> list[str]:
    """The campaigns that there are, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.npz"))


def traces(name: str, folder: Path = FOLDER) -> Mapping[str, Trace]:
    """The traces of a campaign by key, ordered like the files KEY.json.gz would be.

    A trace is decoded each time it is asked for. Decoding all of the largest campaign takes
    seconds.

    Raises:
        InvalidInput: there is no such campaign.
    """
    return _read(folder / f"{name}.npz")


def write(name: str, traces: Mapping[str, Trace], folder: Path = FOLDER) -> Path:
    """Write a campaign, in place of the one that may be there. Gives the file."""
    path = folder / f"{name}.npz"
    tables = encode({key: traces[key] for key in sorted(traces, key=lambda key: key + SUFFIX)})
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, _packed(tables))
    _read.cache_clear()
    return path


def loose_traces(folder: Path) -> dict[str, Trace]:
    """The traces of a folder that has a file KEY.json.gz for each, by key.

    Raises:
        InvalidInput: there is none.
    """
    found = {p.name.removesuffix(SUFFIX): load_trace(p) for p in sorted(folder.glob(f"*{SUFFIX}"))}
    if not found:
        raise InvalidInput(f"there are no traces (KEY{SUFFIX}) in {folder}")
    return found


def pack(name: str, loose: Path, folder: Path = FOLDER) -> Path:
    """Add the traces of a folder to a campaign, or begin it with them. Gives the file."""
    known = dict(traces(name, folder)) if name in names(folder) else {}
    return write(name, {**known, **loose_traces(loose)}, folder)


def unpack(name: str, loose: Path, folder: Path = FOLDER) -> None:
    """Write each trace of a campaign as a file of its own, as `Trace.save` does."""
    loose.mkdir(parents=True, exist_ok=True)
    for key, trace in traces(name, folder).items():
        trace.save(loose / f"{key}{SUFFIX}")


def digest(name: str, folder: Path = FOLDER) -> str:
    """A hash of the traces of a campaign. It does not depend on how the campaign is packed."""
    found = hashlib.sha256()
    with tempfile.TemporaryDirectory() as place:
        unpack(name, Path(place), folder)
        for path in sorted(Path(place).iterdir()):
            found.update(path.read_bytes())
    return found.hexdigest()


@cache
def _read(path: Path) -> PackedTraces:
    if not path.exists():
        known = ", ".join(names(path.parent)) or "none"
        raise InvalidInput(f"there is no campaign {path}; there are: {known}")
    with zipfile.ZipFile(path) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    head = json.loads(members.pop("traces.json"))
    if head["version"] != VERSION:
        raise InvalidInput(f"{path} has version {head['version']}; this reads version {VERSION}")
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


def _describe(name: str) -> str:
    campaign = traces(name)
    calls = kernels = 0
    for trace in campaign.values():
        calls += len(trace)
        kernels += sum(len(call.kernels) for call in trace)
    nbytes = (FOLDER / f"{name}.npz").stat().st_size
    counted = f"{len(campaign):4} traces {calls:8,} calls {kernels:8,} kernels"
    return f"{name:12} {counted} {nbytes:10,} bytes"


def main(given: Sequence[str] | None = None) -> None:
    """List, pack or unpack campaigns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the campaigns and their sizes")
    for command, help_text in (
        ("pack", "add the traces of a folder to a campaign"),
        ("unpack", "write the traces of a campaign to a folder"),
    ):
        chosen = commands.add_parser(command, help=help_text)
        chosen.add_argument("name", help="the campaign")
        chosen.add_argument("folder", type=Path, help=f"has, or gets, KEY{SUFFIX} for each trace")
    asked = parser.parse_args(given)
    if asked.command == "list":
        for name in names():
            print(_describe(name))
    elif asked.command == "pack":
        print(pack(asked.name, asked.folder))
    else:
        unpack(asked.name, asked.folder)


if __name__ == "__main__":
    main()
