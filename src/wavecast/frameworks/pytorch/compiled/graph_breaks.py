"""Graph breaks: where the compiler gives up, and code runs as it was written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from wavecast.frameworks.pytorch.recording.user_lines import is_users, line_of, source_line

_EXPLANATION = re.compile(r"Explanation:\s*(.+)")
_MORE = re.compile(r"\s+\(?(has_kwargs|with argument types).*")
_FOLDER = re.compile(r"(?<=`)/(?:[^`\s]*/)?(?=[^/`\s]+`)")
"""The folder of a file that a reason names: notes do not tell of the machine."""

_OUR_OWN = "ModuleCalls.watched"
"""The function through which a script's modules are called here, and on a GPU are not."""
_MEANING = {
    "capture/flex_attention.py": (
        "flex_attention is traced as one kernel between two graphs, which a GPU does not separate"
    ),
    "TracedLogger": "DistributedDataParallel calls its logger",
    "generic_jump": "a branch depends on the values of a tensor",
    "_local_scalar_dense": "a value is read from the GPU",
}


def breaks_as_notes(breaks: Iterable[tuple[str, list[Any]]]) -> list[str]:
    """One note for each line of the user's code at which a graph ends, and the reason.

    Args:
        breaks: the compiler's reasons, each with the frames of the user's code.
    """
    notes: dict[str, None] = {}
    explained = set()
    # A break in a library's function is seen there, too, after the line that called it.
    for reason, frames in breaks:
        if _OUR_OWN in reason:
            continue
        text = _reason(reason)
        if any(is_users(frame.filename) for frame in frames) or text not in explained:
            notes.setdefault(f"torch.compile: graph break at {_line(frames)}: {text}")
        explained.add(text)
    return list(notes)


def _line(frames: list[Any]) -> str:
    """The innermost line of the user's code; that of a library if there is none."""
    for frame in reversed(frames):
        if is_users(frame.filename):
            return line_of(frame.filename, frame.lineno)
    return source_line(frames[-1].filename, frames[-1].lineno) if frames else "an unknown line"


def _reason(text: str) -> str:
    """The reason in one sentence. Torch explains at length, and adds hints for its developers."""
    for word, meaning in _MEANING.items():
        if word in text:
            return meaning
    explained = _EXPLANATION.search(text)
    sentence = explained[1] if explained else text.strip().split("\n")[0]
    return _FOLDER.sub("", _MORE.sub("", sentence)).strip().rstrip(".")
