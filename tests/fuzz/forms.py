"""Forms of files: how each kind is taken apart, changed inside, and closed again as a whole file.

A trace file has a checksum, an event file has one for each record, and a .gz file has one at its
end. A mutation of the bytes alone would be stopped there, so most mutations are made inside.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sqlite3
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
from fuzz.mutation import NUMBERS, TEXTS, json_text, mutate_bytes, mutate_json, mutate_text
from run_samples import record

from wavecast.ops import registry
from wavecast.traces.file import VERSION
from wavecast.traces.step import DTYPE_BYTES

Mutate = Callable[[bytes, Random, Sequence[bytes]], bytes]

ATTRIBUTES = (
    *("accumulate", "amsgrad", "attended_pairs", "batch_first", "batch_sizes", "beta"),
    *("bidirectional", "compute_log_sumexp", "custom_mask_type", "dilation", "dim", "dropout_p"),
    *("grad_input_mask", "group", "groups", "hidden_size", "is_causal", "kernel_size", "max_k"),
    *("max_q", "max_seqlen_k", "max_seqlen_q", "mode", "momentum", "non_blocking", "scale"),
    *("normalized_shape", "num_layers", "num_weights", "output_mask", "padding", "precision"),
    *("proj_size", "reduce", "reduction", "sampling_ratio", "stride", "target_lengths", "train"),
    *("transposed", "update", "window_size_left", "window_size_right", "blocksize", "shape"),
)
_VALUES: tuple[Any, ...] = (
    0,
    1,
    2,
    -1,
    7,
    2**40,
    True,
    False,
    0.5,
    1e300,
    "",
    "mean",
    [],
    [0],
    [1, 1],
    [2, 2, 2],
)
_DIMENSIONS = (0, 1, 1, 2, 3, 8, 64, 1000, 2**20, 2**40, 2**48)
_KEPT_WHOLE = 0.1
"""The share of mutations that are made on the bytes of a closed file."""


def _parsed(data: bytes) -> Any:
    return _parse_once(data)


@lru_cache(maxsize=256)
def _parse_once(data: bytes) -> Any:
    return json.loads(data)


@lru_cache(maxsize=256)
def _unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def packed(data: bytes) -> bytes:
    """The data as a .gz file, fast rather than small."""
    made = zlib.compressobj(1, wbits=31)
    return made.compress(data) + made.flush()


@lru_cache(maxsize=8)
def _blanks(mebibytes: int) -> bytes:
    return gzip.compress(b" " * (mebibytes << 20), mtime=0)


def repacked(data: bytes, random: Random) -> bytes:
    """The data as a .gz file that is odd: a bomb, in several members, or with more behind it."""
    choice = random.randrange(5)
    if choice == 0:
        return packed(data) + _blanks(32) * random.choice((1, 4, 64))
    if choice == 1:
        return _blanks(random.choice((1, 32))) + packed(data)
    if choice == 2:
        half = random.randrange(len(data) + 1)
        return packed(data[:half]) + packed(data[half:])
    if choice == 3:
        return packed(data) + random.choice((b"\0" * 100, b"more", packed(b""), packed(data)))
    return packed(packed(data))


def text(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A text file: a log, a table, TOML, YAML."""
    return mutate_text(data, random, others)


def json_file(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A JSON file."""
    if random.random() < _KEPT_WHOLE:
        return mutate_text(data, random, others)
    return mutate_json(_parsed(data), random)


def plan(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """The plan of a compiled graph: changed with a right checksum, or damaged."""
    if not random.randrange(4):
        return text(data, random, others)
    changed = zlib.compress(json_file(zlib.decompress(data[32:]), random, ()))
    return hashlib.sha256(changed).digest() + changed


def json_lines(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A file of one JSON value in each line, perhaps after a word such as DLLL."""
    if random.random() < 0.5:
        return mutate_text(data, random, others)
    lines = data.splitlines()
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(lines))
        word, brace, rest = lines[place].partition(b"{")
        if brace and lines[place].endswith(b"}"):
            try:
                lines[place] = word + mutate_json(_parsed(brace + rest), random)
            except (ValueError, RecursionError):  # this line was changed before
                continue
    return b"\n".join(lines) + b"\n"


def profile(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A file of torch.profiler, packed or not."""
    chance = random.random()
    if chance < _KEPT_WHOLE:
        return mutate_bytes(data, random, others)
    inner = _unpacked(data)
    if chance < 0.2:
        changed = mutate_text(inner, random, [_unpacked(other) for other in others])
    else:
        changed = mutate_json(_parsed(inner), random, _profile_words())
    if data[:2] != b"\x1f\x8b":
        return changed
    return _oddly_packed(packed(changed), random)


@lru_cache(maxsize=1)
def _profile_words() -> tuple[Any, ...]:
    names = [f"aten::{name.split('.')[-1]}" for name in op_names() if name.startswith("aten.")]
    calls = ("cudaLaunchKernel", "cudaDeviceSynchronize", "cudaMemcpyAsync", "cudaGraphLaunch")
    marks = (
        "kernel",
        "cpu_op",
        "gpu_memcpy",
        "user_annotation",
        "ProfilerStep#4",
        "python_function",
    )
    shapes = ([[1, 2]], [[], [3, 4]], [[2**40, 2**40]], [[[2, 2], [2, 2]]], ["float", "c10::Half"])
    return (*names, *calls, *marks, *shapes, *NUMBERS)


def trace(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A trace file, whose checksum is made right again."""
    chance = random.random()
    if chance < _KEPT_WHOLE / 2:
        return mutate_bytes(data, random, others)
    whole = document(data)
    if chance < _KEPT_WHOLE:
        return packed(mutate_json(whole, random))
    body = whole["trace"]
    if chance < 0.5:
        body = with_odd_ops(body, random)
        changed = json_text(body)
    else:
        changed = mutate_json(body, random, op_names())
    return _oddly_packed(signed(changed, whole["version"]), random)


def document(data: bytes) -> Any:
    """The JSON in a trace file."""
    return _parsed(_unpacked(data))


def signed(body: bytes, version: int = VERSION) -> bytes:
    """The trace file with this body, as text of JSON, and its checksum."""
    try:
        ordered = json.dumps(json.loads(body), separators=(",", ":"), sort_keys=True)
    except (ValueError, RecursionError):
        ordered = ""
    digest = hashlib.sha256(ordered.encode()).hexdigest().encode()
    kind = b'{"format":"wavecast-trace","version":%d,"sha256":"' % version
    head = kind + digest + b'","trace":'
    return packed(head + body + b"}")


def _oddly_packed(data: bytes, random: Random) -> bytes:
    return repacked(_unpacked(data), random) if random.random() < 0.02 else data


@lru_cache(maxsize=1)
def op_names() -> tuple[str, ...]:
    """The names of all ops whose cost is known."""
    import wavecast.ops  # noqa: F401  (fills the registry)

    return tuple(sorted(registry._KINDS))


def with_odd_ops(body: dict[str, Any], random: Random) -> dict[str, Any]:
    """The body of a trace in which some ops have another name, other tensors or attributes."""
    specs = [*body["specs"], *(_odd_tensor(random) for _ in range(3))]
    rows = list(body["ops"])
    for _ in range(random.randrange(1, 4) if rows else 0):
        place = random.randrange(len(rows))
        name, inputs, outputs, attributes = rows[place]
        if random.random() < 0.8:
            name = random.choice(op_names()) + random.choice(("", "", ".default", "_"))
        if random.random() < 0.6:
            inputs = [random.randrange(len(specs)) for _ in range(random.randrange(6))]
        if random.random() < 0.4:
            outputs = [random.randrange(len(specs)) for _ in range(random.randrange(3))]
        if random.random() < 0.6:
            count = random.randrange(4)
            odd = [[random.choice(ATTRIBUTES), random.choice(_VALUES)] for _ in range(count)]
            attributes = [*attributes, *odd]
        rows[place] = [name, inputs, outputs, attributes]
    # Most values do not fit the odd ops. Such a trace is refused, and tries no public function.
    values = {"values": None} if "values" in body and random.random() < 0.8 else {}
    return {**body, "specs": specs, "ops": rows, **values}


def _odd_tensor(random: Random) -> list[Any]:
    shape = [random.choice(_DIMENSIONS) for _ in range(random.randrange(6))]
    strides = [random.choice(_DIMENSIONS) for _ in shape] if random.random() < 0.3 else None
    dtype = random.choice(sorted(DTYPE_BYTES))
    return [shape, dtype, strides, random.choice(("cuda", "cuda", "cuda", "cpu"))]


def events(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """An event file of TensorBoard, whose checksums are made right again."""
    if random.random() < 0.3:
        return mutate_bytes(data, random, others)
    records = list(_records(data))
    for _ in range(random.randrange(1, 5)):
        place = random.randrange(len(records))
        choice = random.randrange(6)
        if choice == 0:
            records.insert(random.randrange(len(records)), records[place])
        elif choice == 1 and len(records) > 1:
            del records[place]
        elif choice == 2:
            time = struct.pack("<d", float(random.choice(NUMBERS[:-8])))
            records[place] = records[place][:1] + time + records[place][9:]
        else:
            records[place] = mutate_bytes(records[place], random)
    return b"".join(map(record, records))


def _records(data: bytes) -> list[bytes]:
    records, at = [], 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        records.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    return records


def arrays(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """An .npz file, of which an array has another shape, type or content."""
    if random.random() < 0.4:
        return mutate_bytes(data, random, others)
    with np.load(io.BytesIO(data)) as stored:
        parts: dict[str, Any] = dict(stored)
    name = random.choice(sorted(parts))
    choice = random.randrange(6)
    if choice == 0:
        del parts[name]
    elif choice == 1:
        parts[name] = parts[name].reshape(-1)[: random.randrange(1 + parts[name].size)]
    elif choice == 2:
        parts[name] = parts[name] * np.float32(random.choice((0, -1, np.nan, np.inf, 1e30)))
    elif choice == 3:
        parts[name] = np.zeros(random.choice(((0,), (1,), (3, 3), (1, 1, 1), ())))
    elif choice == 4:
        parts[name] = np.array(random.choice(("text", True, 1 + 2j, 7)))
    else:
        parts[random.choice(("matrix7", "bias0", "scale", "mean", "x"))] = parts[name].T
    made = io.BytesIO()
    np.savez(made, **parts)
    return made.getvalue()


def database(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A run store in SQLite: damaged pages, or a sound database with values of other types."""
    if random.random() < 0.5:
        return mutate_bytes(data, random, others)
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
        for _ in range(random.randrange(1, 3)):
            try:
                connection.execute(*_statement(connection, random))
            except (sqlite3.Error, OverflowError, UnicodeError):
                continue
        connection.commit()
        return connection.serialize()
    finally:
        connection.close()


def _statement(connection: sqlite3.Connection, random: Random) -> tuple[str, tuple[Any, ...]]:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    table = random.choice([name for (name,) in connection.execute(names)])
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column = random.choice(columns)
    choice = random.randrange(8)
    if choice == 0:
        return f'DROP TABLE "{table}"', ()
    if choice == 1:
        return f'ALTER TABLE "{table}" DROP COLUMN "{column}"', ()
    if choice == 2:
        return f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO other', ()
    if choice == 3:
        return f'CREATE TABLE other AS SELECT * FROM "{table}"', ()
    value = random.choice((None, b"\xff\x00", *NUMBERS, *TEXTS))
    rows = f"WHERE rowid % {random.randrange(1, 4)} = 0"
    return f'UPDATE "{table}" SET "{column}" = ? {rows}', (value,)
