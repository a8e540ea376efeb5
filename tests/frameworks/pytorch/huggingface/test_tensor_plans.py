"""The tensor-parallel plans of Hugging Face's models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_configs
from parallel.traced_models import collectives, traced

from wavecast.frameworks.pytorch.huggingface.training import tensor_plan_of
from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Phase


def test_the_plan_of_a_model_and_its_head(tmp_path: Path, transformers: Any) -> None:
    plan = tensor_plan_of(tiny_configs.written(tmp_path, tiny_configs.LLAMA))
    assert plan is not None
    assert plan["layers.*.self_attn.q_proj"] == "colwise"
    assert plan["layers.*.mlp.down_proj"] == "rowwise"
    assert plan["lm_head"] == "colwise_gather_output"


def test_a_model_without_a_plan_has_none(tmp_path: Path, transformers: Any) -> None:
    assert tensor_plan_of(tiny_configs.written(tmp_path, tiny_configs.GPT2)) is None


def test_the_plan_fits_the_trace(tmp_path: Path, transformers: Any) -> None:
    plan = tensor_plan_of(tiny_configs.written(tmp_path, tiny_configs.LLAMA))
    sharded, notes = with_layers_sharded(traced("LLAMA"), Parallel(tensor=2, tensor_plan=plan))
    assert notes == ("tensor parallel as in the given plan: 15 matmuls are sharded",)
    logits = [c for c in collectives(sharded) if c.module.endswith("lm_head")]
    assert [(c.op.name, c.phase) for c in logits] == [
        ("nccl.all_gather", Phase.FORWARD),
        ("nccl.all_reduce", Phase.BACKWARD),
    ]
    assert logits[0].op.inputs[0].shape == (3, 16, 50)
    assert logits[0].op.outputs[0].shape == (3, 16, 100)
