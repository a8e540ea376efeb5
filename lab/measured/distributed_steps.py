"""Measured steps on several GPUs, rebuilt from the columns of a public table.

Each row of `distributed/steps.parquet` gives a model's sizes, a strategy and a cluster. What a row
does not say is taken from the defaults of its framework; what cannot be rebuilt is named.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import wavecast
from lab.measured.expert_steps import (
    NEMO,
    NotExpressible,
    completed,
    decoder_options,
    is_mixture,
    kind_of,
)
from wavecast.errors import UnknownName, WavecastError
from wavecast.hardware.clusters import Cluster, NetworkKind, NodeNetwork, usual_cluster
from wavecast.hardware.devices import Device, device
from wavecast.parallel.strategy import ONE_BUFFER, Parallel
from wavecast.traces.step import Trace

NEVER_OVERLAPS = ("Megatron-DeepSpeed", "Megatron-LM")
"""Frameworks that reduce gradients only when the backward pass has ended."""
_TRANSFORMER_ENGINE = ("NeMo", "Megatron-Bridge", "NVIDIA Release")
"""Words in the names of frameworks on NVIDIA's Transformer Engine."""
_GATED = re.compile(r"llama|internlm|mistral|qwen", re.IGNORECASE)
_STORED = {"fp16": "fp16", "bf16": "bf16", "bf16-pure": "bf16", "bf16-amp": "bf16"}
"""The precision of products."""
_AUTOCAST = "bf16-amp"
"""Weights in float32 under autocast. In other precisions weights are stored in that of products."""
_HOOKED = ("LLM Foundry", "torchtitan", "fms-fsdp")
"""Frameworks that checkpoint with torch's own function, by how their names begin."""
_FIRST_FLASH = ("LLM Foundry",)
"""Frameworks with the attention kernels of 2022, by how their names begin. By how much longer rows
take with longer sequences, LLM Foundry's ran at 42% of the peak of an A100 forward and at 28%
backward, with heads of 64 and of 128; its scripts took a kernel in Triton (from memory)."""
_EIGHT_BITS = ("fp8", "mxfp8", "fp8-rowwise")
"""Precisions of products in 8 bits, with weights in bfloat16."""
_NETWORKS = {
    "EFA": NetworkKind.EFA,
    "RoCE": NetworkKind.ROCE,
    "Omni-Path": NetworkKind.OMNIPATH,
    "RDMA": NetworkKind.ROCE,
}

_PROCESSORS = {"nanotron": "AMD EPYC 7R13", "bigscience": "AMD EPYC 7543"}
"""Processors of sources whose machines are known: AWS p5, and the A100 of Jean Zay (from memory).
Others are taken to have that of the GPU's usual machine."""

_ADAPTERS = re.compile(r"Compute: (\d+)x [^,]*?(\d+) ?Gb/s")
"""How MLPerf's system files name the adapters of the network between GPUs."""


class NotRebuilt(Exception):
    """A row from which no step can be made; the message says why."""


@dataclass(frozen=True)
class Sizes:
    """What the trace of a micro-batch depends on."""

    gated: bool
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    micro_batch: int
    precision: str
    weights: str
    """The precision in which weights are stored."""
    recompute: str
    fused_attention: bool
    gpu: str
    """The GPU for whose attention kernels it is traced."""
    joint: bool = False
    """Whether one matmul gives queries, keys and values, and one both inputs of the gate."""
    options: tuple[tuple[str, Any], ...] = ()
    """Further options of the decoder: of a mixture of experts, or of adapters."""


@dataclass(frozen=True)
class MeasuredStep:
    """One row: what was measured, and what it is rebuilt from."""

    source: str
    strategy_name: str
    row: Mapping[str, Any]
    seconds: float
    device: Device
    cluster: Cluster
    sizes: Sizes
    strategy: Parallel

    @property
    def trace(self) -> Trace:
        """One micro-batch."""
        return traced(self.sizes)


def rebuilt(row: Mapping[str, Any]) -> MeasuredStep:
    """The step of a row.

    Raises:
        NotRebuilt: the row lacks something, or uses what the suite does not have.
    """
    row = completed(row)
    _refuse(row)
    try:
        return _rebuilt(row)
    except NotExpressible as error:
        raise NotRebuilt(str(error)) from error
    except WavecastError as error:
        raise NotRebuilt(str(error).split(";")[0]) from error


def _rebuilt(row: Mapping[str, Any]) -> MeasuredStep:
    gpu = _gpu(str(row["gpu"]))
    return MeasuredStep(
        source=str(row["source"]).split("/")[-1],
        strategy_name=str(row["strategy"]),
        row=row,
        seconds=float(row["step_s"]),
        device=gpu,
        cluster=_cluster(row, gpu),
        sizes=_sizes(row, gpu),
        strategy=_strategy(row, gpu),
    )


def _refuse(row: Mapping[str, Any]) -> None:
    reasons = {
        "a TPU": "TPU" in str(row["gpu"]),
        "JAX": "JAX" in str(row["framework"]),
        "no step time": row["step_s"] is None,
        "no decoder, or its sizes are not stated": any(
            row[name] is None for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq_len")
        ),
        "products in 4 bits, or a precision that is not clear": (
            row["precision"] not in (*_STORED, *_EIGHT_BITS)
        ),
        "the strategy is not stated": row["strategy"] == "unknown" or row["dp"] is None,
        "the micro-batch is not stated": row["micro_batch"] is None or row["grad_accum"] is None,
        "offloading to the host": row["offload"] not in (None, "none"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise NotRebuilt(reason)
    if row["micro_batch"] < 1 or row["grad_accum"] % 1:
        raise NotRebuilt("the micro-batch is not a whole number")
    batch = row["dp"] * row["micro_batch"] * row["grad_accum"]
    if row["global_batch"] is not None and row["global_batch"] != batch:
        raise NotRebuilt("the micro-batches do not add up to the global batch")


def _gpu(name: str) -> Device:
    name = {"A100-SXM": "a100-sxm-80gb"}.get(name, name).replace("SXM2", "SXM")
    try:
        return device(name)
    except UnknownName:
        raise NotRebuilt(f"the GPU is not known: {name}") from None


def _sizes(row: Mapping[str, Any], gpu: Device) -> Sizes:
    tensor = int(row["tp"] or 1)
    vocab = int(row["vocab"])
    if "Megatron" in str(row["framework"]):  # padded, so that it divides among the tensor ranks
        multiple = 128 * tensor
        vocab = -(-vocab // multiple) * multiple
    options = decoder_options(row)
    heads, precision = int(row["heads"]), _STORED.get(row["precision"], "bf16")
    return Sizes(
        gated=_is_gated(row),
        layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        heads=heads,
        kv_heads=int(row["kv_heads"] or heads),
        ffn=int(row["ffn"]),
        vocab=vocab,
        seq=int(row["seq_len"]),
        micro_batch=int(row["micro_batch"]),
        precision=precision,
        weights="fp32" if row["precision"] == _AUTOCAST else precision,
        recompute=_recompute(row),
        fused_attention=bool(row["flash_attention"]),
        gpu=gpu.id,
        joint=str(row["framework"]).startswith("nanotron"),
        options=options,
    )


def _on_transformer_engine(row: Mapping[str, Any]) -> bool:
    return any(word in str(row["framework"]) for word in _TRANSFORMER_ENGINE)


def _recompute(row: Mapping[str, Any]) -> str:
    """What is computed again. Beside FSDP, `selective` is torchtitan's rule, else Megatron's."""
    stated = str(row["activation_checkpointing"] or "none")
    return "alternate" if stated == "selective" and "FSDP" in str(row["framework"]) else stated


def _is_gated(row: Mapping[str, Any]) -> bool:
    return is_mixture(row) or bool(_GATED.search(f"{row['model']} {row['model_family']}"))


def _habits(row: Mapping[str, Any], gpu: Device) -> dict[str, Any]:
    """How the framework runs the step.

    Megatron-Core and compiled models fuse gates and rotary positions, nanotron and InternEvo only
    the latter; nanotron's norms and rotary positions are Triton kernels in autograd functions.
    Old Megatron's optimizer is Apex's, and it reads the time of each step, for which it waits.
    Transformer Engine's matmuls add gradients to their sums, and it takes cuDNN's attention on
    Hopper and later; LLM Foundry has the kernels of 2022, the others FlashAttention 2.
    """
    engine, framework = _on_transformer_engine(row), str(row["framework"])
    fuses = _is_gated(row) and (engine or bool(row["compile"]))
    rotates = _is_gated(row) and framework.startswith(("nanotron", "InternEvo"))
    nemo = bool(NEMO.search(framework)) and is_mixture(row)
    bridge = "Megatron-Bridge" in framework and is_mixture(row)
    fused = bool(row["flash_attention"])
    later = fused and not framework.startswith(_FIRST_FLASH)
    return {
        "fp8": row["precision"] in _EIGHT_BITS,
        "fused_rotary": fuses or rotates,
        "fused_gates": nemo if is_mixture(row) else fuses,
        "fused_experts": nemo,
        "fused_loss": engine and kind_of(row) == "dense",
        "fused_accumulation": engine and kind_of(row) == "dense",
        "gathers_again": engine and kind_of(row) == "dense" and _has_sequence(row),
        "triton_functions": framework.startswith("nanotron"),
        "direct_lists": framework.startswith(NEVER_OVERLAPS),
        "waits_each_step": framework.startswith(NEVER_OVERLAPS),
        "dispatch_once": bridge and (row["ep"] or 1) > 1,
        "sequence_first": not fused,
        "reentrant": not framework.startswith(_HOOKED),
        "cudnn_attention": fused and engine and gpu.id.startswith(("h", "b", "gb")),
        "flash_attention": later and gpu.id.startswith(("h", "b", "gb")) and not engine,
        "first_flash_attention": fused and not later,
    }


def _strategy(row: Mapping[str, Any], gpu: Device) -> Parallel:
    tensor, pipeline = int(row["tp"] or 1), int(row["pp"] or 1)
    data, context = int(row["dp"]), int(row["cp"] or 1)
    if data * tensor * pipeline * context != row["n_gpu"]:
        raise NotRebuilt("the parallel sizes do not multiply to the GPUs")
    stage = row["zero_stage"]
    shard = 3 if stage == "hybrid" else int(stage or 0)
    group = int(row["shard_group"]) if row["shard_group"] is not None else None
    if stage == "hybrid" and group is None:
        group = int(row["gpus_per_node"])
    framework, sequence = str(row["framework"]), _has_sequence(row)
    return Parallel(
        data=data,
        shard=shard if data > 1 else 0,
        shard_group=group if shard and data > 1 and group and data % group == 0 else None,
        tensor=tensor,
        context=context,
        expert=int(row["ep"] or 1) if is_mixture(row) else 1,
        sequence=sequence,
        overlap_tensor=sequence and _on_transformer_engine(row),
        pipeline=pipeline,
        virtual=int(row["virtual_pp"] or 1) if pipeline > 1 else 1,
        microbatches=int(row["grad_accum"]),
        bucket_bytes=ONE_BUFFER if framework.startswith(NEVER_OVERLAPS) else None,
        **_habits(row, gpu),
    )


def _has_sequence(row: Mapping[str, Any]) -> bool:
    """Whether tensor ranks have sequence parallelism.

    It is the default of Megatron-Core and of nanotron's benchmarks; older frameworks have none.
    """
    stated = row["sequence_parallel"]
    usual = str(row["framework"]).startswith("nanotron") or _on_transformer_engine(row)
    return int(row["tp"] or 1) > 1 and bool(usual if stated is None else stated)


def _cluster(row: Mapping[str, Any], gpu: Device) -> Cluster:
    """The GPU's usual machine, with the network that the row names."""
    machine = usual_cluster(gpu)
    per_node = int(row["gpus_per_node"] or machine.gpus_per_node)
    used = min(per_node, machine.gpus_per_node)
    if used < machine.gpus_per_node:
        machine = machine.with_gpus_per_node(used)
    processors = (name for source, name in _PROCESSORS.items() if source in str(row["source"]))
    if processor := next(processors, None):
        machine = replace(machine, node=replace(machine.node, processor=processor))
    network = _network(str(row["interconnect_inter"] or ""), used)
    return replace(machine, network=network) if network else machine


def _network(text: str, gpus: int) -> NodeNetwork | None:
    match = _ADAPTERS.search(text) or re.search(r"(?:(\d+)x)?\s*(\d+) ?Gb/s", text)
    if match is None:
        return None
    count = int(match[1] or (gpus if "per GPU" in text else 1))
    kinds = (kind for word, kind in _NETWORKS.items() if word in text)
    kind = next(kinds, NetworkKind.INFINIBAND)
    return NodeNetwork(kind, count * int(match[2]) * 1e9 / 8, nics=count)


@functools.lru_cache(maxsize=8)
def traced(sizes: Sizes) -> Trace:
    """The trace of one micro-batch."""
    from wavecast.suite.decoders import gpt, llama

    make = functools.partial(
        llama if sizes.gated else gpt,
        sizes.micro_batch,
        sizes.precision,
        weights=sizes.weights,
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        ffn=sizes.ffn,
        vocab=sizes.vocab,
        seq=sizes.seq,
        recompute=sizes.recompute,
        fused_attention=sizes.fused_attention,
        tied=not sizes.gated,
        dropout=0.0 if sizes.fused_attention else 0.1,  # Megatron's default
        joint=sizes.joint,
        **dict(sizes.options),
    )
    trace = wavecast.trace(make, samples=sizes.micro_batch, gpu=sizes.gpu)
    assert isinstance(trace, Trace)
    return trace
