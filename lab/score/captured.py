"""Which compiled steps can be captured without a GPU? Traces one step of each.

    python -m lab.score.captured by-hand --keep FILE             a line for each, kept in the file
    python -m lab.score.captured transformers "gpt*" --keep FILE     only steps whose names match
    python -m lab.score.captured --write FILE                    the page of all kept results

Sources are by-hand, suite, presets, transformers, torchvision and timm. Torchvision does not work
beside transformers and a CPU build of torch: it needs an environment of its own. Each step has a
process of its own, which has imported the compiler already. A step that has a kept result is not
traced again.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import wavecast
from lab.score.pages import APPENDIX
from lab.steps.captured import SOURCES, CapturedStep
from wavecast import ops
from wavecast.ops import Kind
from wavecast.ops.fused import HOST_CALLS

GPU = "h200"
LONGEST = 160
"""Characters of a reason that the page shows."""
MEMORY_BYTES = 16 << 30
LIMIT_S = 600
_FORK = multiprocessing.get_context("fork")
PAGE = APPENDIX / "compiled-zoo.md"

TITLES = {
    "by-hand": "Steps by hand",
    "suite": "The suite",
    "presets": "Presets of Hugging Face",
    "transformers": "Other architectures of transformers",
    "torchvision": "torchvision",
    "timm": "timm",
}
NOT_FOLLOWED = ("could not be followed", "was not compiled")
"""What notes say where code that a GPU compiles was traced as eager."""


@dataclass(frozen=True)
class Captured:
    """What became of one step."""

    source: str
    kind: str
    name: str
    fused: int = 0
    """Kernels that Inductor generates."""
    calls: int = 0
    breaks: int = 0
    """Graph breaks, each a note."""
    cpu_s: float = 0.0
    """Processor time of the trace, without the import of torch and its compiler."""
    eager: tuple[str, ...] = ()
    """Notes about code that could not be followed."""
    unknown: tuple[str, ...] = ()
    """Ops of unknown cost."""
    failure: str = ""

    @property
    def key(self) -> str:
        """The text by which results are kept."""
        return f"{self.source}: {self.kind}: {self.name}"

    @property
    def is_whole(self) -> bool:
        """Whether all that a GPU compiles was captured as compiled."""
        return not self.failure and not self.eager


def attempt(source: str, step: CapturedStep, limit_s: float) -> Captured:
    """Trace a step in a process of its own."""
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_answer, args=(source, step, theirs))
    process.start()
    theirs.close()
    failure = f"it took longer than {limit_s:.0f} s"
    try:
        if ours.poll(limit_s):
            row = ours.recv()
            return Captured(**row)
    except EOFError:
        process.join()
        failure = f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
        ours.close()
    return Captured(source, step.kind, step.name, failure=failure)


def _answer(source: str, step: CapturedStep, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")  # the libraries' own
    answer.send(asdict(capture(source, step)))


def capture(source: str, step: CapturedStep) -> Captured:
    """Trace a step here."""
    start = time.process_time()
    try:
        trace = wavecast.trace(step.make_step, gpu=GPU, **step.options)
    except Exception as error:  # whatever it is, the table says it
        seconds, said = time.process_time() - start, f"{type(error).__name__}: {error}"
        return Captured(source, step.kind, step.name, cpu_s=seconds, failure=said[:300])
    seconds = time.process_time() - start
    return Captured(
        source,
        step.kind,
        step.name,
        fused=sum(ops.kind(call.op) is Kind.FUSED for call in trace),
        calls=sum(call.op.name not in HOST_CALLS for call in trace),
        breaks=sum("graph break" in note for note in trace.notes),
        cpu_s=seconds,
        eager=tuple(n for n in trace.notes if any(words in n for words in NOT_FOLLOWED)),
        unknown=tuple(sorted(ops.totals(trace).unknown)),
    )


def kept(path: Path) -> dict[str, Captured]:
    """The results in a file; the last one for each step."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    results = [_read(row) for row in rows]
    return {result.key: result for result in results}


def _read(row: dict[str, Any]) -> Captured:
    values: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in row.items()
    }
    return Captured(**values)


def sweep(source: str, patterns: Sequence[str], path: Path, limit_s: float) -> None:
    """Trace the steps of a source that match and have no kept result."""
    done = kept(path)
    for step in SOURCES[source]():
        known = Captured(source, step.kind, step.name).key in done
        if known or not any(fnmatch.fnmatch(step.name, pattern) for pattern in patterns):
            continue
        result = attempt(source, step, limit_s)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        remark = result.failure or "; ".join((*result.eager, *result.unknown))
        print(
            f"{result.key:60} {result.fused:5} fused {result.breaks:3} breaks "
            f"{result.cpu_s:6.1f} s  {remark}",
            flush=True,
        )


def summary(results: Sequence[Captured]) -> str:
    """How many steps were captured, in one sentence."""
    whole = [result for result in results if result.is_whole]
    partly = sum(bool(result.eager) and not result.failure for result in results)
    typical = statistics.median(result.cpu_s for result in results)
    return (
        f"{len(whole)} of {len(results)} steps captured, {partly} more in parts; "
        f"median {typical:.1f} s of processor time"
    )


def page(results: Sequence[Captured]) -> str:
    """The results as a page in Markdown, with a table for each source."""
    lines = [
        "# Compiled steps that were captured",
        "",
        "What `torch.compile` would run on an H200, found without a GPU",
        "([how](../concepts/tracing.md#compiled-code)). Generated by",
        "`python -m lab.score.captured --write FILE` from what",
        "`python -m lab.score.captured SOURCE --keep FILE` kept, on "
        f"{datetime.date.today()} with torch {torch.__version__.split('+')[0]}.",
        "Layers of transformers that repeat were cut to two.",
        "",
        "A step is captured if all code that a GPU compiles was compiled here; the last column",
        "says what was not. Seconds are processor time of the trace on a busy machine, without the",
        "import of torch and its compiler. Steps of a source that are not listed were not tried.",
        "[Eager steps](../zoo.md).",
        "",
        f"**{summary(results)}.**",
    ]
    for source, title in TITLES.items():
        own = [result for result in results if result.source == source]
        if not own:
            continue
        lines += ["", f"## {title}", "", f"{summary(own)}.", ""]
        lines += [
            "| step | kind | fused kernels | graph breaks | seconds | as eager, or failure |",
            "|---|---|---:|---:|---:|---|",
        ]
        lines += [_row(result) for result in own]
    return "\n".join(lines) + "\n"


def _row(result: Captured) -> str:
    said = result.failure or "; ".join(result.eager)
    cells = (
        f"`{result.name}`",
        result.kind,
        str(result.fused or ""),
        str(result.breaks or ""),
        f"{result.cpu_s:.1f}",
        said.replace("|", "\\|")[:LONGEST],
    )
    return f"| {' | '.join(cells)} |"


def main(given: Sequence[str] | None = None) -> None:
    """Trace the steps of a source, or write the page of what was kept."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.score.captured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="?", choices=SOURCES)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the results there")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page of results")
    args = parser.parse_intermixed_args(given)
    if args.source:
        if args.keep is None:
            parser.error("--keep FILE is needed: results are kept there")
        from wavecast.frameworks.pytorch.compiled import compiling  # noqa: F401  imported once

        sweep(args.source, args.patterns, args.keep, args.limit)
    if args.write:
        PAGE.write_text(page(list(kept(args.write).values())), encoding="utf-8")


if __name__ == "__main__":
    main()
