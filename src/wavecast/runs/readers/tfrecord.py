"""The encoding of TensorBoard's files: records with checksums, and simple protocol buffers.

A record has its length (8 bytes), a checksum of the length, the data, and a checksum of the data.
Checksums are masked CRC-32C. https://www.tensorflow.org/tutorials/load_data/tfrecord and
https://protobuf.dev/programming-guides/encoding describe the formats.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.doubts import Doubts
from wavecast.runs.readers.text import open_file

LARGEST = 1 << 20
"""The largest record that is read, in bytes. Larger ones hold images and graphs."""
_HEAD = struct.Struct("<QI")


def records(path: Path, doubts: Doubts) -> Iterator[tuple[int, bytes]]:
    """The records of a file up to the size `LARGEST`, each with the byte at which it begins.

    Raises:
        InvalidInput: the file has no records, or is damaged in the middle; says at which byte.
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
    """The fields of a message in their order, each as number and value.

    Raises:
        ValueError: the data is not a message.
    """
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
