"""The time that a script's own Python takes between ops, as when it loads data or writes logs.

Another thread looks a hundred times a second at what the script runs. Torch's code and ours are
slower here than on a GPU, and the prediction has the host's time for them, so neither counts. Nor
do short stretches between two ops, which are part of every step.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import is_ours, is_users, line_of
from wavecast.frameworks.pytorch.scripts.watching import PatienceClock
from wavecast.traces.script import OwnTime

_TICK_S = 0.01
_SHORTEST_S = 0.03
"""A shorter stretch between two ops does not count."""
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"


class OwnWork:
    """Where a script's own Python spends its time, by the position in the recording."""

    def __init__(self, recorder: OpRecorder) -> None:
        self._recorder = recorder
        self._spent_s: defaultdict[tuple[int, str], float] = defaultdict(float)
        """The seconds at each line, by the ops recorded before and the line."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the present thread inside the block."""
        over = threading.Event()
        given = threading.get_ident(), PatienceClock(), over
        watch = threading.Thread(target=self._watch, args=given, daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, thread: int, clock: PatienceClock, over: threading.Event) -> None:
        before_s = clock.spent_s(is_paused=False)
        while not over.wait(_TICK_S):
            line = _own_line(sys._current_frames().get(thread))
            now_s = clock.spent_s(is_paused=False)
            if line:
                self._spent_s[len(self._recorder), line] += now_s - before_s
            before_s = now_s

    def between(self, begin: int, end: int) -> OwnTime | None:
        """The time between two positions of the recording; None if it is too short to tell."""
        stretches: defaultdict[int, float] = defaultdict(float)
        lines: defaultdict[str, float] = defaultdict(float)
        within = [one for one in self._spent_s.items() if begin <= one[0][0] < end]
        for (position, _), seconds in within:
            stretches[position] += seconds
        for (position, line), seconds in within:
            if stretches[position] >= _SHORTEST_S:
                lines[line] += seconds
        return OwnTime(sum(lines.values()), max(lines, key=lines.__getitem__)) if lines else None


def _own_line(frame: FrameType | None) -> str:
    """The innermost line of the user's code; empty if it runs torch, or code of ours."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return line_of(file, frame.f_lineno)
        if is_ours(file) or file.startswith(_TORCH):
            return ""
        frame = frame.f_back
    return ""
