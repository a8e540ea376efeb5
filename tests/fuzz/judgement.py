"""What one input did: accepted, refused in one line, or a fault of one of five kinds."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NoReturn

from fuzz.readers import BadResult, Reader
from fuzz.seeds import Seed

from wavecast.errors import DoubtfulInput, WavecastError

ACCEPTED, REFUSED = "accepted", "refused"
RAW, HANG, BAD, LARGE = "raw exception", "hang", "bad result", "too much memory"
FAULTS = (RAW, HANG, BAD, LARGE)

LONGEST_S = 20
"""CPU seconds, so that a busy machine makes no faults. Waiting for something is stopped, too."""
LONGEST_WAIT_S = 120
MOST_BYTES = 1 << 30
LONGEST_MESSAGE = 800


class Hang(BaseException):
    """An input took longer than `LONGEST_S`. No reader catches it."""


@dataclass(frozen=True)
class Input:
    """Files for a reader, of which one was changed."""

    reader: str
    number: int
    seed: Seed
    changed: str
    content: bytes


@dataclass(frozen=True)
class Verdict:
    """What an input did. Faults of the same place are one fault."""

    kind: str
    place: str = ""
    """The exception and the innermost line of the package, or what is wrong with the result."""
    detail: str = ""


def make_input(reader: Reader, number: int, campaign: int = 0) -> Input:
    """The input of a number, the same at each call and on each machine."""
    random = Random(f"{campaign}/{reader.name}/{number}")
    chosen = reader.seeds()
    seed = random.choice(chosen)
    names = list(seed.parts)
    name = random.choices(names, [part.chance for part in seed.parts.values()])[0]
    others = [s.parts[name].content for s in chosen if name in s.parts]
    part = seed.parts[name]
    return Input(reader.name, number, seed, name, part.mutate(part.content, random, others))


def judge(reader: Reader, given: Input, folder: Path) -> Verdict:
    """Write the files of an input into an empty folder, read them and judge what happens."""
    for name, part in given.seed.parts.items():
        path = folder / name
        if "/" in name:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(given.content if name == given.changed else part.content)
    try:
        reader.use(folder / given.seed.main, given.number)
    except WavecastError as error:
        return _refusal(error, folder)
    except MemoryError as error:
        return Verdict(LARGE, _place(error))
    except BadResult as error:
        return Verdict(BAD, f"{str(error).partition(':')[0]}", str(error)[:300])
    except Hang as error:
        return Verdict(HANG, _place(error))
    except Exception as error:
        return Verdict(RAW, _place(error), _shown(error))
    finally:
        _set_alarms(0, 0)
    return Verdict(ACCEPTED)


def _refusal(error: WavecastError, folder: Path) -> Verdict:
    """A refusal is one line, short, and without a reason that only a programmer understands."""
    message = str(error).replace(str(folder), "")
    if "\n" in message or "\r" in message:
        return Verdict(RAW, f"a message of several lines, {_place(error)}", message[:300])
    if len(message) > LONGEST_MESSAGE:
        return Verdict(RAW, f"a message that is too long, {_place(error)}", message[:300])
    return Verdict(REFUSED)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/wavecast/" in frame.filename]
    if not own:
        return type(error).__name__
    name = own[-1].filename.partition("/wavecast/")[2]
    return f"{type(error).__name__} in {name}:{own[-1].lineno} ({own[-1].name})"


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


@contextmanager
def watched(more_bytes: int = MOST_BYTES) -> Iterator[None]:
    """A context in which memory is limited, warnings are errors and `within_time` works."""
    with suppress(ImportError):
        import pyarrow  # its own pool reserves addresses by the gigabyte

        pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_used_bytes() + more_bytes, hard))
    alarms = (signal.SIGALRM, signal.SIGPROF)
    before = [signal.signal(alarm, _stop) for alarm in alarms]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DoubtfulInput)
            warnings.simplefilter("ignore", ResourceWarning)
            yield
    finally:
        for alarm, handler in zip(alarms, before, strict=True):
            signal.signal(alarm, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def within_time(reader: Reader, given: Input, folder: Path) -> Verdict:
    """The verdict on an input, within `watched`."""
    _set_alarms(LONGEST_S, LONGEST_WAIT_S)
    try:
        return judge(reader, given, folder)
    except Hang:  # while the verdict was made
        return Verdict(HANG)
    finally:
        _set_alarms(0, 0)


def _set_alarms(cpu_s: float, wall_s: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _stop(*_: object) -> NoReturn:
    raise Hang


def _used_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def empty(folder: Path) -> None:
    """Remove everything from a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def smaller(reader: Reader, given: Input, fault: Verdict, folder: Path, tries: int = 200) -> Input:
    """A smaller input with the same fault: blocks of the changed file are left out by turns."""
    content = given.content
    block = max(len(content) // 2, 1)
    while block and tries > 0:
        at = 0
        while at < len(content) and tries > 0:
            tries -= 1
            shorter = content[:at] + content[at + block :]
            verdict = within_time(reader, replace(given, content=shorter), folder)
            if (verdict.kind, verdict.place) == (fault.kind, fault.place):
                content = shorter
            else:
                at += block
        block //= 2
    return replace(given, content=content)
