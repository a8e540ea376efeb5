"""Published steps with mixtures of experts and adapters, rebuilt from the columns of a table."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import wavecast
from lab.measured.distributed_steps import NotRebuilt, rebuilt
from lab.measured.eight_bits import in_eight_bits
from lab.measured.expert_kernels import Routes, with_megatron_kernels, with_words_sent_once
from lab.measured.expert_steps import completed
from lab.measured.model_facts import facts_of, parameters_of
from wavecast import ops
from wavecast.hardware.clusters import cluster
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Call, Trace

QWEN: dict[str, Any] = {
    # Megatron-Bridge, docs/performance-summary-archive.md, line 247 (container 26.04.01)
    **dict.fromkeys(("shard_group", "activation_checkpointing", "compile", "offload", "notes")),
    **dict.fromkeys(("interconnect_inter", "qc")),
    **{"source": "NVIDIA-NeMo/Megatron-Bridge", "framework": "Megatron-Bridge (Megatron-Core)"},
    **{"task": "pretrain", "model": "Qwen3-30B-A3B", "model_family": "Qwen3"},
    **{"params_b": 30.5, "active_params_b": 3.3, "layers": 48, "hidden": 2048, "heads": 32},
    **{"kv_heads": 4, "ffn": 768, "vocab": 151936, "n_experts": 128, "top_k": 8, "seq_len": 4096},
    **{"gpu": "B200", "n_gpu": 8, "gpus_per_node": 8, "precision": "mxfp8", "strategy": "ZeRO1+EP"},
    **{"dp": 8, "zero_stage": "1", "tp": 1, "pp": 1, "cp": 1, "ep": 8, "virtual_pp": 1},
    **{"sequence_parallel": False, "micro_batch": 4, "grad_accum": 16, "global_batch": 512},
    **{"flash_attention": True, "step_s": 9.66037736},
}
LORA: dict[str, Any] = {
    # dgxc-benchmarking, llama3/finetuning/README_70b.md, line 59
    **QWEN,
    **dict.fromkeys(("n_experts", "top_k", "active_params_b", "micro_batch", "grad_accum", "ep")),
    **{"source": "NVIDIA/dgxc-benchmarking", "framework": "NeMo (Megatron-Core)", "task": "lora"},
    **{"model": "Llama-3-70B", "model_family": "llama3", "params_b": 70.55, "layers": 80},
    **{"hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256},
    **{"gpu": "H100-SXM-80GB", "precision": "bf16", "strategy": "TP+PP", "dp": 1, "tp": 2},
    **{"pp": 4, "virtual_pp": 20, "sequence_parallel": None, "global_batch": 32, "step_s": 9.118},
}
DEEPSEEK_V3: dict[str, Any] = {
    **QWEN,
    **{"model": "DeepSeek-V3", "params_b": 671.0, "layers": 61, "hidden": 7168, "heads": 128},
    **{"kv_heads": None, "ffn": 2048, "vocab": 129280, "n_experts": 256},
}


def test_a_mixture_has_its_experts_its_heads_and_its_expert_ranks() -> None:
    step = rebuilt(QWEN)
    options = dict(step.sizes.options)
    assert (options["experts"], options["top_k"], options["head_size"]) == (128, 8, 128)
    assert (step.strategy.expert, step.strategy.data, step.strategy.shard) == (8, 8, 1)
    assert step.eight_bits
    assert step.sizes.gated


def test_facts_that_a_table_lacks_give_the_published_parameters() -> None:
    assert parameters_of(QWEN, facts_of("Qwen3-30B-A3B")) == pytest.approx(30.5e9, rel=0.01)
    assert parameters_of(DEEPSEEK_V3, facts_of("DeepSeek-V3")) == pytest.approx(671e9, rel=0.01)
    options = dict(rebuilt(DEEPSEEK_V3).sizes.options)
    assert (options["kv_rank"], options["q_rank"], options["shared_experts"]) == (512, 1536, 1)
    assert options["dense_layers"] == 1  # of three: the middle one of the traced blocks is repeated


def test_adapters_take_the_micro_batch_of_nemos_recipes() -> None:
    step = rebuilt(LORA)
    assert (step.sizes.micro_batch, step.strategy.microbatches) == (1, 32)
    assert dict(step.sizes.options)["lora"] == 8
    assert step.strategy.sequence


def test_the_micro_batches_of_a_log_are_read() -> None:
    row = {**LORA, "framework": "PyTorch", "notes": "log gradient_accumulation_steps=8"}
    filled = completed({**row, "dp": 2})
    assert (filled["micro_batch"], filled["grad_accum"]) == (2, 8)
    assert completed({**row, "notes": None})["micro_batch"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_experts": 64}, "sizes miss its parameters"),
        ({"top_k": None}, "experts of a word are not stated"),
        ({"model": "Qwen3-Next-80B-A3B"}, "layers other than attention"),
        ({"model": "other", "params_b": None, "hidden": 2050}, "size that is not stated"),
        ({"ep": 3}, "does not divide data x tensor"),
        ({"gpu": "B999"}, "the GPU is not known"),
        ({"gpu": "GH200"}, "usual machine of gh200"),
    ],
)
def test_what_cannot_be_rebuilt_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotRebuilt, match=reason):
        rebuilt({**QWEN, **change})


@pytest.mark.parametrize(
    "gpu",
    [
        *("GB300", "B300", "H200", "MI300X", "MI325X", "L4", "L40S-48GB", "A30", "GB200"),
        *("H200-SXM-141GB", "L40S", "A30-24GB"),
    ],
)
@pytest.mark.parametrize("row", [QWEN, LORA], ids=["mixture", "LoRA"])
def test_rows_of_other_gpus_are_rebuilt(row: dict[str, Any], gpu: str) -> None:
    step = rebuilt({**row, "gpu": gpu})
    assert step.cluster.gpus_per_node <= 8
    assert step.strategy.gpus == 8


def _small() -> Trace:
    from wavecast.suite.decoders import mixtral

    sizes = {"layers": 2, "hidden": 80, "heads": 5, "kv_heads": 5, "ffn": 56, "seq": 16}
    more = {"vocab": 160, "experts": 8, "top_k": 2, "weights": "bf16"}
    return wavecast.trace(partial(mixtral, 3, "bf16", **sizes, **more))


@pytest.fixture(scope="module")
def step() -> ParallelStep:
    return spread(_small(), Parallel(data=16, expert=8))


def _exchanges(step: ParallelStep) -> list[Call]:
    last = step.groups[0].parts[0].last
    return [c for c in last if c.op.name == "nccl.all_to_all" and len(c.op.inputs[0].shape) == 2]


def test_a_word_meets_its_ranks_once() -> None:
    routes = Routes(experts=8, top_k=2, ranks=8, machines=2)
    assert routes.met(8) == pytest.approx(2)  # one expert on each rank
    assert routes.met(1) == 1
    assert routes.met(2) == pytest.approx(2 * (1 - 4 * 3 / (8 * 7)))


def test_words_go_to_a_machine_once_and_are_permuted_once(step: ParallelStep) -> None:
    inside = with_words_sent_once(step, cluster("dgx-h100"), experts=8, top_k=2)
    sent = 3 * 16 * 2
    assert {c.op.inputs[0].shape for c in _exchanges(inside)} == {(sent, 80)}
    assert len(_exchanges(inside)) == len(_exchanges(step)) == 8
    small = cluster("dgx-h100").with_gpus_per_node(4)
    network = _exchanges(with_words_sent_once(step, small, experts=8, top_k=2))
    met = 2 * (1 - 4 * 3 / (8 * 7))
    assert {c.op.inputs[0].shape for c in network} == {(round(3 * 16 * met), 80)}
    assert {(c.op.attr("ranks"), c.op.attr("stride")) for c in network} == {(2, 4)}

    def sorts(one: ParallelStep) -> int:
        return sum(c.op.name == "aten.index.Tensor" for c in one.groups[0].parts[0].last)

    assert (sorts(step), sorts(inside)) == (8, 0)


def test_gates_and_combinations_are_one_kernel_each(step: ParallelStep) -> None:
    made = with_megatron_kernels(step)
    for name in ("activation", "combine"):
        calls = [
            c
            for c in made.groups[0].parts[0].last
            if c.module.endswith(f"blocks.1.feed_forward.{name}")
            or c.module.endswith(f"blocks.1.feed_forward.experts.{name}")
        ]
        assert len([c for c in calls if ops.launches(c.op)]) == 2  # forward and backward


def test_products_of_experts_are_in_8_bits(step: ParallelStep) -> None:
    whole, made = (one.groups[0].parts[0].last for one in (step, in_eight_bits(step)))

    def of(trace: Trace, name: str) -> list[float]:
        return [ops.executed_flops(c.op) or 0 for c in trace if c.op.base == name]

    assert of(made, "aten._grouped_mm") == []
    assert of(made, "aten._scaled_grouped_mm") == of(whole, "aten._grouped_mm")
