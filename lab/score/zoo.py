"""Which models of transformers and torchvision can be traced? Traces a training step of each.

    python -m lab score zoo transformers                 prints a line for each model
    python -m lab score zoo torchvision "*rcnn*"         only models whose names match
    python -m lab score zoo transformers --keep FILE     keeps results there, and goes on from them
    python -m lab score zoo torchvision --jobs 8         traces eight models at a time
    python -m lab score zoo torchvision --write          also writes the page in docs/appendix

Each model has a process of its own, with limits of memory and time. Needs the library, no GPU.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from lab import needs
from lab.needs import require
from lab.pages import APPENDIX
from lab.score.timm_zoo import ZooResult, by_kind, summary
from lab.steps.torchvision_models import torchvision_names, torchvision_step
from lab.steps.transformers_models import MODELS, preload, transformers_step
from wavecast import ops
from wavecast.frameworks.pytorch.capture import capture

MEMORY_BYTES = 16 << 30
LIMIT_S = 900
_FORK = multiprocessing.get_context("fork")
"""Models are traced in copies of this process, which has imported the libraries once."""


@dataclass(frozen=True)
class ZooModel:
    """A model to trace: its kind, what it is trained for, and its name in the library."""

    kind: str
    task: str
    name: str
    make_step: Callable[[], Any] = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        """The text by which results are kept."""
        return f"{self.task}: {self.name}"


def transformers_models() -> list[ZooModel]:
    """The listed models of transformers."""
    require("this command", "transformers")
    preload()
    return [
        ZooModel(kind, task, name, transformers_step(task, name))
        for kind, tasks in MODELS.items()
        for task, names in tasks.items()
        for name in names.split()
    ]


def torchvision_models() -> list[ZooModel]:
    """All models of torchvision that are not quantized."""
    return [
        ZooModel(kind, kind, name, torchvision_step(kind, name))
        for kind, names in torchvision_names().items()
        for name in names
    ]


LIBRARIES = {"transformers": transformers_models, "torchvision": torchvision_models}
STEPS = {
    "transformers": "default configurations, the model's own loss, bf16 autocast, AdamW",
    "torchvision": "bf16 autocast (detectors: fp32), the usual loss of each kind, AdamW",
}


class _Attempt:
    """A model that is being traced in a process of its own."""

    def __init__(self, model: ZooModel, limit_s: float) -> None:
        self.model = model
        self._limit_s = limit_s
        self.answer, theirs = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_trace, args=(model, theirs))
        self._start = time.monotonic()
        self._process.start()
        theirs.close()

    @property
    def left_s(self) -> float:
        """The seconds until the limit."""
        return max(0.0, self._start + self._limit_s - time.monotonic())

    def result(self) -> ZooResult:
        """What the process answered, or that it ended without an answer or takes too long."""
        failure = f"it took longer than {self._limit_s:.0f} s"
        try:
            if self.answer.poll():
                return ZooResult(**self.answer.recv())
        except EOFError:
            self._process.join()
            failure = f"its process ended with {self._process.exitcode}"
        finally:
            self._process.kill()
            self._process.join()
            self.answer.close()
        seconds = time.monotonic() - self._start
        return ZooResult(self.model.name, 0, seconds, (), (), failure)


def trace_each(
    models: Iterable[ZooModel], limit_s: float, jobs: int = 1
) -> Iterator[tuple[ZooModel, ZooResult]]:
    """Each model and its result, as they come. At most `jobs` are traced at the same time."""
    waiting, running = list(models), dict[Connection, _Attempt]()
    while waiting or running:
        while waiting and len(running) < jobs:
            attempt = _Attempt(waiting.pop(0), limit_s)
            running[attempt.answer] = attempt
        ready = wait(list(running), timeout=min(a.left_s for a in running.values()))
        for answer, attempt in list(running.items()):
            if answer in ready or attempt.left_s == 0:
                del running[answer]
                yield attempt.model, attempt.result()


def _trace(model: ZooModel, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")  # the libraries' own warnings about default configurations
    start = time.perf_counter()
    try:
        trace = capture(model.make_step, samples=1)
    except Exception as error:  # whatever it is, the table says it
        seconds = time.perf_counter() - start
        answer.send(asdict(ZooResult(model.name, 0, seconds, (), (), str(error))))
        return
    unknown = tuple(sorted(ops.totals(trace).unknown))
    seconds = time.perf_counter() - start
    answer.send(asdict(ZooResult(model.name, len(trace), seconds, trace.notes, unknown)))


def sweep(
    models: Sequence[ZooModel], limit_s: float, keep: Path | None, jobs: int = 1
) -> list[ZooResult]:
    """Trace each model that has no kept result, and print a line about it."""
    results = _read(keep)
    missing = [model for model in models if model.key not in results]
    for model, result in trace_each(missing, limit_s, jobs):
        results[model.key] = result
        if keep is not None:
            with keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": model.key, "result": asdict(result)}) + "\n")
        remark = result.failure or ", ".join(result.unknown)
        print(f"{model.key:50} {result.calls:6} ops {result.seconds:6.1f} s  {remark}", flush=True)
    return [results[model.key] for model in models]


def _read(keep: Path | None) -> dict[str, ZooResult]:
    if keep is None or not keep.exists():
        return {}
    rows = map(json.loads, keep.read_text(encoding="utf-8").splitlines())
    return {row["key"]: ZooResult(**row["result"]) for row in rows}


def page(library: str, models: Sequence[ZooModel], results: Sequence[ZooResult]) -> str:
    """The results as a page in Markdown, by kind of model."""
    lines = [
        f"# Models of {library} that were traced",
        "",
        f"Training steps traced without a GPU: {STEPS[library]}.",
        f"Generated by `python -m lab score zoo {library} --write` on {datetime.date.today()} with",
        f"torch {torch.__version__.split('+')[0]} and {library} {version(library)}. "
        "[The summary](../zoo.md).",
        "",
        f"**{summary(list(results))}.**",
        "",
        *by_kind([(m.kind, result) for m, result in zip(models, results, strict=True)]),
    ]
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Trace the models named on the command line, or all."""
    parser = needs.parser(__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the results there")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="models at a time")
    parser.add_argument("--write", action="store_true", help="write the page in docs/appendix")
    args = parser.parse_intermixed_args(given)
    models = [
        model
        for model in LIBRARIES[args.library]()
        if any(fnmatch.fnmatch(model.name, pattern) for pattern in args.patterns)
    ]
    if not models:
        parser.error(f"no model of {args.library} is called {' or '.join(args.patterns)}")
    results = sweep(models, args.limit, args.keep, args.jobs)
    if args.write:
        text = page(args.library, models, results)
        (APPENDIX / f"zoo-{args.library}.md").write_text(text, encoding="utf-8")
    print(summary(results))
