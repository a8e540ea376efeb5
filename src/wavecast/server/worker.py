"""A worker process: it answers one question after the other until its input ends.

A message is eight bytes with its length, then JSON. Questions come on the standard input, answers
leave on the standard output; what libraries print goes elsewhere. The process limits its own
memory, and the server ends it when it takes too long, so a hostile file costs one worker at most.
It ends by itself when its server is gone, whatever it is doing then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import IO, Any

from wavecast.errors import DoubtfulInput, WavecastError

LENGTH_BYTES = 8
_CANNOT_GO_ON = 70
"""The exit code after an error that leaves the process in an unknown state."""
_LOOK_S = 1.0
"""How often a worker looks whether its server is still there."""


def packed(message: object) -> bytes:
    """A message as it is sent."""
    body = json.dumps(message, allow_nan=False).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def main() -> None:
    """Answer questions until there are no more."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    limit_memory(int(sys.argv[1]))
    threading.Thread(target=end_without, args=(int(sys.argv[2]),), daemon=True).start()
    while (question := _read(questions)) is not None:
        answer = answered(question)
        answers.write(packed(answer))
        answers.flush()
        if answer.get("ended"):
            sys.exit(_CANNOT_GO_ON)


def end_without(parent: int) -> None:
    """End this process as soon as its parent is another one: the server was killed."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(0)


def limit_memory(most_bytes: int) -> None:
    """Let this process allocate no more than this, where the system can hold it to that."""
    with suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question, or why there is none; never an exception."""
    from wavecast.server import answers

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = answers.ANSWERS[question["ask"]](question)
        doubts = [str(w.message) for w in caught if issubclass(w.category, DoubtfulInput)]
        return {"answer": answer, "doubts": doubts}
    except WavecastError as error:
        return {"refused": str(error), "kind": type(error).__name__}
    except MemoryError:
        return {"ended": "memory"}
    except Exception as error:
        # The message may hold anything, a path for example: only its kind leaves the process.
        return {"ended": type(error).__name__}


def _read(file: IO[bytes]) -> dict[str, Any] | None:
    length = file.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    question: dict[str, Any] = json.loads(file.read(int.from_bytes(length, "big")))
    return question


if __name__ == "__main__":
    main()
