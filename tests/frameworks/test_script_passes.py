"""What is kept of a script's output: little, however much it prints."""

from __future__ import annotations

import pytest

from wavecast.targets.scripts import Printed

CHUNK = 1 << 16


@pytest.mark.parametrize("text", [b"x", b"\r", b"ab\r", b"\n", b"\xc3\xa9"])
def test_little_is_kept_of_output_without_line_ends(text: bytes) -> None:
    printed, chunk = Printed(), text * (CHUNK // len(text))
    for _ in range(50):
        printed.add(chunk)
        assert printed.kept_bytes < 5000  # what the next chunk is joined to


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_the_last_lines_are_shown_as_a_terminal_does(size: int) -> None:
    printed = Printed()
    text = b"first\nsecond\r\n10%\r 50%\r100%\n\n  \nlast: " + b"x" * 300 + b"\nno end"
    for begin in range(0, len(text), size):
        printed.add(text[begin : begin + size])
    assert printed.shown() == f"; it had printed: second | 100% | last: {'x' * 194}"
