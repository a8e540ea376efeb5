"""The long run of the fuzzers: of damaged files, and of traces in which single fields are bent.

python -m tests.fuzz --inputs 1000000 --workers 2
python -m tests.fuzz --structure --minutes 60
python -m tests.fuzz --replay "trace:1234"
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]


def main() -> int:
    """Run a campaign, or judge one input again; returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, help="how many, over all readers; 10,000")
    parser.add_argument("--minutes", type=float, help="stop after this long, at the latest")
    parser.add_argument(
        "--structure", action="store_true", help="bend traces that load, and ask all questions"
    )
    parser.add_argument("--trace-steps", action="store_true", help="trace the bent steps again")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other inputs")
    parser.add_argument("--reader", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-faults"), help="faulty inputs")
    parser.add_argument("--replay", metavar="READER:NUMBER", help="one input, made smaller")
    options = parser.parse_args()

    import torch

    if options.trace_steps:
        from fuzz.traced_steps import write_steps

        write_steps()
        return 0
    torch.set_num_threads(1)  # a forked process must not wait for threads that it does not have
    if options.replay:
        return replay(options.replay, options.seed, options.keep)
    from fuzz import campaign
    from fuzz.questions import QUESTIONS
    from fuzz.readers import READERS

    begun = campaign.start(
        options.inputs or (1_000_000 if options.minutes else 10_000),
        options.seed,
        options.keep,
        options.reader,
        options.first,
        QUESTIONS if options.structure else READERS,
    )
    try:
        begun.run(options.workers, options.minutes and 60 * options.minutes)
    except KeyboardInterrupt:
        print("stopped before the end")
    print(campaign.table(begun))
    listed = campaign.faults(begun)
    print("\n".join(listed))
    return 1 if listed else 0


def replay(wanted: str, seed: int, keep: Path) -> int:
    """Judge an input again, and write a smaller one with the same fault."""
    import traceback

    from fuzz import judgement
    from fuzz.questions import QUESTIONS
    from fuzz.readers import READERS

    name, _, number = wanted.rpartition(":")
    (reader,) = (reader for reader in (*READERS, *QUESTIONS) if reader.name == name)
    given = judgement.make_input(reader, int(number), seed)
    with tempfile.TemporaryDirectory() as place, judgement.watched():
        folder = Path(place)
        verdict = judgement.within_time(reader, given, folder)
        print(f"{wanted}: {verdict.kind} {verdict.place} {verdict.detail}")
        if verdict.kind not in judgement.FAULTS:
            return 0
        try:
            reader.use(folder / given.seed.main, given.number)
        except Exception:
            traceback.print_exc(limit=-6)
        least = judgement.smaller(reader, given, verdict, folder)
    keep.mkdir(parents=True, exist_ok=True)
    path = keep / f"smallest-{Path(given.changed).name}"
    path.write_bytes(least.content)
    print(f"{len(given.content)} bytes, smallest {len(least.content)}: {path}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
