"""How well do other tools predict memory without a GPU? Compared with our H200's allocator.

    python -m lab.score.memory_others tracker       # torch's MemTracker, on the suite
    python -m lab.score.memory_others estimators    # accelerate estimate-memory and torch-kitsune

The steps and their measured peaks are those of measurements/h200/suite.csv. MemTracker runs each
step twice on fake tensors, as we do: in the second iteration the optimizer has its state. The
estimators see only the model, not the step. Writes the tables of docs/appendix/memory-others.md.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import wavecast
from lab.places import H200
from lab.score import pages
from wavecast import suite
from wavecast.runs.suite_results import SuiteResult, read_results

PAGE = pages.APPENDIX / "memory-others.md"
MARK = "begin: python -m lab.score.memory_others"
GPU = "h200-sxm"


@dataclass(frozen=True)
class PeerRow:
    """The measured peak of a step, and two predictions with the time that each took."""

    name: str
    peak: int
    ours: int
    ours_s: float
    theirs: int | None
    theirs_s: float


def by_tracker() -> list[PeerRow]:
    """Ten models of the suite at their smallest measured batch, in both precisions."""
    first: dict[tuple[str, str], SuiteResult] = {}
    for row in read_results(H200 / "suite.csv"):
        if row.status == "ok" and row.model in MODELS:
            first.setdefault((row.model, row.precision), row)
    return [_compared(row) for row in first.values()]


def _compared(row: SuiteResult) -> PeerRow:
    benchmark = suite.benchmark(row.model)
    begin = time.perf_counter()
    trace = wavecast.trace(lambda: benchmark.make_step(row.batch, row.precision))
    ours = wavecast.memory(trace, GPU).peak_bytes
    middle = time.perf_counter()
    try:
        theirs: int | None = tracked(benchmark, row.batch, row.precision)
    except Exception as error:
        print(f"{row.model} {row.precision}: MemTracker: {error!s:.90}", file=sys.stderr)
        theirs = None
    end = time.perf_counter()
    name = f"{row.model} b{row.batch} {row.precision}"
    return PeerRow(name, row.peak_bytes or 0, ours, middle - begin, theirs, end - middle)


def tracked(benchmark: suite.Benchmark, batch: int, precision: str) -> int:
    """The peak of two iterations, as torch's MemTracker sees it on fake tensors."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(allow_non_fake_inputs=True), staying_modules():
        step = benchmark.make_step(batch, precision, device="cpu")
        tracker = MemTracker()
        tracker.track_external(step.model, *_optimizers(step))
        with tracker:
            step()
            tracker.reset_mod_stats()  # it cannot see a second iteration otherwise
            step()
        peak = tracker.get_tracker_snapshot("peak")
    return max(int(kinds["Total"]) for kinds in peak.values())


@contextmanager
def staying_modules() -> Iterator[None]:
    """Within it, `Module.to` does nothing: fake modules cannot be moved."""
    moved = torch.nn.Module.to
    torch.nn.Module.to = lambda self, *_, **__: self
    try:
        yield
    finally:
        torch.nn.Module.to = moved


def _optimizers(step: Any) -> list[torch.optim.Optimizer]:
    optimizer = getattr(step.run, "optimizer", None)
    return [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else []


def tracker_table(rows: Sequence[PeerRow]) -> str:
    """The errors and times of both tools, over the steps that both can run."""
    both = [row for row in rows if row.theirs is not None]
    lines = [
        "| | steps | mean error | median | worst | time for all |",
        "|---|---:|---:|---:|---:|---:|",
        _line("wavecast", [(r.ours, r.peak) for r in both], sum(r.ours_s for r in both)),
        _line("MemTracker", [(r.theirs or 0, r.peak) for r in both], sum(r.theirs_s for r in both)),
    ]
    more = [row for row in rows if row.theirs is None]
    if more:
        errors = [(r.ours, r.peak) for r in more]
        lines.append(_line("wavecast, where MemTracker fails", errors, sum(r.ours_s for r in more)))
    return "\n".join(lines)


def _line(name: str, pairs: Sequence[tuple[int, int]], seconds: float | None = None) -> str:
    errors = [predicted / peak - 1 for predicted, peak in pairs]
    cells = [
        f"{statistics.mean(map(abs, errors)):.1%}",
        f"{statistics.median(map(abs, errors)):.1%}",
        f"{max(errors, key=abs):+.0%}",
        *([] if seconds is None else [f"{seconds:.0f} s"]),
    ]
    return f"| {name} | {len(pairs)} | {' | '.join(cells)} |"


MODELS = {
    **{"resnet50": 224, "inception-v3": 299, "alexnet": 224, "googlenet": 224, "vgg16": 224},
    **{"vgg19": 224, "vit": 224, "bert-base": None, "gpt2": None, "transformer": None},
}
"""The side of a model's images, which kitsune needs. None for tokens, which it does not take."""


def by_estimators() -> list[tuple[str, int, int, int, int | None]]:
    """Each model in float32 at its largest measured batch.

    The values are its name, the measured peak, and the peaks predicted by wavecast, accelerate and
    kitsune.
    """
    last = {r.model: r for r in read_results(H200 / "suite.csv") if r.precision == "fp32"}
    rows = []
    for name, side in MODELS.items():
        row, benchmark = last[name], suite.benchmark(name)
        trace = wavecast.trace(partial(benchmark.make_step, row.batch, "fp32"))
        step = benchmark.make_step(benchmark.smallest_batch, "fp32", device="cpu")
        kitsunes = by_kitsune(step.model, side, row.batch, _optimizers(step)) if side else None
        ours = wavecast.memory(trace, GPU).peak_bytes
        rows.append(
            (f"{name} b{row.batch}", row.peak_bytes or 0, ours, by_accelerate(step.model), kitsunes)
        )
    return rows


def by_accelerate(model: Any) -> int:
    """The peak of training with Adam, as `accelerate estimate-memory` predicts it."""
    import_module("lab.steps.libraries").import_torchvision()
    total, _ = import_module("accelerate.utils").calculate_maximum_sizes(model)
    estimate = import_module("accelerate.commands.estimate").estimate_training_usage
    return int(max(estimate(total, "float32", None).values()))


def by_kitsune(
    model: Any, side: int, batch: int, optimizers: Sequence[torch.optim.Optimizer]
) -> int:
    """The sum of the kinds of memory that torch-kitsune predicts."""
    name = "sgd" if isinstance(optimizers[0], torch.optim.SGD) else "adam"
    predict = import_module("kitsune").predict_memory
    estimate = predict(model, (3, side, side), batch, optimizer=name)
    kinds = ("param", "gradient", "optimizer", "activation", "overhead")
    return int(sum(getattr(estimate, f"{kind}_bytes") for kind in kinds))


def estimator_table(rows: Iterable[tuple[str, int, int, int, int | None]]) -> str:
    """A line for each model, and one for the mean errors."""
    chosen = list(rows)
    lines = [
        "| model | measured | wavecast | accelerate | torch-kitsune |",
        "|---|---:|---:|---:|---:|",
    ]
    errors: list[list[float]] = [[], [], []]
    for name, peak, *predicted in chosen:
        cells = []
        for column, nbytes in zip(errors, predicted, strict=True):
            if nbytes is None:
                cells.append("not supported")
                continue
            column.append(abs(nbytes / peak - 1))
            cells.append(f"{nbytes / 2**30:.2f} GiB ({nbytes / peak - 1:+.0%})")
        lines.append(f"| {name} | {peak / 2**30:.2f} GiB | {' | '.join(cells)} |")
    means = (f"{statistics.mean(column):.1%}" for column in errors)
    lines.append(f"| **mean error** | | {' | '.join(means)} |")
    return "\n".join(lines)


def main(what: str) -> None:
    """Write one table, and print it."""
    if what == "tracker":
        rows = by_tracker()
        for row in rows:
            errors = (f"{n / row.peak - 1:+.1%}" if n else "-" for n in (row.ours, row.theirs))
            print(f"{row.name:32} {' '.join(errors)} {row.ours_s:.1f} s {row.theirs_s:.1f} s")
        content = tracker_table(rows)
    else:
        content = estimator_table(by_estimators())
    pages.write(PAGE, f"{MARK} {what}", content)
    print(content)


if __name__ == "__main__":
    main(sys.argv[1])
