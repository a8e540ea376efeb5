"""Failures of scripts that come from what was assumed: the values of tensors, and one GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.recording.user_lines import failing_line

_SEVERAL_GPUS = re.compile(
    r"\bGPUs?\b|\bdevices?\b|\branks?\b|world.?size|MASTER_ADDR|LOCAL_RANK|WORLD_SIZE",
    re.IGNORECASE,
)
"""What messages say that ask for more GPUs, or for what torchrun sets."""


@contextmanager
def explaining_assumed(assumptions: Assumptions, ranks: int | None) -> Iterator[None]:
    """Explain the errors of the block, as `explained` does."""
    try:
        yield
    except CaptureError as error:
        raise explained(error, assumptions, ranks) from error.__cause__


def explained(error: CaptureError, assumptions: Assumptions, ranks: int | None) -> CaptureError:
    """The same error, with what to do about it if an assumption may be the reason.

    Args:
        error: why the script gave no step.
        assumptions: what was assumed while it ran.
        ranks: how many ranks it ran as the first of. None for a script on one GPU.
    """
    text, cause = str(error), error.__cause__
    if isinstance(cause, AssertionError | ValueError | RuntimeError | IndexError):
        line = failing_line(cause)
        if line in assumptions.read:
            value = assumptions.read[line]
            return CaptureError(
                f"{text}; the value read from the GPU at {line} is not known, and {value} was "
                f"assumed: give the right one, as in --assume {line}={_other(value)}"
            )
    asked = assumptions.asks_count and (cause is None or isinstance(cause, SystemExit))
    if ranks is None and "--ranks" not in text and (asked or _mentions_gpus(cause)):
        return CaptureError(
            f"{text}; the script ran as on a machine with one GPU: if it is written for several, "
            "say how many, as in --ranks 8"
        )
    return error


def _mentions_gpus(cause: BaseException | None) -> bool:
    return isinstance(cause, Exception) and bool(_SEVERAL_GPUS.search(f"{cause}"))


def _other(value: object) -> str:
    """Another value than the assumed one."""
    return str(int(not value)) if isinstance(value, bool) else "0"
