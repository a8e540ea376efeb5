"""JAX training steps, measured on our H200: iterations, memory, and kernels by HLO instruction."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from lab.measured.compiled import FusedKernel
from lab.places import H200
from wavecast import ops
from wavecast.frameworks.jax.assembly import Schedule, scheduled
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.ops import Kind
from wavecast.ops.fused import XLA_FUSED
from wavecast.predictors.learned.autotuned import CHOSEN
from wavecast.traces.step import Op

FOLDER = H200 / "jax"
GROUPS = ("fit", "more", "blind", "second", "odd")
"""What is fitted, and three blind tests."""
Row = dict[str, Any]

HOST = "host"
"""The family of steps in which the host does most of the work."""
_FAMILIES = {
    "contrastive": "towers_bf16",
    "decoder": "gpt_bf16 gpt_fp32 gpt_long llama_bf16 llama_cudnn llama_scan llama_remat "
    "llama_small pair_gpt2",
    "dense": "mlp_wide_bf16 mlp_fp32 mlp_dropout mlp_small mlp_tanh",
    "depthwise": "convnext_bf16 convnext_fp32 depthwise_0 depthwise_1 depthwise_2",
    "diffusion": "unet_bf16 unet_fp32",
    "encoder": "vit_bf16 vit_fp32 vit_dropout vit_sgd pair_vit",
    "graph": "graph_fp32",
    HOST: "host_few",
    "layers": "dense_0 dense_1",
    "mixer": "mixer_bf16",
    "mixture": "moe_bf16 moe_fp32",
    "plain_conv": "vgg_bf16 vgg_fp32",
    "recommender": "dlrm_sgd dlrm_adam",
    "recurrent": "lstm_fp32 lstm_bf16 gru_fp32",
    "residual": "resnet50_bf16 basic_bf16 basic_fp32 basic_group basic_layer pair_resnet50",
    "sound": "wavenet_bf16",
    "state_space": "ssm_bf16",
    "volume": "volume_bf16",
}
FAMILY = {name: family for family, names in _FAMILIES.items() for name in names.split()}
"""The kind of network of each fitted step; validation leaves out all steps of a family."""


class JaxKernel(NamedTuple):
    """An instruction of a step, as an op, with its measured time."""

    step: str
    instruction: str
    op: Op
    seconds: float
    """The mean time of all kernels of one run of the instruction."""
    runs: int
    kernels: float
    """Kernels of one run."""


@cache
def steps(group: str = "fit") -> dict[str, Row]:
    """The measured steps of a group, by name; those that failed are left out."""
    rows = json.loads(gzip.decompress((FOLDER / f"{group}-steps.json.gz").read_bytes()))
    return {row["name"]: row for row in rows if "error" not in row}


@cache
def hlo_texts(group: str = "fit") -> dict[str, str]:
    """The scheduled HLO of the measured steps, as XLA compiled them on the GPU."""
    texts: dict[str, str] = json.loads(
        gzip.decompress((FOLDER / f"{group}-hlo.json.gz").read_bytes())
    )
    return texts


@cache
def schedule_of(name: str, group: str = "fit") -> Schedule:
    """The schedule of a measured step, as the GPU ran it."""
    return scheduled(read_hlo(hlo_texts(group)[name]))


def kernels(group: str = "fit") -> Iterator[JaxKernel]:
    """The instructions of all steps of a group that ran kernels."""
    for name, row in steps(group).items():
        yield from kernels_of(name, row, schedule_of(name, group))


def kernels_of(name: str, row: Row, schedule: Schedule) -> Iterator[JaxKernel]:
    """The instructions of a step that ran kernels; those that no op describes are left out."""
    runs = schedule.runs()
    times: dict[str, list[float]] = defaultdict(list)
    for _, instruction, microseconds, *_ in row["nograph"]["kernels"]:
        times[instruction].append(microseconds * 1e-6)
    for instruction, each in times.items():
        if instruction in runs:
            op, count = runs[instruction]
            op = _chosen(op)
            yield JaxKernel(name, instruction, op, sum(each) / count, count, len(each) / count)


def _chosen(op: Op) -> Op:
    """A matmul of cuBLAS says that it was chosen: the tuner ran where the step was measured."""
    if ops.kind(op) is not Kind.MATMUL or op.attr(CHOSEN, None) is not None:
        return op
    return replace(op, attrs=(*op.attrs, (CHOSEN, False)))


def fitted() -> Iterator[JaxKernel]:
    """The instructions that are fitted: of the steps of "fit" and of "more", but for the host's."""
    for group in ("fit", "more"):
        for kernel in kernels(group):
            if FAMILY[kernel.step] != HOST:
                yield kernel


def fused_kernels() -> list[FusedKernel]:
    """The fused kernels that are fitted; equal ones of a step once."""
    by_op: dict[tuple[str, Op], list[JaxKernel]] = defaultdict(list)
    for kernel in fitted():
        if kernel.op.name in XLA_FUSED:
            by_op[kernel.step, kernel.op].append(kernel)
    return [
        FusedKernel(
            FAMILY[step],
            step,
            op,
            sum(kernel.seconds * kernel.runs for kernel in each)
            / sum(kernel.runs for kernel in each),
            sum(kernel.runs for kernel in each),
            each[0].instruction,
        )
        for (step, op), each in by_op.items()
    ]
