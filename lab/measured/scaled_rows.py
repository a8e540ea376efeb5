"""Published speeds on several GPUs, relative to one: Lambda's machines, and DLPerf's.

Lambda's tasks are NVIDIA's examples with Apex, as `public_steps.lambda_steps` rebuilds them. At
Apex's level O2 the gradients of BERT and GNMT are float16. A machine whose links are not stated is
taken for one with bridges (RTX A6000), for a virtual machine (Lambda's cloud, Linode), or for one
without bridges. These assumptions were made while looking at the rows, so nothing is fitted on
them.

DLPerf has machines of eight V100 with one InfiniBand adapter of 100 Gb/s. Its BERT has all
gradients in one bucket, as NVIDIA's script for pre-training asks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lab.measured.public_steps import lambda_steps
from lab.measured.public_steps.case import Case, bert_options
from lab.measured.tables import read_frame, version
from wavecast.hardware.clusters import Cluster, cluster, usual_cluster, with_device
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import ONE_BUFFER, Parallel

PRECISIONS = {
    **{name: name for name in lambda_steps.PRECISIONS},
    "fp16_static_scale": "amp_fp16",
    "amp": "amp_fp16",
}
STATED = ("nvlink_sxm", "nvlink_bridge_pairs", "pcie")
"""Lambda's interconnects that the source states."""
CLOUDS = ("LambdaCloud", "Linode")


@dataclass(frozen=True)
class ScaledRow:
    """One measured speed on several GPUs, divided by so many times that of one."""

    source: str
    """The machine's folder, or the framework."""
    task: str
    link: str
    """The links, as the table names them."""
    case: Case
    """The step on one GPU."""
    cluster: Cluster
    strategy: Parallel
    efficiency: float
    precision: str = ""
    """The precision as the table names it."""
    seconds: float = 0.0
    """The measured time of a step on all GPUs; 0 if the table does not have it."""
    is_flagged: bool = False
    """Whether the table or its notes say that the run was held up by something else."""

    @property
    def is_stated(self) -> bool:
        """Whether the source says what joins the GPUs."""
        return self.link in STATED


def lambda_rows(folder: Path) -> Iterator[ScaledRow]:
    """The clean rows of Lambda's table, on 2 and 4 GPUs."""
    with (folder / "lambda" / "lambda_scaling.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["clean"] == "True":
                case = _lambda_case(row)
                yield ScaledRow(
                    source=row["variant"],
                    task=row["task"],
                    link=row["interconnect"],
                    case=case,
                    cluster=_lambda_cluster(row, case.gpu),
                    strategy=Parallel(data=int(row["n_gpu"])),
                    efficiency=float(row["efficiency"]),
                    precision=row["precision_effective"],
                    seconds=_seconds(row),
                )


def _seconds(row: dict[str, str]) -> float:
    """The time of a step of all GPUs. GNMT's speed counts tokens."""
    units = lambda_steps.units_of(row["task"])
    samples = float(row["batch_per_gpu"]) * int(row["n_gpu"])
    return samples * units / float(row["throughput_n"])


def _lambda_case(row: dict[str, str]) -> Case:
    task, precision = row["task"], PRECISIONS[row["precision_effective"]]
    batch, old = round(float(row["batch_per_gpu"])), version(row["torch"]) < (1, 10)
    layout = "nchw" if task in ("ssd", "resnet50") else ""
    make_step = partial(lambda_steps.make_step, task, batch, precision, "nchw", old=old)
    options = bert_options(384, old=old, looped=precision != "amp_fp16")
    if task in ("ssd", "resnet50"):
        options = (("tuned", 1),)
    elif task == "gnmt":
        options = (("padded", 28),)
        if precision == "amp_fp16":
            options, make_step = (("padded", 28), ("level", "O2")), partial(_half_gnmt, batch)
    gpu = lambda_steps.GPUS[row["gpu"]]
    return Case("lambda", gpu, task, task, precision, batch, layout, 0.0, make_step, options)


def _half_gnmt(batch: int) -> Any:
    from lab.measured.public_steps import examples

    return examples.half_gnmt(batch)


def _lambda_cluster(row: dict[str, str], gpu: str) -> Cluster:
    link, card = row["interconnect"], device(gpu)
    if link == "nvlink_sxm":
        return usual_cluster(card)
    if link in STATED:
        return with_device(cluster("lambda-pcie" if link == "pcie" else "lambda-bridges"), card)
    in_cloud, bridged = row["variant"].startswith(CLOUDS), gpu == "rtx-a6000"
    if not bridged:
        return with_device(cluster("pcie-vm" if in_cloud else "lambda-pcie"), card)
    machine = with_device(cluster("lambda-bridges"), card)
    return replace(machine, node=replace(machine.node, peer_to_peer=not in_cloud))


def dlperf_rows(folder: Path) -> Iterator[ScaledRow]:
    """The rows of DLPerf's table on 4, 8 and 16 GPUs."""
    table = read_frame(folder / "dlperf" / "throughput.parquet")
    for row in table[table.n_gpu > 1].itertuples():
        precision, size = PRECISIONS.get(row.precision), int(row.batch_per_gpu)
        if precision is None or not row.scaling_efficiency > 0:
            continue
        bert = row.model == "bert_base"
        yield ScaledRow(
            source=row.framework,
            task="bert_base" if bert else "resnet50",
            link=f"{row.n_nodes} x {int(row.n_gpu) // int(row.n_nodes)}",
            case=_dlperf_case(bert, size, precision),
            cluster=cluster("dlperf-v100"),
            strategy=Parallel(data=int(row.n_gpu), bucket_bytes=ONE_BUFFER if bert else None),
            efficiency=float(row.scaling_efficiency),
            is_flagged=isinstance(row.qc, str) or str(row.loader_workers) == "8",
        )


def _dlperf_case(bert: bool, batch: int, precision: str) -> Case:
    make_step = partial(_dlperf_step, bert, batch, precision)
    options = (("sequence", 128),) if bert else (("tuned", 1),)
    name, layout = ("bert_base", "") if bert else ("resnet50", "nchw")
    where = ("dlperf", "v100-sxm-16gb", name, name, precision, batch, layout, 0.0)
    return Case(*where, make_step, options)


def _dlperf_step(bert: bool, batch: int, precision: str) -> Any:
    from lab.measured.public_steps import examples

    if bert:
        return examples.bert_pretraining_step("base", 128, batch, precision)
    return examples.resnet50(batch, precision, "nchw")
