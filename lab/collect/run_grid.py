"""How long do runs of AlexNet, GoogLeNet and VGG-16 take? Times them on this machine's GPU.

    python -m lab.collect.run_grid OUT [--seconds 150] [--variants "training graph fp32"]

Needs a GPU and only torch. Writes OUT/runs.csv (one row for each net, batch and length) and
OUT/layers/*.json.gz (measured traces, for the per-layer models), and prints a table. Runs that OUT
already has are not repeated, so the same command continues where the time was up. The grid of
batches and iterations is that of Gianniti et al. 2019 (section 4.3), with a tenth of its iterations
(`lab.measured.run_grid`).

Columns and variants:

- `seconds`: the time of the run's iterations, without the start-up.
- `startup_s`: the time before them, to build the net, its optimizer and a batch on the GPU, to run
  three warm-up iterations, and to capture the graph in mode `graph`.
- mode `graph`: an iteration is one CUDA graph, so that the GPU never waits for the host, as on the
  slower GPU of the paper. Mode `eager`: plain PyTorch, where a fast GPU waits at small batches.
- phase `testing`: only the forward pass.
- The five shortest lengths, up to 20 iterations, may be separate runs. The longer ones are read off
  one run, as from a log with time stamps.

Nets, batches and lengths come in random order with a fixed seed. A variant may have two passes,
each with its own start-ups.
"""

from __future__ import annotations

import argparse
import csv
import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import torch

from lab.collect.gpu_steps import captured
from lab.measured.run_grid import (
    BATCHES,
    ITERATIONS,
    LAYER_BATCHES,
    LAYER_PRECISIONS,
    NETS,
    VARIANTS,
    GridRow,
    Variant,
    layer_key,
    read,
)
from wavecast.suite import benchmark
from wavecast.suite.training import float32_products

WARM_UP = 3
LAYER_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{net: (net, {}) for net in NETS},
    "alexnet-ungrouped": ("alexnet", {"groups": 1}),
}
"""Nets whose layers are traced. AlexNet is also traced without groups, as the paper counts it."""


class Stopwatch:
    """Takes times during a run with CUDA events, without synchronising."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda

    def mark(self) -> Any:
        """Take a time."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Wait until the GPU is done."""
        if self.cuda:
            torch.cuda.synchronize()

    def between_s(self, begin: Any, end: Any) -> float:
        """The seconds between two times."""
        return float(begin.elapsed_time(end)) * 1e-3 if self.cuda else float(end - begin)


def started(net: str, batch: int, variant: Variant, options: dict[str, Any]) -> Callable[[], Any]:
    """Build and warm up a step: the start-up of a run."""
    cuda = options["device"] == "cuda"
    with torch.device(options["device"]):  # create weights on the GPU, do not copy them there
        step = benchmark(net).make_step(batch, variant.precision, **options)
    run: Callable[[], Any] = step
    if variant.phase == "testing":
        step.model.eval()
        images = step.inputs[0]

        def run() -> Any:
            with torch.inference_mode(), float32_products(variant.precision):
                return step.model(images)

    if variant.mode == "graph" and cuda:
        return graphed(run)
    for _ in range(WARM_UP):
        run()
    return run


def graphed(run: Callable[[], Any]) -> Callable[[], Any]:
    """A function that runs the step as one CUDA graph."""
    graph = captured(run, WARM_UP)

    def replay(keep: Any = run) -> None:
        graph.replay()

    replay()
    return replay


def timed(run: Callable[[], Any], lengths: Sequence[int], watch: Stopwatch) -> list[float]:
    """The seconds that one run takes until each of these numbers of iterations."""
    watch.wait()
    begin = watch.mark()
    marks = {}
    for done in range(1, max(lengths) + 1):
        run()
        if done in lengths:
            marks[done] = watch.mark()
    watch.wait()
    return [watch.between_s(begin, marks[length]) for length in lengths]


def parts(variant: Variant, shuffled: random.Random) -> list[list[tuple[int, ...]]]:
    """The runs of each pass; a run is a tuple of the lengths to read off it."""
    runs: list[tuple[int, ...]] = [(length,) for length in ITERATIONS[: variant.short]]
    runs.append(ITERATIONS[variant.short :])
    shuffled.shuffle(runs)
    return [runs[number :: variant.passes] for number in range(variant.passes)]


@dataclass(frozen=True)
class Start:
    """One start-up of a net, and the runs to make after it."""

    number: int
    net: str
    batch: int
    runs: list[tuple[int, ...]]
    """Each run is a tuple of the lengths to read off it."""
    order: int
    """The position of its first run among all runs of the variant."""

    @property
    def lengths(self) -> list[int]:
        """The lengths of all its runs."""
        return sorted(length for run in self.runs for length in run)


def planned(variant: Variant) -> list[Start]:
    """The starts of a variant in random order, with a fixed seed."""
    shuffled = random.Random(7)
    plan = [
        (net, batch, runs)
        for net in NETS
        for batch in BATCHES
        for runs in parts(variant, shuffled)
        if runs
    ]
    shuffled.shuffle(plan)
    starts, order = [], 0
    for number, (net, batch, runs) in enumerate(plan):
        starts.append(Start(number, net, batch, runs, order))
        order += len(runs)
    return starts


def made(variant: Variant, all_rows: Sequence[GridRow]) -> dict[int, list[GridRow]]:
    """The starts of a variant whose rows are complete, by number."""
    rows: dict[int, list[GridRow]] = {}
    for row in all_rows:
        if (row.phase, row.mode, row.precision) == (variant.phase, variant.mode, variant.precision):
            rows.setdefault(row.start, []).append(row)
    complete = {}
    for start in planned(variant):
        rows_of_start = rows.get(start.number, [])
        if not rows_of_start:
            continue
        if {(row.net, row.batch) for row in rows_of_start} != {(start.net, start.batch)}:
            raise SystemExit(f"start {start.number} of {variant.name} belongs to another plan")
        if sorted(row.iterations for row in rows_of_start) == start.lengths:
            complete[start.number] = rows_of_start
    return complete


def rows(
    variant: Variant, options: dict[str, Any], until: float, skip: Iterable[int] = ()
) -> Iterator[GridRow]:
    """The rows of a variant's runs, in random order, until the time is up."""
    cuda = options["device"] == "cuda"
    watch = Stopwatch(cuda)
    gpu = torch.cuda.get_device_name() if cuda else "cpu"
    software = f"torch {torch.__version__}"
    left = [start for start in planned(variant) if start.number not in set(skip)]
    for index, start in enumerate(left):
        if time.monotonic() > until:
            print(f"the time is up: {variant.name} lacks {len(left) - index} starts", flush=True)
            return
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
        watch.wait()
        before = time.perf_counter()
        run = started(start.net, start.batch, variant, options)
        watch.wait()
        startup_s = time.perf_counter() - before
        for order, lengths in enumerate(start.runs, start=start.order):
            for length, seconds in zip(lengths, timed(run, lengths, watch), strict=True):
                yield GridRow(
                    *(start.net, variant.phase, variant.mode, variant.precision),
                    *(start.batch, length, round(seconds, 7), round(startup_s, 4)),
                    *(start.number, order, gpu, software),
                )
        del run


def settle(variants: Sequence[Variant], options: dict[str, Any]) -> None:
    """Run all nets once, so that libraries are loaded before anything is timed."""
    for net in NETS:
        for variant in variants:
            started(net, BATCHES[0], variant, options)()


def measure_layers(folder: Path, until: float) -> None:
    """Write the measured traces for the per-layer models that the folder lacks."""
    import wavecast

    folder.mkdir(parents=True, exist_ok=True)
    for precision, name, batch in product(LAYER_PRECISIONS, LAYER_CASES, LAYER_BATCHES):
        path = folder / f"{layer_key(name, batch, precision)}.json.gz"
        if path.exists():
            continue
        if time.monotonic() > until:
            print(f"the time is up; stopped before {path.name}", flush=True)
            return
        net, more = LAYER_CASES[name]
        step = benchmark(net).make_step(batch, precision, device="cuda", **more)
        wavecast.measure(step, repeats=5, recordings=1, samples=batch).save(path)
        del step
        gc.collect()


def summary(all_rows: Sequence[GridRow]) -> Iterator[str]:
    """A table of milliseconds per iteration in the longest run, by net, variant and batch."""
    yield "net        variant                 ms/iteration at batch " + " ".join(
        f"{batch:>7}" for batch in BATCHES
    )
    longest = {
        (row.net, f"{row.phase} {row.mode} {row.precision}", row.batch): row
        for row in sorted(all_rows, key=lambda row: row.iterations)
    }
    for net, variant in dict.fromkeys((net, variant) for net, variant, _ in longest):
        cells = [longest.get((net, variant, batch)) for batch in BATCHES]
        yield f"{net:10} {variant:44}" + " ".join(
            "      -" if row is None else f"{1e3 * row.seconds / row.iterations:7.2f}"
            for row in cells
        )


def main() -> None:
    """Time the runs that the folder lacks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=150, help="start no run after this time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--image", type=int, help="use smaller images, to try out the script")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--variants", nargs="+", choices=names, default=names, metavar="VARIANT")
    arguments = parser.parse_args()
    began = time.monotonic()
    options: dict[str, Any] = {"device": arguments.device}
    if arguments.image:
        options["image"] = arguments.image
    arguments.out.mkdir(parents=True, exist_ok=True)
    chosen = [variant for variant in VARIANTS if variant.name in arguments.variants]
    table = arguments.out / "runs.csv"
    rows_before = read(table)
    done = {variant: made(variant, rows_before) for variant in VARIANTS}
    all_rows = [row for starts in done.values() for rows in starts.values() for row in rows]
    print(f"{len(all_rows)} rows exist already", flush=True)
    settle(chosen[:2], options)
    with table.open("w", buffering=1, newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(GridRow))
        writer.writerows(astuple(row) for row in all_rows)
        for number, variant in enumerate(chosen):
            try:
                for row in rows(variant, options, began + arguments.seconds, done[variant]):
                    writer.writerow(astuple(row))
                    all_rows.append(row)
            except Exception as error:  # machine time is scarce: keep what was measured
                print(f"{variant.name} failed: {error!r}", flush=True)
            spent_s = time.monotonic() - began
            print(f"{spent_s:.0f} s: {variant.name}: {len(all_rows)} rows", flush=True)
            # Layers are traced after the first variant: it takes little time, and they are needed.
            if number == 0 and arguments.device == "cuda":
                try:
                    measure_layers(arguments.out / "layers", began + arguments.seconds)
                except Exception as error:  # the runs still count
                    print(f"tracing the layers failed: {error!r}", flush=True)
    print("\n".join(summary(all_rows)))


if __name__ == "__main__":
    main()
