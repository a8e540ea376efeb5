"""Reading prompts and decoding with models of Hugging Face, against what transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_configs as tiny
import torch

import wavecast
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.inference import make_step
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of
from wavecast.frameworks.pytorch.huggingface.tasks import INFERENCE
from wavecast.traces.step import Phase, Trace

pytest.importorskip("transformers")


@pytest.fixture
def config(tmp_path: Path) -> str:
    return tiny.written(tmp_path, tiny.LLAMA)


def trace_of(config: str, task: str, batch: int, seq: int) -> Trace:
    recipe = recipe_of(config, batch, None, ModelOptions(task=task, seq=seq))
    return wavecast.trace(lambda: make_step(recipe), samples=recipe.samples)


def test_decoding_reads_the_cache_and_counts_new_tokens_only(config: str) -> None:
    prompts, one = (trace_of(config, task, 2, 16) for task in INFERENCE)
    assert (prompts.samples, one.samples) == (32, 2)
    for trace in (prompts, one):
        assert {call.phase for call in trace} <= {Phase.FORWARD, Phase.OTHER}
    joined = [call.op.outputs[0].shape for call in one if call.op.name == "aten.cat"]
    assert any(shape[-2] == 17 for shape in joined if len(shape) == 4)


def test_a_longer_cache_needs_more_memory(config: str) -> None:
    def peak(seq: int) -> int:
        found = wavecast.predict(trace_of(config, "decode", 2, seq), "l4").memory
        assert found is not None
        return found.peak_bytes

    assert peak(60) > peak(4)


@pytest.mark.parametrize("task", INFERENCE)
def test_the_next_token_is_that_of_the_model(task: str, config: str) -> None:
    recipe = recipe_of(config, 2, None, ModelOptions(task=task, seq=8, weights="fp32"))
    step = make_step(recipe, "cpu")
    first, second = step(), step()
    assert first.shape == (2,)
    assert torch.equal(first, second)


@pytest.mark.parametrize("options", [{"lora": "r=4"}, {"checkpointing": True}])
def test_options_of_training_are_refused(options: dict[str, Any], config: str) -> None:
    recipe = recipe_of(config, 1, None, ModelOptions(task="decode", **options))
    with pytest.raises(InvalidInput, match="runs the model only"):
        make_step(recipe, "cpu")
