"""Is a measured step the sum of its measured parts? Measures steps on this machine's GPU.

    python -m lab.collect.measured OUT {same,parts,occupancy} [MODEL ...]

Needs a GPU and transformers. Each part writes a CSV file to OUT; `same` and `parts` also traces.

- same: the prediction of a measured step on its own GPU, against a second measurement.
- parts: the recorded kernels, against the GPU-busy time of an unprofiled iteration.
- occupancy: launch configurations, with the occupancy that Kineto reports for each.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import wavecast
from lab.collect.gpu_steps import release_memory, steady_s
from lab.steps.reality import LIBRARY_STEPS, STEPS
from wavecast import suite
from wavecast.frameworks.kineto.events import read_events
from wavecast.frameworks.pytorch.measurement.iteration import measure
from wavecast.traces import overlap
from wavecast.traces.step import Trace

PRECISIONS = ("fp32", "tf32", "bf16")


def _suite(name: str, batch: int) -> Callable[[str], Any]:
    return lambda precision: suite.benchmark(name).make_step(batch, precision)


MODELS: dict[str, Callable[[str], Any]] = {
    **{f"{name} b{batch}": partial(make, batch) for name, (make, batch) in STEPS.items()},
    **LIBRARY_STEPS,
    "resnet50 b2": _suite("resnet50", 2),
    "bert-base b2": _suite("bert-base", 2),
    "bert-large b2": _suite("bert-large", 2),
    "gpt2-medium b2": _suite("gpt2-medium", 2),
    "gnmt b32": _suite("gnmt", 32),
    "inception-v3 b32": _suite("inception-v3", 32),
    "transformer b48": _suite("transformer", 48),
}

HABITAT = {
    "resnet50": (16, 32, 64),
    "inception-v3": (16, 32, 64),
    "transformer": (32, 48, 64),
    "gnmt": (16, 32, 48),
    "dcgan": (64, 96, 128),
}
"""The models and batches of Habitat's paper (Yu et al., ATC 2021, section 5.1)."""


def _chosen(models: Sequence[str]) -> list[tuple[str, Callable[[str], Any]]]:
    return [(name, make) for name, make in MODELS.items() if not models or name in models]


def same(out: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Measure steps, predict them on the same GPU, and measure them again."""
    rows: list[dict[str, Any]] = []
    errors: list[float] = []
    own = wavecast.device(torch.cuda.get_device_name())
    for name, make in _chosen(models):
        for precision in PRECISIONS:
            with _made(make, precision) as step:
                trace = measure(step, recordings=1)
                again_s = steady_s(step, 20)
            _save(trace, out / "measured" / f"{name}-{precision}.json.gz")
            predicted = wavecast.predict(trace, own)
            whole = trace.measurement
            assert whole is not None
            errors.append(abs(predicted.seconds / again_s - 1))
            rows.append(
                {
                    "model": name,
                    "precision": precision,
                    "predicted_s": predicted.seconds,
                    "again_s": again_s,
                    "error": predicted.seconds / again_s - 1,
                    "gpu_s": predicted.gpu_s,
                    "busy_s": whole.gpu_s,
                    "host_s": whole.host_s,
                    "host_factor": predicted.pace.host_factor if predicted.pace else 1.0,
                    "bound_by": predicted.bound_by,
                    "recorded_s": whole.recorded_s,
                }
            )
            _show(rows[-1])
    print(f"same device: mean {statistics.mean(errors):.2%} worst {max(errors):.2%}")
    return rows


def parts(out: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Compare the recorded kernels with the GPU-busy time of an unprofiled iteration."""
    rows = []
    for name, batches in HABITAT.items():
        for batch in batches if not models or name in models else ():
            with _made(_suite(name, batch), "fp32") as step:
                trace = measure(step, samples=batch)
            _save(trace, out / "habitat" / f"{name}-b{batch}.json.gz")
            assert trace.measurement is not None
            assert trace.measurement.gpu_s
            busy_s = overlap.busy_s(kernel for call in trace for kernel in call.kernels)
            rows.append(
                {
                    "model": name,
                    "batch": batch,
                    "seconds": trace.measurement.seconds,
                    "parts_s": busy_s,
                    "sum_s": sum(k.seconds for call in trace for k in call.kernels),
                    "busy_s": trace.measurement.gpu_s,
                    "error": busy_s / trace.measurement.gpu_s - 1,
                }
            )
            _show(rows[-1])
    return rows


def occupancy(out: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Collect distinct kernel launches with the occupancy that Kineto reports."""
    launches: dict[tuple[Any, ...], dict[str, Any]] = {}
    for _, make in _chosen(models):
        for precision in PRECISIONS:
            with _made(make, precision) as step:
                for event in _profiled(step, out):
                    if event.get("cat") == "kernel":
                        row = _launch(event)
                        launches.setdefault(tuple(row.values()), row)
    print(f"{len(launches)} distinct launches")
    return list(launches.values())


def _launch(event: dict[str, Any]) -> dict[str, Any]:
    args = event["args"]
    return {
        "kernel": event["name"][:60].replace(",", ";"),
        **{f"grid_{axis}": size for axis, size in zip("xyz", args["grid"], strict=True)},
        **{f"block_{axis}": size for axis, size in zip("xyz", args["block"], strict=True)},
        "registers": args["registers per thread"],
        "shared_bytes": args["shared memory"],
        "blocks_per_sm": args["blocks per SM"],
        "occupancy_percent": args["est. achieved occupancy %"],
    }


def _profiled(step: Callable[[], Any], out: Path) -> Iterable[dict[str, Any]]:
    step()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    path = out / "profile.json"
    profiler.export_chrome_trace(str(path))
    yield from read_events(path)
    path.unlink()


class _made:  # noqa: N801  (reads as a phrase: with _made(make, precision) as step)
    """A context with a step; its memory is freed at the end."""

    def __init__(self, make: Callable[[str], Any], precision: str) -> None:
        self._step = make(precision)

    def __enter__(self) -> Callable[[], Any]:
        step: Callable[[], Any] = self._step
        return step

    def __exit__(self, *_: object) -> None:
        del self._step
        release_memory()


def _save(trace: Trace, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.save(path.with_name(path.name.replace(" ", "_").replace(",", "")))


def _show(row: dict[str, Any]) -> None:
    shown = (f"{v:.5g}" if isinstance(v, float) else str(v) for v in row.values())
    print(" ".join(shown), flush=True)


PARTS = {"same": same, "parts": parts, "occupancy": occupancy}


def main() -> None:
    """Measure one of the parts and write its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("part", choices=PARTS, help="what to measure")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only these (default: all)")
    given = parser.parse_args()
    out, name = given.out, given.part
    out.mkdir(parents=True, exist_ok=True)
    rows = PARTS[name](out, given.models)
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
