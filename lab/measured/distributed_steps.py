"""Measured steps on several GPUs, rebuilt from the columns of a public table.

Each row of `distributed/steps.parquet` gives a model's sizes, a strategy and a cluster. What a row
does not say is taken from the defaults of its framework; what cannot be rebuilt is named.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import wavecast
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


# Rows with mixtures of experts or adapters: options of their decoders, and what rows leave out.
#
# What a row does not state is filled in where its framework has a default, and the rest is
# refused.


NEMO = re.compile(r"nemo|megatron-bridge", re.IGNORECASE)
"""Frameworks whose recipes have micro-batches of one sequence unless they say otherwise."""
RANK = 8
"""The rank of adapters in NeMo's recipes for benchmarks."""
_ADAPTED = ("query", "key", "value")
"""The layers with adapters in NeMo's recipes for benchmarks (`linear_qkv`)."""
_ACCUMULATED = re.compile(r"gradient_accumulation_steps=(\d+)")


class NotExpressible(Exception):
    """A model that the suite's decoders cannot be; the message says why."""


def completed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with its micro-batches, where they follow from a log or from NeMo's recipes.

    MLPerf's logs state the micro-batches of a step. NeMo's recipes for fine-tuning have
    micro-batches of one sequence.
    """
    if row["micro_batch"] is not None or None in (row["dp"], row["global_batch"]):
        return row
    logged = _ACCUMULATED.search(str(row.get("notes") or ""))
    if logged is not None:
        count = int(logged[1])
    elif NEMO.search(str(row["framework"])):
        count = int(row["global_batch"]) // int(row["dp"])
    else:
        return row
    samples, rest = divmod(int(row["global_batch"]), int(row["dp"]) * count)
    return {**row, "micro_batch": samples, "grad_accum": count} if samples and not rest else row


def is_mixture(row: Mapping[str, Any]) -> bool:
    """Whether a row's model has experts."""
    return (row["n_experts"] or 1) > 1


def kind_of(row: Mapping[str, Any]) -> str:
    """What kind of training a row is, for tables."""
    if is_mixture(row):
        return "mixture of experts"
    return "LoRA" if row["task"] == "lora" else "dense"


def decoder_options(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a row's decoder, beside its plain sizes.

    Raises:
        NotExpressible: the model has other layers, or misses the stated number of parameters.
    """
    options: dict[str, Any] = {}
    if row["task"] == "lora":
        options |= {"lora": RANK, "adapted": _ADAPTED}
    if not is_mixture(row):
        return tuple(options.items())
    model = str(row["model"])
    facts = facts_of(model)
    if has_other_layers(model):
        raise NotExpressible("a mixture of experts with layers other than attention")
    if row["top_k"] is None:
        raise NotExpressible("a mixture of experts whose experts of a word are not stated")
    if facts.head_size is None and int(row["hidden"]) % int(row["heads"]):
        raise NotExpressible("a mixture of experts whose heads have a size that is not stated")
    if row["params_b"] is not None:
        parameters = parameters_of(row, facts)
        if abs(parameters / (1e9 * row["params_b"]) - 1) > TOLERANCE:
            raise NotExpressible("a mixture of experts whose sizes miss its parameters")
    options |= facts.options()
    # The middle one of three traced blocks is repeated, so at most the first one is dense.
    options["dense_layers"] = min(facts.dense_layers, 1)
    return tuple({**options, "experts": int(row["n_experts"]), "top_k": int(row["top_k"])}.items())


# What public configurations say about models, beside the columns of a table of measured steps.
#
# A table names the layers, widths, heads and experts. The size of a head, experts that all words
# go to, blocks without experts and the ranks of DeepSeek's attention are from the `config.json` of
# the models on Hugging Face. The number of parameters that the table states is the check: a model
# that misses it is not rebuilt.


TOLERANCE = 0.05
"""How far the number of parameters may be from the stated one."""


@dataclass(frozen=True)
class ModelFacts:
    """Sizes that a table does not state. They are options of `wavecast.suite.decoders`."""

    head_size: int | None = None
    shared_experts: int = 0
    dense_layers: int = 0
    dense_ffn: int | None = None
    kv_rank: int = 0
    q_rank: int = 0

    def options(self) -> dict[str, Any]:
        """The sizes that differ from the decoder's defaults."""
        return {name: value for name, value in asdict(self).items() if value}


_DEEPSEEK = {"head_size": 128, "kv_rank": 512}
_FACTS: tuple[tuple[str, ModelFacts], ...] = (
    (r"qwen-?3", ModelFacts(head_size=128)),
    (r"gpt-?oss", ModelFacts(head_size=64)),
    (
        r"deepseek-?v2-?lite",
        ModelFacts(**_DEEPSEEK, shared_experts=2, dense_layers=1, dense_ffn=10_944),
    ),
    (
        r"deepseek-?v2",
        ModelFacts(**_DEEPSEEK, q_rank=1536, shared_experts=2, dense_layers=1, dense_ffn=12_288),
    ),
    (
        r"deepseek-?(v3|r1)",
        ModelFacts(**_DEEPSEEK, q_rank=1536, shared_experts=1, dense_layers=3, dense_ffn=18_432),
    ),
    (
        r"kimi-?k2",
        ModelFacts(**_DEEPSEEK, q_rank=1536, shared_experts=1, dense_layers=1, dense_ffn=18_432),
    ),
    (
        r"deepseek-?moe",
        ModelFacts(shared_experts=2, dense_layers=1, dense_ffn=10_944),
    ),
    (r"llama-?4-?scout", ModelFacts(shared_experts=1)),
)
_OTHER_LAYERS = re.compile(r"mamba|jamba|qwen3-?next|nemotron-?(h|3)\b|-h-", re.IGNORECASE)


def facts_of(model: str) -> ModelFacts:
    """What is known about a model, by its name; nothing for others."""
    matches = (facts for name, facts in _FACTS if re.search(name, model, re.IGNORECASE))
    return next(matches, ModelFacts())


def has_other_layers(model: str) -> bool:
    """Whether a model has layers other than attention, such as state spaces."""
    return _OTHER_LAYERS.search(model) is not None


def parameters_of(row: Mapping[str, Any], facts: ModelFacts) -> float:
    """The parameters of a mixture of experts, its embeddings not tied."""
    hidden, layers, ffn = int(row["hidden"]), int(row["layers"]), int(row["ffn"])
    heads = int(row["heads"])
    size = facts.head_size or hidden // heads
    if facts.kv_rank:
        turned = size // 2
        queries = (facts.q_rank or hidden) * heads * (size + turned) + hidden * facts.q_rank
        narrow = hidden * (facts.kv_rank + turned) + facts.kv_rank * heads * 2 * size
        attention = queries + narrow + heads * size * hidden
    else:
        attention = 2 * hidden * size * (heads + int(row["kv_heads"] or heads))
    experts = int(row["n_experts"])
    mixture = hidden * experts + 3 * hidden * ffn * (experts + facts.shared_experts)
    usual = (int(row["top_k"] or 1) + facts.shared_experts) * ffn
    dense = 3 * hidden * (facts.dense_ffn or usual)
    blocks = (layers - facts.dense_layers) * mixture + facts.dense_layers * dense
    return float(layers * attention + blocks + 2 * int(row["vocab"]) * hidden)


# The command with which a user predicts a published step.


def command_of(step: MeasuredStep) -> str | None:
    """The command, in one line; None if the row's cluster is not the GPU's usual machine."""
    if step.cluster != usual_cluster(step.device):
        return None
    options = " ".join(_options(step.sizes))
    name = "mixtral" if _options_of(step.sizes).get("experts") else _plain_name(step.sizes)
    return (
        f"wavecast predict {name} {options} --gpu {step.device.id} "
        f"--parallel {strategy_text(step.strategy)}"
    )


def strategy_text(strategy: Parallel) -> str:
    """A strategy as `--parallel` takes it."""
    given = []
    for field in fields(Parallel):
        value = getattr(strategy, field.name)
        if value != field.default:
            given.append(field.name if value is True else f"{field.name}={value}")
    return ",".join(given)


def _plain_name(sizes: Sizes) -> str:
    return "llama" if sizes.gated else "gpt"


def _options_of(sizes: Sizes) -> dict[str, Any]:
    return dict(sizes.options)


def _options(sizes: Sizes) -> list[str]:
    more = _options_of(sizes)
    given: dict[str, Any] = {
        "batch": sizes.micro_batch,
        "precision": sizes.precision,
        "weights": sizes.weights,
        "layers": sizes.layers,
        "hidden": sizes.hidden,
        "heads": sizes.heads,
        "kv-heads": sizes.kv_heads,
        "ffn": sizes.ffn,
        "vocab": sizes.vocab,
        "seq": sizes.seq,
    }
    if more.get("lora"):
        given |= {"lora": f"r={more.pop('lora')}", "targets": ",".join(more.pop("adapted"))}
    given |= {name.replace("_", "-"): value for name, value in more.items() if value}
    if sizes.recompute != "none":
        given["recompute"] = sizes.recompute
    switches = ["--unfused-attention"] * (not sizes.fused_attention)
    switches += ["--joint"] * sizes.joint
    switches += ["--untied"] * (sizes.gated and not more.get("experts"))
    return [*(f"--{name} {value}" for name, value in given.items()), *switches]
