"""Files of `wavecast suite run`: one row for each step, with its median stable iteration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wavecast.runs.readers.text import Doubts
from wavecast.runs.readers.timing import Facts, Given, make_run
from wavecast.runs.run import Run
from wavecast.runs.suite_results import read_results

_HEAD = b"model,batch,precision,gpu,status,unit,seconds,throughput_per_s,"


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file begins like a table of suite results."""
    return head.startswith(_HEAD)


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """One run for each measured step: its stable iterations, each with their median time.

    Raises:
        InvalidInput: a row is damaged; says which line and why.
    """
    for row in read_results(path):
        if row.status != "ok" or row.seconds is None or not row.iterations:
            step = f"{row.model}, batch {row.batch}, {row.precision}"
            doubts.tell(step, f"has status {row.status}: left out", "not measured: left out")
            continue
        facts = Facts(
            model=row.model,
            batch=row.batch,
            gpu=row.gpu,
            gpus=1,
            precision=row.precision,
            framework=row.software.partition(",")[0],
        )
        yield make_run(facts, given, row.iterations, row.seconds * row.iterations, str(path))
