"""Where the steps of a training loop end: at optimizer steps, or at a line that the user names."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.frameworks.replacements import replacing


class EnoughSteps(BaseException):
    """Raised inside a script to stop it. It is no `Exception`, so that scripts do not catch it."""


@dataclass(frozen=True)
class Boundary:
    """The end of a step of the loop."""

    position: int
    """The number of ops recorded before it. The next step begins with the next batch."""
    optimizer: int
    """Which of the script's optimizers, in the order of their first steps."""
    line: str
    """The line of the user's code."""

    @property
    def place(self) -> tuple[int, str]:
        """What is equal for boundaries that repeat each other."""
        return self.optimizer, self.line


class OptimizerSteps:
    """Notices each outermost optimizer step and the optimizers that have not stepped yet."""

    def __init__(self, notify: Callable[[int, str], None]) -> None:
        self._notify = notify
        self._depth = 0
        self._built: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers: dict[int, int] = {}
        self._stepped: list[Any] = []

    @property
    def built(self) -> int:
        """How many optimizers the script has."""
        return len(self._built)

    @property
    def waiting(self) -> bool:
        """Whether the script built an optimizer that has not stepped yet."""
        return any(id(optimizer) not in self._numbers for optimizer in self._built)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Call `notify` with the number of the optimizer and the line after each step."""
        build = torch.optim.Optimizer.__init__

        def counted_init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            build(optimizer, *args, **kwargs)
            self._built.add(optimizer)

        with (
            optimizer_hooks.register_optimizer_step_pre_hook(self._enter),
            optimizer_hooks.register_optimizer_step_post_hook(self._leave),
            replacing() as replace,
        ):
            replace(torch.optim.Optimizer, __init__=counted_init)
            yield
            self._stepped.clear()

    def _enter(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._depth += 1

    def _leave(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        if id(optimizer) not in self._numbers:
            self._numbers[id(optimizer)] = len(self._numbers)
            self._stepped.append(optimizer)  # its id is unique only while it lives
        self._notify(self._numbers[id(optimizer)], user_line())


@dataclass(frozen=True)
class LineOfCode:
    """A line of a file."""

    file: Path
    number: int

    @classmethod
    def parse(cls, text: str) -> LineOfCode:
        """The line that a text such as `train.py:41` names."""
        file, _, number = text.rpartition(":")
        if not file or not number.isdigit() or not int(number):
            raise InvalidInput(f"{text!r} names no line; write FILE:LINE, such as train.py:41")
        if not Path(file).is_file():
            raise InvalidInput(f"there is no file {file}, so no line {text}")
        return cls(Path(file).resolve(), int(number))


@contextmanager
def line_watched(line: LineOfCode, notify: Callable[[str], None]) -> Iterator[None]:
    """Call `notify` each time that a line is about to run."""
    codes: dict[CodeType, bool] = {}

    def has_line(code: CodeType) -> bool:
        if code not in codes:
            file = Path(code.co_filename)
            codes[code] = (
                file.name == line.file.name
                and file.resolve() == line.file
                and any(number == line.number for _, _, number in code.co_lines())
            )
        return codes[code]

    def at_call(frame: FrameType, _event: str, _arg: Any) -> Any:
        return at_line if has_line(frame.f_code) else None

    def at_line(frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line" and frame.f_lineno == line.number:
            notify(user_line())
        return at_line

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)
