"""TensorBoard event files: the steps of a scalar, and the times at which they were written.

Settings come from the hparams plug-in, and from the text `args` that Hugging Face's Trainer writes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.text import Doubts, open_file, parse_json
from wavecast.runs.readers.timing import (
    Given,
    Mark,
    find_facts,
    runs_of,
    training_marks,
    trainings,
    whole_span,
)
from wavecast.runs.run import Run

_DOUBLE = struct.Struct("<d")


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file begins with a TensorBoard record."""
    checked = len(head) >= 12 and masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little")
    return checked or "tfevents" in path.name


@dataclass
class _Events:
    marks: dict[str, list[Mark]] = field(default_factory=dict)
    """The steps and times of each scalar."""
    settings: dict[str, object] = field(default_factory=dict)
    first_s: float | None = None
    """When the file was begun, which is before the first step."""


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training in an event file."""
    events = _Events()
    for start, data in records(path, doubts):
        try:
            _take(data, f"byte {start}", events, doubts)
        except ValueError as error:
            raise InvalidInput(f"{path}: byte {start}: is not an event: {error}") from None
    marks = training_marks(path, events.marks, given)
    facts = find_facts(events.settings, given, None)
    ends = [mark.time_s for each_marks in events.marks.values() for mark in each_marks]
    span = whole_span([events.first_s, *ends], events.marks, marks) if events.first_s else None
    yield from runs_of(trainings(marks, doubts), facts, given, doubts, span)


def _take(data: bytes, place: str, events: _Events, doubts: Doubts) -> None:
    """Add an event, with the fields 1 wall_time, 2 step, 5 summary (1 value)."""
    time_s, step = math.nan, 0
    values: list[bytes] = []
    for number, value in message(data):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (time_s,) = _DOUBLE.unpack(value)
        elif number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5:
            values += [_bytes(item) for n, item in message(_bytes(value)) if n == 1]
    if events.first_s is None and not values and math.isfinite(time_s) and time_s > 0:
        events.first_s = time_s
    for encoded in values:
        tag, scalar = _take_value(encoded, events)
        if not scalar:
            continue
        if not (math.isfinite(time_s) and time_s >= 0 and step >= 0):
            doubts.tell(
                place,
                f"the time {time_s} or step {step} is impossible; left out",
                "has an impossible time or step",
            )
            continue
        events.marks.setdefault(tag, []).append(Mark(step, time_s, place))


def _take_value(data: bytes, events: _Events) -> tuple[str, bool]:
    """The tag of a Summary.Value (1 tag, 2 simple_value, 8 tensor, 9 metadata); is it a scalar?"""
    tag, plugin, content, tensor, simple = "", "", b"", b"", False
    for number, value in message(data):
        if number == 1:
            tag = _text(value)
        elif number == 2:
            simple = True
        elif number == 8:
            tensor = _bytes(value)
        elif number == 9:
            plugin, content = _plugin(_bytes(value))
    if plugin == "hparams":
        events.settings |= _hyperparameters(content)
    elif tag == "args/text_summary":
        events.settings |= _arguments(tensor)
    # TensorFlow 2 and Keras write scalars as tensors of the plug-in "scalars".
    return tag, plugin == "scalars" or (simple and not plugin)


def _plugin(metadata: bytes) -> tuple[str, bytes]:
    """The plug-in of a SummaryMetadata: 1 plugin_data, with 1 name and 2 content."""
    name, content = "", b""
    for number, value in message(metadata):
        if number == 1:
            for inner, part in message(_bytes(value)):
                if inner == 1:
                    name = _text(part)
                elif inner == 2:
                    content = _bytes(part)
    return name, content


def _hyperparameters(content: bytes) -> dict[str, object]:
    """The settings in HParamsPluginData: 3 session_start_info, with 1 a map of names to values."""
    settings: dict[str, object] = {}
    for number, value in message(content):
        for inner, pair in message(_bytes(value)) if number == 3 else ():
            if inner != 1:
                continue
            entry = dict(message(_bytes(pair)))
            for kind, held in message(_bytes(entry.get(2, b""))):
                if kind == 2 and isinstance(held, bytes) and len(held) == 8:
                    (settings[_text(entry.get(1, b""))],) = _DOUBLE.unpack(held)
                elif kind == 3:
                    settings[_text(entry.get(1, b""))] = _text(held)
    return settings


def _arguments(tensor: bytes) -> dict[str, object]:
    """The settings that Hugging Face's Trainer writes as JSON: TensorProto, 8 string_val."""
    for number, value in message(tensor):
        if number == 8:
            try:
                held = parse_json(_text(value), "args")
            except InvalidInput:
                return {}
            return held if isinstance(held, dict) else {}
    return {}


def _bytes(value: Value) -> bytes:
    return value if isinstance(value, bytes) else b""


def _text(value: Value) -> str:
    return _bytes(value).decode(errors="replace")


# The encoding of TensorBoard's files: records with masked CRC-32C checksums
# (https://www.tensorflow.org/tutorials/load_data/tfrecord), and protocol buffers
# (https://protobuf.dev/programming-guides/encoding).


LARGEST = 1 << 20
"""The largest record that is read, in bytes. Larger ones hold images and graphs."""
_HEAD = struct.Struct("<QI")


def records(path: Path, doubts: Doubts) -> Iterator[tuple[int, bytes]]:
    """The records of a file up to the size `LARGEST`, each with the byte at which it begins.

    A record has its length (8 bytes), a checksum of the length, the data, and a checksum of the
    data. A file that has none, or is damaged in the middle, is refused.
    """
    with open_file(path) as file:
        size = file.seek(0, 2)
        start = file.seek(0)
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                doubts.tell(f"byte {start}", "the last record is cut off and left out")
                return
            length, checksum = _HEAD.unpack(head)
            if masked_crc32c(head[:8]) != checksum:
                raise InvalidInput(
                    f"{path}: byte {start}: is not a TensorBoard record, or is damaged: the "
                    "checksum of its length is wrong"
                )
            end = start + _HEAD.size + length + 4
            if end > size:
                doubts.tell(f"byte {start}", "the last record is cut off and left out")
                return
            if length <= LARGEST:
                data = file.read(length)
                if masked_crc32c(data) != int.from_bytes(file.read(4), "little"):
                    raise InvalidInput(
                        f"{path}: byte {start}: the record is damaged: its checksum is wrong"
                    )
                yield start, data
            else:
                file.seek(end)
            start = end


def masked_crc32c(data: bytes) -> int:
    """The checksum of a record: CRC-32C, rotated, plus a constant."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


Value = int | bytes
"""The value of a field: a whole number, or bytes (a text, a message, or a number)."""


def message(data: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order, each as number and value; ValueError if it is none."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")
        if place + length > len(data):
            raise ValueError("a field is longer than its message")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("a number is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
    raise ValueError("a number is too long")


@cache
def _table() -> tuple[int, ...]:
    values = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        values.append(value)
    return tuple(values)
