"""Predicted against measured training steps.

    python -m benchmarks.accuracy                       on our H200 (measurements/h200/steps.csv)
    python -m benchmarks.accuracy --timm timm_train.csv timm's own table for the RTX 3090
    python -m benchmarks.accuracy --memory              the peak of traced lifetimes, our H200

The shares of `attainable` were fitted on the H200's steps at the larger batch of each; the RTX
3090, and all models of timm, were never seen.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from benchmarks.steps import STEPS
from wavecast import Predictor
from wavecast.columns import peak_bytes
from wavecast.predictors.attainable import Attainable
from wavecast.predictors.roofline import Roofline

MEASURED = Path(__file__).parent.parent / "measurements" / "h200" / "steps.csv"
TIMES = ("steady_s", "gpu_busy_s")
PREDICTORS: dict[str, Predictor] = {"roofline": Roofline(), "attainable": Attainable.shipped()}


def h200() -> None:
    """Our own measurements: wall time and GPU-busy time of each step."""
    errors: dict[str, list[float]] = {f"{n} {w}": [] for n in PREDICTORS for w in ("wall", "gpu")}
    inside = 0
    rows = _mean_of_runs(csv.DictReader(MEASURED.open()))
    print("| step | measured | predicted | error | GPU measured | GPU predicted | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        make, batch = STEPS[row["model"]][0], int(row["batch"])
        trace = wavecast.trace(partial(make, batch, row["precision"]))
        wall_s, gpu_s = float(row["steady_s"]), float(row["gpu_busy_s"])
        for name, predictor in PREDICTORS.items():
            found = wavecast.predict(trace, "h200-sxm", predictor=predictor)
            errors[f"{name} wall"].append(found.seconds / wall_s - 1)
            errors[f"{name} gpu"].append(found.gpu_s / gpu_s - 1)
        inside += found.low_s <= wall_s <= found.high_s
        print(
            f"| {row['model']} {row['precision']} b{batch} | {wall_s * 1e3:.1f} ms "
            f"| {found.seconds * 1e3:.1f} ms | {errors['attainable wall'][-1]:+.0%} "
            f"| {gpu_s * 1e3:.1f} ms | {found.gpu_s * 1e3:.1f} ms "
            f"| {errors['attainable gpu'][-1]:+.0%} |"
        )
    _summary(errors)
    print(f"measured wall time within the range: {inside} of {len(rows)}")


def _mean_of_runs(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Each step once: host-bound ones differed by 18% (median) between two runs."""
    runs: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in rows:
        runs.setdefault((row["model"], row["precision"], row["batch"]), []).append(row)
    means = [
        {name: str(statistics.mean(float(r[name]) for r in group)) for name in TIMES}
        for group in runs.values()
    ]
    return [group[0] | mean for group, mean in zip(runs.values(), means, strict=True)]


def memory() -> None:
    """The most memory that traced tensors hold at once, against torch's allocator.

    Workspaces of cuDNN and cuBLAS are not traced; memory has no predictor yet.
    """
    for row in csv.DictReader(MEASURED.open()):
        if row["peak_bytes"]:
            make, batch = STEPS[row["model"]][0], int(row["batch"])
            trace = wavecast.trace(partial(make, batch, row["precision"]))
            held, measured = peak_bytes(trace.allocations), float(row["peak_bytes"])
            print(
                f"{row['model']:14} {row['precision']} b{batch:<3} {measured / 1e6:7.0f} MB "
                f"{held / 1e6:7.0f} MB {held / measured - 1:+.1%}"
            )


def timm(table: Path) -> None:
    """One model of each family of timm's published training times on an RTX 3090."""
    from benchmarks.zoo import import_timm

    library = import_timm()
    errors: dict[str, list[float]] = {name: [] for name in PREDICTORS}
    inside = 0
    for row in _one_per_family(csv.DictReader(table.open())):
        try:
            trace = wavecast.trace(_timm_step(library, row))
        except wavecast.WavecastError as error:
            print(f"{row['model']}: {error}")
            continue
        measured_s = float(row["step_ms"]) * 1e-3
        for name, predictor in PREDICTORS.items():
            found = wavecast.predict(trace, "rtx-3090", predictor=predictor)
            errors[name].append(found.seconds / measured_s - 1)
        inside += found.low_s <= measured_s <= found.high_s
        print(
            f"{row['model']:40} {row['layout']} b{row['batch']:>4} {measured_s * 1e3:7.1f} ms "
            f"{found.seconds * 1e3:7.1f} ms {errors['attainable'][-1]:+.0%}",
            flush=True,
        )
    _summary(errors)
    print(f"within the range: {inside} of {len(errors['attainable'])}")


def _one_per_family(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    first: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["precision"] == "amp_fp16" and row["compiled"] == "False":
            first.setdefault(row["family"], row)
    return list(first.values())


def _timm_step(timm: Any, row: dict[str, str]) -> Callable[[], Any]:
    import torch
    import torch.nn.functional as F

    def make_step() -> Callable[[], None]:
        size, batch = int(row["img_size"]), int(row["batch"])
        layout = torch.channels_last if row["layout"] == "nhwc" else torch.contiguous_format
        torch.backends.cuda.matmul.allow_tf32 = True
        model = timm.create_model(row["model"]).cuda().to(memory_format=layout)
        images = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step() -> None:
            optimizer.zero_grad()
            target = torch.empty(batch, dtype=torch.long, device="cuda").random_(1000)
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(images), target)
            loss.backward()
            optimizer.step()

        return step

    return make_step


def _summary(errors: dict[str, list[float]]) -> None:
    for name, values in errors.items():
        sizes = sorted(map(abs, values))
        print(
            f"{name:16} mean |error| {statistics.mean(sizes):.1%}, median "
            f"{statistics.median(sizes):.1%}, worst {sizes[-1]:.0%}, bias "
            f"{statistics.mean(values):+.1%} ({len(values)} steps)"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timm", type=Path)
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    if given.memory:
        memory()
    elif given.timm is not None:
        timm(given.timm)
    else:
        h200()
