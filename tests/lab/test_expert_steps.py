"""Published steps with mixtures of experts and adapters, rebuilt from the columns of a table."""

from __future__ import annotations

from typing import Any

import pytest
from published_rows import DEEPSEEK_V3, LORA, QWEN

from lab.measured.distributed_steps import NotRebuilt, completed, facts_of, parameters_of, rebuilt


def test_a_mixture_has_its_experts_its_heads_and_its_expert_ranks() -> None:
    step = rebuilt(QWEN)
    options = dict(step.sizes.options)
    assert (options["experts"], options["top_k"], options["head_size"]) == (128, 8, 128)
    assert (step.strategy.expert, step.strategy.data, step.strategy.shard) == (8, 8, 1)
    names = "fp8 fused_rotary fused_gates fused_experts dispatch_once cudnn_attention"
    assert step.strategy.habits == tuple(names.split())
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
    ],
)
def test_what_cannot_be_rebuilt_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotRebuilt, match=reason):
        rebuilt({**QWEN, **change})


@pytest.mark.parametrize(
    "gpu",
    [
        *("GB300", "B300", "H200", "MI300X", "MI325X", "L4", "L40S-48GB", "A30", "GB200", "GH200"),
        *("H200-SXM-141GB", "L40S", "A30-24GB"),
    ],
)
@pytest.mark.parametrize("row", [QWEN, LORA], ids=["mixture", "LoRA"])
def test_rows_of_other_gpus_are_rebuilt(row: dict[str, Any], gpu: str) -> None:
    step = rebuilt({**row, "gpu": gpu})
    assert step.cluster.gpus_per_node <= 8
    assert step.strategy.gpus == 8
