"""Lambda's benchmark of NVIDIA's examples: 13 types of GPU, one GPU for each run.

The batch size depends on the memory of the GPU. ResNet-50 is always NCHW. SSD300 is assumed to be
NHWC from torch 1.13 on: its fp32 then became a quarter slower than with 1.4 on the same V100 and
RTX 8000, and as slow as in NVIDIA's own table for that layout, while ResNet-50 did not change.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lab.measured.public_steps.case import Case, Options, bert_options, era_of
from lab.measured.tables import read_rows, version

GPUS = {
    "A100 PCIe 40GB": "a100-pcie-40gb",
    "A100 PCIe 80GB": "a100-pcie-80gb",
    "A100 SXM4 40GB": "a100-sxm-40gb",
    "A100 SXM4 80GB": "a100-sxm-80gb",
    "GTX 1080 Ti": "gtx-1080-ti",
    "Quadro RTX 6000": "quadro-rtx-6000",
    "Quadro RTX 8000": "quadro-rtx-8000",
    "RTX 2080 Ti": "rtx-2080-ti",
    "RTX 3090": "rtx-3090",
    "RTX A6000": "rtx-a6000",
    "TITAN RTX": "titan-rtx",
    "V100 SXM2 16GB": "v100-sxm-16gb",
    "V100 SXM2 32GB": "v100-sxm-32gb",
}
TASKS = ("resnet50", "bert_base_squad", "bert_large_squad", "gnmt", "ssd")
PRECISIONS = ("fp32", "tf32", "amp_fp16")
MEASURED_OTHERWISE = ("reported_above_steady", "reported_below_steady")
"""Flags about the value that the script reports. They are ignored, because the table's throughput
is computed without it."""


def cases(folder: Path) -> Iterator[Case]:
    """A case for each GPU, task, precision and batch: the median of runs with the newest torch."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in read_rows(folder / "lambda_throughput.csv"):
        if row["gpu"] in GPUS and _usable(row):
            columns = ("gpu", "task", "precision_effective", "batch_per_gpu")
            groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    newest: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for key, rows in groups.items():
        last = max(version(row["torch"]) for row in rows)
        newest[key[:3]] = max(last, newest.get(key[:3], ()))
    for key, rows in groups.items():
        last = max(version(row["torch"]) for row in rows)
        yield _case(key, [r for r in rows if version(r["torch"]) == last], last == newest[key[:3]])


def _usable(row: dict[str, Any]) -> bool:
    if row["task"] not in TASKS or row["precision_effective"] not in PRECISIONS:
        return False
    if row["n_gpu"] != 1 or row["data"] == "pytorch":  # decoding images may be the bottleneck
        return False
    if row["task"] == "gnmt" and not _consistent(row):
        return False
    return all(flag in MEASURED_OTHERWISE for flag in (row["flags"] or "").split(";") if flag)


def _consistent(row: dict[str, Any]) -> bool:
    """Whether throughput, step time and batch give a plausible sentence length (all but one do)."""
    tokens = row["throughput"] * row["step_ms"] * 1e-3 / row["batch_per_gpu"]
    return bool(abs(tokens / units_of("gnmt") - 1) < 0.2)


def _case(key: tuple[Any, ...], rows: list[dict[str, Any]], newest: bool) -> Case:
    gpu, task, precision, batch = *key[:3], int(key[3])
    last = version(rows[0]["torch"])
    layout = "nhwc" if task == "ssd" and last >= (1, 13) else "nchw"
    tuned: Options = (("tuned", 1),)
    options_of_task: dict[str, Options] = {
        "gnmt": (("padded", 28),),
        "ssd": tuned,
        "resnet50": tuned,
    }
    old = last < (1, 10)
    bert = bert_options(384, old=old, looped=precision != "amp_fp16")
    return Case(
        set="lambda",
        gpu=GPUS[gpu],
        model=task,
        family=task.partition("_")[0],
        precision=precision,
        batch=batch,
        layout=layout if task in ("ssd", "resnet50") else "",
        measured_s=batch * units_of(task) / statistics.median(row["throughput"] for row in rows),
        make_step=partial(make_step, task, batch, precision, layout, old=old),
        options=options_of_task.get(task, bert),
        software=f"torch {'.'.join(map(str, last))}, {rows[0]['data']} data",
        newest=newest,
        old=old,
        era=era_of(last),
        rebuilt=task != "ssd",  # 1 ms an image is missing: probably decoding on the GPU
    )


def units_of(task: str) -> float:
    """The units that the throughput counts (tokens or samples) in one sample."""
    from lab.measured.public_steps import examples

    return examples.SOURCE_TOKENS + examples.TARGET_TOKENS if task == "gnmt" else 1.0


def make_step(task: str, batch: int, precision: str, layout: str, *, old: bool) -> Any:
    """The step of a task."""
    from lab.measured.public_steps import examples

    if task.startswith("bert"):
        return examples.bert_squad(task.split("_")[1], batch, precision, old=old)
    make = {"resnet50": examples.resnet50, "gnmt": examples.gnmt, "ssd": examples.ssd300}[task]
    return make(batch, precision, layout)
