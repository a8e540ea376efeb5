"""Text that is safe to show: characters that control a terminal are written as escapes.

Names in files may hold escape sequences that move the cursor, change the title of the window or
reverse the direction of writing. Shown as they are, they could hide or forge a result.
"""

from __future__ import annotations

import re

_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff"  # surrogates: bytes of a path that are not UTF-8, or broken JSON
    "\U000e0000-\U000e007f"  # invisible tags
)
_CONTROL = re.compile(f"[{_UNSAFE}]")
_CONTROL_OR_LINE_END = re.compile(f"[\t\n{_UNSAFE}]")


def visible(text: str) -> str:
    r"""The text with control characters as escapes such as \x1b; tabs and newlines stay."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    r"""The text as one line: tabs and newlines become escapes as well, such as \n."""
    return _CONTROL_OR_LINE_END.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
