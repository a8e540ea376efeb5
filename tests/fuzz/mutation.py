"""Mutations of bytes, text, tables and JSON: one input becomes another that nobody intended.

Every function takes the random numbers that it uses, so that an input can be made again from its
number alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

_DIGITS, _DEEP, _WIDE = "@@digits@@", "@@deep@@", "@@wide@@"
_RAW = {
    f'"{_DIGITS}"': "9" * 5000,
    f'"{_DEEP}"': "[" * 20_000 + "]" * 20_000,
    f'"{_WIDE}"': "[" + "{}," * 20_000 + "{}]",
}
"""JSON that Python's own encoder does not write, by the text that stands for it."""

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**48, 2**53, 2**62, 2**63 - 1, 2**63),
    *(-(2**63), 2**64, 2**64 - 1, 10**30, 10**200, 0.5, -0.0, 1e-9, 1e-300, 5e-324, 1e6, 1e15),
    *(1e100, 1.7e308, -1.7e308, float("nan"), float("inf"), float("-inf")),
)
HOSTILE = (
    "\x9b2J\x1b]0;title\x07",
    "\u202egnp.exe\u2066",
    "</script><script>alert(1)</script>",
    "<svg onload=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE runs; --",
    "=cmd|' /C calc'!A0",
    "../../../etc/passwd",
    "[red]x[/red]",
    "{{7*7}}${x}",
)
"""Names that attack a terminal, a page, a database, a spreadsheet or a folder."""
TEXTS = (
    *(
        "",
        " ",
        "a",
        "-",
        "0",
        "1e999",
        "nan",
        "-inf",
        "NULL",
        "true",
        "\0",
        "\x1b[31mred",
        "\u2028",
    ),
    *("\ud800", "é", "\U0001f600", "../../x", "/dev/null", "a\nb", "x" * 300, "x" * 20_000, "%s%n"),
    *HOSTILE,
    *("=1+1", "<script>", '"', "'", "1,5", "1_000", "٣", "0x10", "9" * 5000, "{", "[", "\ufeff"),
)
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [None], [[]], {"": None}, _DEEP, _WIDE)
_ODD_JSON: tuple[Any, ...] = (*NUMBERS, *TEXTS, *_OTHERS, _DIGITS)
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_TEXT_NUMBERS = (*(str(value).encode() for value in NUMBERS), b"9" * 5000, b"1e999", b"0x1f")


def mutate_bytes(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """The data with one to four small damages."""
    for _ in range(_few(random)):
        data = random.choice(_DAMAGES)(data, random, others)
    return data


def mutate_text(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """The text with other numbers, words and lines, and now and then damaged bytes."""
    for _ in range(_few(random)):
        data = random.choice(_TEXT_CHANGES)(data, random, others)
    return data


def mutate_json(value: Any, random: Random, words: Sequence[Any] = ()) -> bytes:
    """JSON text of the value with one to four parts changed.

    Args:
        value: the value, which stays as it is.
        random: the random numbers.
        words: values that mean something in this kind of file, beside the odd ones.
    """
    for _ in range(_few(random)):
        value = _changed(value, random, words, random.randrange(1, 9))
    text = json_text(value)
    return twice(text, random) if random.random() < 0.04 else text


def twice(text: bytes, random: Random) -> bytes:
    """JSON text in which an object has a key twice, with another value the second time."""
    ends = [place.start() for place in re.finditer(rb"}", text[:100_000])]
    keys: list[bytes] = re.findall(rb'"[^"\\]{1,40}":', text[:100_000])
    if not ends or not keys:
        return text
    end, key = random.choice(ends), random.choice(keys)
    mark = b"" if text[end - 1 : end] == b"{" else b","
    return text[:end] + mark + key + json_text(odd_value(random)) + text[end:]


def json_text(value: Any) -> bytes:
    """JSON text, in which the places of values that Python does not write are filled."""
    text = json.dumps(value, separators=(",", ":"))
    if "@@" in text:
        for place, raw in _RAW.items():
            text = text.replace(place, raw)
    return text.encode()


def odd_value(random: Random) -> Any:
    """A JSON value that few programs expect."""
    return random.choice(_ODD_JSON)


def _few(random: Random) -> int:
    return random.choice((1, 1, 1, 2, 2, 3, 4))


def _changed(value: Any, random: Random, words: Sequence[Any], depth: int) -> Any:
    """The value with a change at most `depth` levels below. Only what lies above it is copied."""
    if depth and isinstance(value, dict) and value:
        key = random.choice(list(value))
        inner = _changed(value[key], random, words, depth - 1)
        return {**value, key: inner} if random.random() < 0.9 else _other_object(value, random)
    if depth and isinstance(value, list) and value:
        place = random.randrange(len(value))
        if random.random() < 0.12:
            return _other_list(value, place, random)
        inner = _changed(value[place], random, words, depth - 1)
        return [*value[:place], inner, *value[place + 1 :]]
    return _other_value(value, random, words)


def _other_value(value: Any, random: Random, words: Sequence[Any]) -> Any:
    if words and random.random() < 0.3:
        return random.choice(words)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and random.random() < 0.6:
        factor = random.choice((-1, 0, 2, 3, 10, 1000, 1e6, 0.5, 1e-6, 2**20, 2**40))
        moved = value * factor + random.choice((0, 0, 1, -1))
        whole = isinstance(value, int) and abs(moved) < 1e300
        return int(moved) if whole else moved
    if isinstance(value, str) and value and random.random() < 0.4:
        place = random.randrange(len(value))
        return value[:place] + random.choice(TEXTS) + value[place + random.randrange(2) :]
    return odd_value(random)


def _other_object(value: dict[str, Any], random: Random) -> dict[str, Any]:
    keys = list(value)
    key, other = random.choice(keys), random.choice(keys)
    choice = random.randrange(4)
    if choice == 0:
        return {name: item for name, item in value.items() if name != key}
    if choice == 1:
        return {**value, key: value[other], other: value[key]}
    if choice == 2:
        return {**value, random.choice(TEXTS): value[key]}
    return {(key + "x" if name == key else name): item for name, item in value.items()}


def _other_list(value: list[Any], place: int, random: Random) -> list[Any]:
    other = random.randrange(len(value))
    choice = random.randrange(6)
    if choice == 0:
        return value[:place] + value[place + 1 :]
    if choice == 1:
        return [*value[:place], value[place], *value[place:]]
    if choice == 2:
        return [*value[:place], odd_value(random), *value[place:]]
    if choice == 3:
        swapped = list(value)
        swapped[place], swapped[other] = value[other], value[place]
        return swapped
    if choice == 4:
        return value[: min(place, other)] + value[max(place, other) :]
    return value + [value[place]] * random.choice((1, 10, 100, 2000))


Damage = Callable[[bytes, Random, Sequence[bytes]], bytes]


def _span(data: bytes, random: Random, most: int = 64) -> tuple[int, int]:
    begin = random.randrange(len(data) + 1)
    return begin, min(len(data), begin + random.randrange(most))


def _flip(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    if not data:
        return b"\0"
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _overwrite(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random, 9)
    filled = random.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\n", b" "))
    return data[:begin] + filled * (end - begin) + data[end:]


def _insert(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, _end = _span(data, random)
    return data[:begin] + random.randbytes(random.randrange(1, 16)) + data[begin:]


def _remove(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random, random.choice((4, 64, 2048)))
    return data[:begin] + data[end:]


def _repeat(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random, 256)
    return data[:end] + data[begin:end] * random.choice((1, 2, 50)) + data[end:]


def _cut(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _splice(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = random.choice(others) if others else data
    begin, _ = _span(data, random)
    start, end = _span(other, random, 512)
    return data[:begin] + other[start:end] + data[begin:]


def _other_number(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    # From a random place on, so that a long text costs no more than a short one.
    begin = random.randrange(len(data) + 1)
    match = _NUMBER.search(data, begin) or _NUMBER.search(data)
    if match is None:
        return data
    new = random.choice(_TEXT_NUMBERS)
    if random.random() < 0.4:
        new = match[0] + random.choice((b"0", b"000", b"e9", b".5", b"e308", b"-", b"9" * 20))
    return data[: match.start()] + new + data[match.end() :]


def _other_word(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random, 12)
    new = random.choice(TEXTS).encode(errors="surrogatepass")
    return data[:begin] + new + data[end:]


def _other_lines(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return data
    place, other = random.randrange(len(lines)), random.randrange(len(lines))
    choice = random.randrange(4)
    if choice == 0:
        del lines[place]
    elif choice == 1:
        lines.insert(other, lines[place])
    elif choice == 2:
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[min(place, other) : max(place, other)] = []
    return b"".join(lines)


def _other_cells(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    """A cell of one line emptied, repeated, swapped or made odd."""
    begin = data.rfind(b"\n", 0, random.randrange(len(data) + 1)) + 1
    end = data.find(b"\n", begin)
    end = len(data) if end < 0 else end
    mark = random.choice((b",", b" ", b":", b"="))
    cells = data[begin:end].split(mark)
    place, other = random.randrange(len(cells)), random.randrange(len(cells))
    cells[place] = random.choice(
        (
            b"",
            cells[other],
            random.choice(_TEXT_NUMBERS),
            random.choice(TEXTS).encode(errors="surrogatepass"),
        )
    )
    if random.random() < 0.1:
        cells.insert(other, cells[place])
    return data[:begin] + mark.join(cells) + data[end:]


def _nest(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    """A line far inside of lists or tables, as JSON, TOML and YAML write them."""
    begin = data.rfind(b"\n", 0, random.randrange(len(data) + 1)) + 1
    depth = random.choice((3, 100, 2000))
    opened, closed = random.choice(((b"[", b"]"), (b"{a=", b"}"), (b"{'a':", b"}"), (b"- ", b"")))
    name = random.choice((b"", b"x = ", b"a." * min(depth, 500) + b"b = "))
    return data[:begin] + name + opened * depth + b"1" + closed * depth + b"\n" + data[begin:]


_DAMAGES: tuple[Damage, ...] = (_flip, _flip, _overwrite, _insert, _remove, _repeat, _cut, _splice)
_TEXT_CHANGES: tuple[Damage, ...] = (
    *(_other_number, _other_number, _other_cells, _other_cells, _other_word, _other_lines),
    *(_flip, _remove, _repeat, _cut, _splice, _nest),
)
