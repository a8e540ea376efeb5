"""Records of past trainings: the settings of a run, and how long it took.

Two runs with the same values are the same run. A run has two times: `seconds` is that of its
`iterations` timed iterations, after warm-up and without tests, checkpoints and pauses. `total_s` is
that of the whole run with all of these, from its first to its last time stamp (Gianniti et al.,
section 4.1).
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.results import Shown

PHASES = ("training", "testing")
_LARGEST = 2**63 - 1  # the largest integer of a database column


@dataclass(frozen=True, slots=True)
class Run(Shown):
    """One past training or test of a model: its settings, and how long it took.

    >>> Run("alexnet", batch=64, iterations=1000, seconds=87.5, gpu="v100-sxm-32gb").batch
    64
    """

    model: str
    batch: int
    """The global batch, of all GPUs together."""
    iterations: int
    """The number of timed iterations, without warm-up."""
    seconds: float
    """The total time of these iterations."""
    phase: str = "training"
    """"training" or "testing"."""
    gpu: str = ""
    """The name of the GPU, in any spelling. Empty when unknown."""
    gpus: int = 1
    precision: str = ""
    """fp32, tf32, fp16 or bf16. Empty when unknown."""
    framework: str = ""
    inner_modules: int | None = None
    """How many inner modules a CNN repeats: its depth within its family. None when unknown."""
    source: str = ""
    """The file and line that the run was read from."""
    total_iterations: int | None = None
    """All iterations of the run, with those of its warm-up. None when unknown."""
    total_s: float | None = None
    """The whole run: start-up, all iterations, tests and checkpoints. None when unknown."""
    training_s: float | None = None
    """The part of `total_s` from the first iteration on, without tests. None when unknown."""
    testing_s: float | None = None
    """The part of `total_s` in tests; 0 if there was none. None when unknown."""


COLUMNS = tuple(field.name for field in fields(Run))
DEFAULTS = {field.name: field.default for field in fields(Run) if field.default is not MISSING}
WHOLE = ("batch", "iterations", "gpus", "inner_modules", "total_iterations")
TOTALS = ("total_iterations", "total_s", "training_s", "testing_s")
"""The fields about the whole run. They are not part of its identity: a log that an older version
read without them is still the same run."""
_IDENTIFYING = tuple((n, DEFAULTS.get(n, MISSING)) for n in COLUMNS if n not in ("source", *TOTALS))
TEXTS = ("model", "phase", "gpu", "precision", "framework", "source")


def check(run: Run) -> Run:
    """The run, unchanged, if its values are possible; else an error."""
    for name in WHOLE:
        value = getattr(run, name)
        if value is None and name in ("inner_modules", "total_iterations"):
            continue
        if type(value) is not int or not 1 <= value <= _LARGEST:
            raise InvalidInput(
                f"{name} is {_shown(value)}, but must be a whole number of at least 1"
            )
    if type(run.seconds) not in (int, float) or not 0 < run.seconds < math.inf:
        raise InvalidInput(f"seconds is {_shown(run.seconds)}, but must be a finite number above 0")
    _check_totals(run)
    for name in TEXTS:
        _check_text(name, getattr(run, name))
    if not run.model.strip():
        raise InvalidInput("the model has no name")
    if run.phase not in PHASES:
        raise InvalidInput(f"phase is {_shown(run.phase)}, but must be training or testing")
    return run


def identity(run: Run) -> str:
    """A hash of the run's values, apart from its source and totals. Equal runs have equal hashes.

    Values equal to their default are left out, so that a field added later changes no identity.
    """
    # repr gives the shortest text that reads back as the same number on every machine. The
    # separator is not printable, so it is in no text of a run.
    text = "\x1f".join(
        [
            f"{name}={float(value)!r}" if name == "seconds" else f"{name}={value}"
            for name, default in _IDENTIFYING
            if (value := getattr(run, name)) != default
        ]
    )
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def record(run: Run) -> dict[str, Any]:
    """The run as a flat dictionary."""
    return {name: getattr(run, name) for name in COLUMNS}


def _check_totals(run: Run) -> None:
    for name in ("total_s", "training_s", "testing_s"):
        value = getattr(run, name)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise InvalidInput(f"{name} is {_shown(value)}, but must be a finite number from 0 on")
    if run.total_s is None:
        return
    if run.total_s <= 0 or run.total_iterations is None:
        raise InvalidInput("total_s must be above 0, and total_iterations given with it")
    parts_s = (run.training_s or 0) + (run.testing_s or 0)
    if parts_s > run.total_s * (1 + 1e-9) + 1e-6:
        raise InvalidInput(
            f"training_s and testing_s, {parts_s:.6g} s together, are more than total_s, "
            f"{run.total_s:.6g} s"
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is {_shown(value)}, but must be text")
    if not value.isprintable():  # databases cannot store NUL or lone surrogates
        raise InvalidInput(f"{name} is {_shown(value)}: it has characters that cannot be printed")
    if len(value) > 1000:
        raise InvalidInput(f"{name} is {_shown(value)}: it is longer than 1000 characters")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


WINDOW = 50
TOLERANCE = 0.05
ENOUGH = 50
"""The least number of stable iterations in a sample, as in TBD."""
NOISIEST = 0.07
"""The largest relative scatter for which the rule works; at 10% it was seen to fail."""
_UNLIKELY = 4
"""An iteration this many standard deviations off is more than noise."""


def stable_from(seconds: Sequence[float], window: int = WINDOW) -> int:
    """The first iteration of the stable phase, from the time of each iteration.

    Frameworks try algorithms and fill caches at first. TBD samples "once throughput is stable"
    (section III-D2), but gives no rule. Ours compares the median of each window of iterations with
    that of the run's last third: the stable phase begins after the last window that differs by more
    than the tolerance. A median misses a warm-up shorter than half a window, so the iterations of
    the first half window are also compared one by one.

    An error says if there are too few iterations, too much noise, or no stable phase.
    """
    if len(seconds) < 6 * window:
        raise InvalidInput(
            f"{len(seconds)} iterations are too few to find the end of warm-up; run at least "
            f"{6 * window}"
        )
    tail = sorted(seconds[-(len(seconds) // 3) :])
    settled = statistics.median(tail)
    # Half of the spread between the quartiles is 0.67 standard deviations.
    noise = (tail[3 * len(tail) // 4] - tail[len(tail) // 4]) / 2 / 0.674 / settled
    if noise > NOISIEST:
        raise InvalidInput(
            f"the iterations scatter by {noise:.0%}, too much to find the end of warm-up; close "
            "other programs, or give the number of warm-up iterations yourself"
        )
    last_off = -1
    for begin in range(0, len(seconds) - window + 1):
        middle = statistics.median(seconds[begin : begin + window])
        if abs(middle / settled - 1) > TOLERANCE:
            last_off = begin
    if last_off < 0:
        far = max(TOLERANCE, _UNLIKELY * noise)
        early = range(window // 2 + 1)
        return max((n + 1 for n in early if abs(seconds[n] / settled - 1) > far), default=0)
    start = last_off + 1 + window
    if start > len(seconds) - window:
        raise InvalidInput("the iterations do not become stable; run longer")
    return start


def settled_from(seconds: Sequence[float]) -> int:
    """The first iteration after warm-up, in a run of any length.

    The window shrinks with the run, so this is less reliable than `stable_from`. If the end of
    warm-up cannot be found, the first third of the run counts as warm-up.
    """
    start = _found(seconds)
    return len(seconds) // 3 if start is None else start


def settles(seconds: Sequence[float]) -> bool:
    """Whether the end of warm-up can be found, so that `settled_from` does not assume it."""
    return _found(seconds) is not None


def _found(seconds: Sequence[float]) -> int | None:
    try:
        return stable_from(seconds, max(5, min(WINDOW, len(seconds) // 6)))
    except InvalidInput:
        return None


def is_enough(seconds: Sequence[float]) -> bool:
    """Whether a run has at least `ENOUGH` stable iterations."""
    return len(seconds) - settled_from(seconds) >= ENOUGH


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of importing one file."""

    file: str
    """The file."""
    runs: int
    """How many runs the file has."""
    new: int
    """How many of them the store did not have."""
    resumed_at: int = 0
    """How many of them an earlier import, which was interrupted, had added."""
