"""Readers under libFuzzer, which keeps inputs that reach new lines and changes them further.

    pip install atheris
    python -m tests.fuzz.guided --minutes 30
    python -m tests.fuzz.guided --reader "device file" --corpus FOLDER

The readers, their seeds, the changes and the judgement are those of `python -m tests.fuzz`; half of
the changes are libFuzzer's own. Inputs that reached new lines are kept in a folder for each reader,
from which the next run goes on. Faults are kept beside, and do not end the run.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing as mp
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
_LONGEST_INPUT = 1 << 20


def main() -> int:
    """Run each reader for its share of the time; returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all readers together")
    parser.add_argument("--reader", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--corpus", type=Path, default=Path(".cache/fuzz-corpus"))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-faults"), help="faulty inputs")
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed; pip install atheris")
    from fuzz import campaign

    begun = campaign.start(1, 0, options.keep, options.reader)
    share_s = 60 * options.minutes / max(len(begun.readers), 1)
    for index, reader in enumerate(begun.readers):
        folder = options.corpus / reader.name.replace(" ", "-")
        _run(begun, index, folder.resolve(), share_s)
    print(campaign.table(begun))
    listed = campaign.faults(begun)
    print("\n".join(listed))
    return 1 if listed else 0


def _run(begun: Any, index: int, corpus: Path, seconds: float) -> None:
    """One reader in a process of its own: libFuzzer ends the process that it runs in."""
    from fuzz.judgement import RAW

    ours, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(
        target=_fuzz, args=(begun.readers[index].name, corpus, seconds, theirs)
    )
    process.start()
    theirs.close()
    tally = begun.tallies[index]
    try:
        while True:
            kind, *value = ours.recv()
            if kind == "fault":
                begun.keep_fault(index, *value)
            else:
                tally.counts, tally.cpu_s, tally.slowest_s = value
    except EOFError:
        process.join()
    if process.exitcode:
        tally.counts[RAW] += 1
        tally.places[RAW, f"the process ended with {process.exitcode}", str(corpus)] += 1


def _fuzz(name: str, corpus: Path, seconds: float, pipe: Connection) -> None:
    """The process of a reader: instrument what it imports, and fuzz until the time is over."""
    import atheris

    with atheris.instrument_imports(include=["wavecast"], enable_loader_override=False):
        from fuzz import judgement
        from fuzz.readers import READERS

        (reader,) = (one for one in READERS if one.name == name)
        with tempfile.TemporaryDirectory() as place, judgement.watched(4 * judgement.MOST_BYTES):
            for number in range(6):  # imports what readers import when they need it
                judgement.within_time(reader, judgement.make_input(reader, number), Path(place))
                judgement.empty(Path(place))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed.parts[seed.main].content)
    # The name has its function only once the fuzzer runs.
    changed = _changes(reader, lambda data, longest: atheris.Mutate(data, longest))
    flags = ["-rss_limit_mb=0", "-timeout=0", "-verbosity=0", "-print_final_stats=0"]
    with tempfile.TemporaryDirectory() as place, judgement.watched():
        judged = _judging(reader, Path(place), time.monotonic() + seconds, pipe)
        arguments = [name, str(corpus), f"-max_len={_LONGEST_INPUT}", *flags]
        atheris.Setup(arguments, judged, custom_mutator=changed)
        atheris.Fuzz()


def _changes(reader: Any, own: Callable[[bytes, int], bytes]) -> Callable[..., bytes]:
    """Changes of libFuzzer, and those of the reader's form, which make checksums right again."""
    seeds = reader.seeds()
    part = seeds[0].parts[seeds[0].main]
    others = [seed.parts[seed.main].content for seed in seeds]

    def change(data: bytes, longest: int, number: int) -> bytes:
        random = Random(number)
        if random.random() < 0.5:
            return own(data, longest)
        try:
            return bytes(part.mutate(data, random, others)[:longest])
        except Exception:  # the form cannot be read any more
            return own(data, longest)

    return change


def _judging(reader: Any, folder: Path, end: float, pipe: Connection) -> Callable[[bytes], None]:
    """A function that judges one input, and ends the process when the time is over."""
    from fuzz import campaign, judgement

    seed, tally = reader.seeds()[0], campaign.Tally()
    begun_s = time.process_time()

    def judged(data: bytes) -> None:
        number = tally.inputs
        given = judgement.Input(reader.name, number, seed, seed.main, data)
        before_s = time.process_time()
        verdict = judgement.within_time(reader, given, folder)
        tally.slowest_s = max(tally.slowest_s, time.process_time() - before_s)
        tally.counts[verdict.kind] += 1
        if verdict.kind in judgement.FAULTS:
            judgement.empty(folder)
            pipe.send(("fault", number, verdict, data, seed.main))
        over = time.monotonic() > end
        if over or number % 500 == 0:
            used_s = time.process_time() - begun_s
            pipe.send(("tally", tally.counts, used_s, tally.slowest_s))
        if over:
            os._exit(0)

    return judged


if __name__ == "__main__":
    sys.exit(main())
