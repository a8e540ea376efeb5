"""Steps of models that no fit has seen, on our H200: predicted first, then measured.

    python -m benchmarks.blind measure OUT [SECONDS]   on the GPU
    python -m benchmarks.blind [PAGE]                  predicted against measured, from the files

Models of torchvision and transformers and a few plain ones (`benchmarks/memory_steps.py`), and
those that `benchmarks/population.py` keeps back, timm's most of all. Each is traced without using
the GPU, then timed on it; the machine's host is timed, too. The files under
measurements/h200/blind, one a machine, are in no fit, and stay out of all. What is there already is
not measured again.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from benchmarks import pages
from wavecast import Host, Prediction
from wavecast.hosts import calibrated

FOLDER = Path(__file__).parent.parent / "measurements" / "h200" / "blind"
GPU = "h200-sxm"
FILES = ("first", "second", "third", "fourth")
SORTS = ("torchvision", "transformers", "perceptron", "lstm language", "blocks")
"""What the steps of models are called that are not in the suite."""


MakeStep = Callable[[], Callable[[], Any]]
Documents = dict[str, dict[str, Any]]
"""By the file's name: a machine's software and host, and its steps by name."""


def steps() -> Iterator[tuple[str, MakeStep]]:
    """All that are measured, and how each is made."""
    from benchmarks import population
    from benchmarks.memory_steps import STEPS

    for name, step in STEPS.items():
        if name.startswith(SORTS):
            yield name, step.make
    for name in population.BLIND:
        drawn = population.draw(name, 0, whole=True)
        yield drawn.title, partial(population.make_step, drawn)


def measure(
    out: Path, seconds: float, some: Iterable[tuple[str, MakeStep]], *, traced: bool = True
) -> None:
    """Time the machine's host, then as many steps as time allows.

    Args:
        out: where to write `machine.json` and, if they are wanted, traces.
        seconds: after which no other step is begun.
        some: steps by name.
        traced: whether each is traced there, too.
    """
    import torch

    from wavecast.frameworks.pytorch import issuing

    until = time.monotonic() + seconds
    (out / "traces").mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    host = {"cpu": issuing.time_host("cpu"), "cuda": issuing.time_host("cuda")}
    about = {"software": issuing.versions("cuda"), "processor": issuing.processor()}
    direct = issuing.time_gpu()
    for name, make in some:
        if time.monotonic() > until:
            print(f"time is up before {name}", flush=True)
            break
        try:
            if traced:
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
class Row:
    """A step as predicted with a host, and as measured."""

    name: str
    found: Prediction
    seconds: float
    gpu_s: float
    machine: str
    """The file that it is in."""

    @property
    def error(self) -> float:
        """Of the iteration."""
        return self.found.seconds / self.seconds - 1

    @property
    def gpu_error(self) -> float:
        """Of the time that the GPU is busy."""
        return self.found.gpu_s / self.gpu_s - 1

    @property
    def within(self) -> bool:
        """Whether the iteration's time lies in the predicted range."""
        return self.found.low_s <= self.seconds <= self.found.high_s


def read(folder: Path) -> Documents:
    """What was measured on each machine, by the file's name, in the order of measuring."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")
    }
    return dict(sorted(found.items(), key=lambda item: FILES.index(item[0])))


def rows(
    *,
    on_their_hosts: bool,
    documents: Documents | None = None,
    traces: Callable[[str], Path] | None = None,
) -> Iterator[Row]:
    """All steps of the files, on the reference host or each on the host of its machine, as
    `wavecast calibrate` would have it.

    Args:
        on_their_hosts: whether the machine's host counts.
        documents: what was measured on each machine; those of the blind test if not given.
        traces: where the trace of a step lies, by its name; beside these if not given.
    """
    find = traces or (lambda name: FOLDER / "traces" / f"{_file(name)}.json.gz")
    for machine, document in (documents or read(FOLDER)).items():
        host: Host | str = _machine(document) if on_their_hosts else "reference"
        for name, step in document["steps"].items():
            found = wavecast.predict(wavecast.load_trace(find(name)), GPU, host=host)
            yield Row(name, found, step["seconds"], step["gpu_s"], machine)


def _machine(document: dict[str, Any]) -> Host:
    return calibrated(
        "that machine",
        document["host"],
        document["gpu"],
        software=document["about"]["software"],
        source="benchmarks.blind",
    ).host


def table() -> Iterator[str]:
    """Step by step, and in sum."""
    by_reference, by_calibrated = (list(rows(on_their_hosts=theirs)) for theirs in (False, True))
    yield "| step | GPU busy | predicted | error | iteration | error | host calibrated |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for row, other in zip(by_reference, by_calibrated, strict=True):
        yield (
            f"| {row.name} | {row.gpu_s * 1e3:.1f} ms | {row.found.gpu_s * 1e3:.1f} ms "
            f"| {row.gpu_error:+.0%} | {row.seconds * 1e3:.1f} ms | {row.error:+.0%} "
            f"| {other.error:+.0%} |"
        )
    yield ""
    yield from sums(by_reference, by_calibrated)


def sums(by_reference: Sequence[Row], by_calibrated: Sequence[Row]) -> Iterator[str]:
    """All steps together, and those of each machine."""
    yield "| | steps | mean error | median | worst | in range |"
    yield "|---|---:|---:|---:|---:|---:|"
    machines = dict.fromkeys(row.machine for row in by_reference)
    found = {
        "GPU busy": ([row.gpu_error for row in by_reference], ""),
        **{
            f"GPU busy, {name}": ([r.gpu_error for r in by_reference if r.machine == name], "")
            for name in machines
        },
        "iteration, reference host": _summed(by_reference),
        "iteration, host calibrated": _summed(by_calibrated),
        **{
            f"iteration, host calibrated, {name}": _summed(
                [row for row in by_calibrated if row.machine == name]
            )
            for name in machines
        },
    }
    for name, (errors, covered) in found.items():
        sizes = [abs(error) for error in errors]
        yield (
            f"| {name} | {len(sizes)} | {statistics.mean(sizes):.1%} "
            f"| {statistics.median(sizes):.1%} | {max(sizes):.0%} | {covered} |"
        )


def _summed(some: Sequence[Row]) -> tuple[list[float], str]:
    """Errors of iterations, and the share of them in their ranges."""
    return [row.error for row in some], f"{statistics.mean(row.within for row in some):.0%}"


def main() -> None:
    """Measure, or show."""
    if sys.argv[1:2] == ["measure"]:
        measured = {name for document in read(FOLDER).values() for name in document["steps"]}
        missing = ((name, make) for name, make in steps() if name not in measured)
        measure(Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 150.0, missing)
        return
    text = "\n".join(table())
    print(text)
    for page in sys.argv[1:]:
        pages.write(Path(page), "blind", text)


if __name__ == "__main__":
    main()
