"""Steps of models that no fit has seen, on our H200: predicted first, then measured.

    python -m lab.score.blind measure OUT [SECONDS]   on the GPU
    python -m lab.score.blind [--write]               predicted against measured, from the files

Models of torchvision and transformers and a few plain ones (`lab/steps/memory.py`), and
those that `lab/collect/population.py` keeps back, timm's most of all. Each is traced without using
the GPU, then measured on it. The files under measurements/h200/blind, one a machine, are in no fit
of ops, and stay out of all. What is there already is not measured again. The GPU's time is
compared; iterations were timed after a profiler had run, and again without for
`lab.score.iterations`.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from lab.measured import campaigns
from lab.measured.comparison import gpu_range_s
from lab.measured.figures import Figures, figures, percent, record
from lab.measured.timed import BLIND, documents
from lab.score import pages
from wavecast import Prediction

GPU = "h200-sxm"
MARK = "begin: python -m lab.score.blind"
SORTS = ("torchvision", "transformers", "perceptron", "lstm language", "blocks")
"""What the steps of models are called that are not in the suite."""


Step = Callable[[], Any]
MakeStep = Callable[[], Step]


def steps() -> Iterator[tuple[str, MakeStep]]:
    """All that are measured, and how each is made."""
    from lab.collect import population
    from lab.steps.memory import STEPS

    for name, step in STEPS.items():
        if name.startswith(SORTS):
            yield name, step.make
    for name in population.BLIND:
        drawn = population.draw(name, 0, whole=True)
        yield drawn.title, partial(population.make_step, drawn)


def measure(out: Path, seconds: float, some: Iterable[tuple[str, MakeStep]]) -> None:
    """Time the machine's host, then as many steps as time allows.

    Args:
        out: where to write `machine.json` and traces.
        seconds: after which no other step is begun.
        some: steps by name.
    """
    import torch

    from wavecast.frameworks.pytorch.measurement import host_benchmark

    until = time.monotonic() + seconds
    (out / "traces").mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    host = {"cpu": host_benchmark.time_host("cpu"), "cuda": host_benchmark.time_host("cuda")}
    about = {"software": host_benchmark.versions("cuda"), "processor": host_benchmark.processor()}
    direct = host_benchmark.time_gpu()
    for name, make in some:
        if time.monotonic() > until:
            print(f"time is up before {name}", flush=True)
            break
        try:
            wavecast.trace(make, gpu=GPU).save(out / "traces" / f"{_file(name)}.json.gz")
            measured = wavecast.measure(make(), repeats=15, recordings=1).measurement
            assert measured is not None
            rows[name] = {
                "seconds": measured.seconds,
                "gpu_s": measured.gpu_s,
                "host_s": measured.host_s,
            }
            print(f"{name}: {rows[name]}", flush=True)
        except Exception as error:  # the others still count
            print(f"{name}: {error!r}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        document = {"about": about, "host": host, "gpu": direct, "steps": rows}
        (out / "machine.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def _file(name: str) -> str:
    return name.replace(" ", "-")


@dataclass(frozen=True)
class BlindRow:
    """A step as predicted, and as measured."""

    name: str
    found: Prediction
    gpu_s: float
    machine: str
    """The file that it is in."""

    @property
    def gpu_error(self) -> float:
        """Of the time that the GPU is busy."""
        return self.found.gpu_s / self.gpu_s - 1

    @property
    def gpu_within(self) -> bool:
        """Whether the GPU's measured time lies in its predicted range."""
        low_s, high_s = gpu_range_s(self.found)
        return low_s <= self.gpu_s <= high_s


def rows() -> Iterator[BlindRow]:
    """All steps of the files."""
    for machine, document in documents(BLIND).items():
        for name, step in document["steps"].items():
            trace = campaigns.traces("blind")[_file(name)]
            found = wavecast.predict(trace, GPU, host="reference")
            yield BlindRow(name, found, step["gpu_s"], machine)


def table() -> Iterator[str]:
    """A line for each step, then the figures of each machine."""
    every = list(rows())
    yield "| step | GPU busy | predicted | error |"
    yield "|---|---:|---:|---:|"
    for row in every:
        yield (
            f"| {row.name} | {row.gpu_s * 1e3:.1f} ms | {row.found.gpu_s * 1e3:.1f} ms "
            f"| {row.gpu_error:+.0%} |"
        )
    yield ""
    yield "| steps of | steps | mean error | median | bias | worst | in range |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    machines = dict.fromkeys(row.machine for row in every)
    sums = {"all machines": set(machines), **{f"{name} machine": {name} for name in machines}}
    for title, names in sums.items():
        found = figures_of([row for row in every if row.machine in names])
        cells = " | ".join(found.cells(1))
        yield f"| {title} | {found.count} | {cells} | {percent(found.in_range)} |"


def figures_of(some: Iterable[BlindRow]) -> Figures:
    """The five figures of the GPU's time."""
    chosen = list(some)
    return figures((row.gpu_error for row in chosen), (row.gpu_within for row in chosen))


def main() -> None:
    """Measure, or show."""
    if sys.argv[1:2] == ["measure"]:
        measured = {name for document in documents(BLIND).values() for name in document["steps"]}
        missing = ((name, make) for name, make in steps() if name not in measured)
        measure(Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 150.0, missing)
        return
    text = "\n".join(table())
    print(text)
    if sys.argv[1:] == ["--write"]:
        pages.write(pages.APPENDIX / "accuracy-blind.md", MARK, text)
        record({"h200 GPU time, blind models": figures_of(rows())})


if __name__ == "__main__":
    main()
