"""Reading prompts and decoding with models of Hugging Face, against what transformers does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny_configs as tiny
import torch

import wavecast
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.inference import make_step
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.frameworks.pytorch.huggingface.recipes import INFERENCE, recipe_of
from wavecast.targets.sources import generations, target_source
from wavecast.targets.targets import resolve
from wavecast.traces.step import Op, Phase, Trace

pytest.importorskip("transformers")


@pytest.fixture
def config(tmp_path: Path) -> str:
    return tiny.written(tmp_path, tiny.LLAMA)


def trace_of(config: str, task: str, batch: int, seq: int, **options: Any) -> Trace:
    recipe = recipe_of(config, batch, None, ModelOptions(task=task, seq=seq, **options))
    return wavecast.trace(lambda: make_step(recipe), samples=recipe.samples)


def test_decoding_reads_the_cache_and_counts_new_tokens_only(config: str) -> None:
    prompts, token = (trace_of(config, task, 2, 16) for task in INFERENCE)
    assert (prompts.samples, token.samples) == (32, 2)
    for trace in (prompts, token):
        assert {call.phase for call in trace} <= {Phase.FORWARD, Phase.OTHER}
    joined = [call.op.outputs[0].shape for call in token if call.op.name == "aten.cat"]
    assert any(shape[-2] == 17 for shape in joined if len(shape) == 4)


def test_a_growing_cache_is_contiguous_before_every_token(config: str) -> None:
    trace = trace_of(config, "decode", 2, 16)
    kept = [call.op.inputs[0] for call in trace if call.op.outputs[:1] and _grows(call.op)]
    assert len(kept) == 2 * 2  # keys and values of two layers
    assert all(tensor.strides is None for tensor in kept)


def _grows(op: Op) -> bool:
    return op.base == "aten.cat" and op.outputs[0].shape[-2:-1] == (17,)


def test_a_longer_cache_needs_more_memory(config: str) -> None:
    def peak(seq: int) -> int:
        memory = wavecast.predict(trace_of(config, "decode", 2, seq), "l4").memory
        assert memory is not None
        return memory.peak_bytes

    assert peak(60) > peak(4)


def test_a_static_cache_is_written_in_place(config: str) -> None:
    names = [call.op.base for call in trace_of(config, "decode", 2, 16, cache="static")]
    assert names.count("aten.index_copy_") == 2 * 2  # two layers


def test_what_serving_takes_is_said_beside_the_step(config: str) -> None:
    options = ModelOptions(task="decode", seq=16)
    target = resolve(f"hf:{config}", 3, None, options)
    source = target_source(target)
    row = wavecast.predict(source.on(wavecast.device("l4")), "l4")
    (generation,) = generations(target, source, [row])
    held = make_step(recipe_of(config, 3, None, options), "cpu").cache
    assert generation.cache_bytes == sum(x.nbytes for k in held.layers for x in (k.keys, k.values))
    assert generation.token_s == row.seconds
    assert generation.first_token_s is None
    assert generation.tokens_per_s == pytest.approx(3 / row.seconds)
    limits = wavecast.max_batch(lambda b: make_step(recipe_of(config, b, None, options)), "l4")
    assert generation.largest_batch == pytest.approx(limits.batch, rel=0.02)
    many = generations(target, source, [row] * 5)
    assert {serving.largest_batch for serving in many} == {None}


def test_a_full_window_is_as_long_with_every_token(tmp_path: Path) -> None:
    config = tiny.written(tmp_path, tiny.LLAMA | {"model_type": "mistral", "sliding_window": 4})
    step = make_step(recipe_of(config, 1, None, ModelOptions(task="decode", seq=8)), "cpu")
    for _ in range(2):
        step()
        assert {layer.keys.shape[-2] for layer in step.cache.layers} == {3}
        assert step.cache.get_seq_length() == 8


@pytest.mark.parametrize(("weights", "op"), [("nf4", "gemm_4bit"), ("int8", "int8_linear_matmul")])
def test_quantized_layers_are_those_of_bitsandbytes(weights: str, op: str, config: str) -> None:
    pytest.importorskip("bitsandbytes")
    plain = trace_of(config, "decode", 1, 8)
    trace = trace_of(config, "decode", 1, 8, quantize=weights)
    matmuls = sum(call.op.base == "aten.mm" for call in plain)
    assert sum(call.op.base == f"bitsandbytes.{op}" for call in trace) == matmuls - 1  # lm_head


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "static"}, "task decode"),
        ({"task": "decode", "cache": "paged"}, "unknown cache"),
        ({"task": "decode", "seq": 4, "context": 4}, "another name"),
        ({"task": "decode", "quantize": "int3"}, "known: int8, nf4"),
        ({"task": "causal-lm", "quantize": "nf4"}, "for --task prefill"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], message: str, config: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        recipe_of(config, 1, None, ModelOptions(**options))


@pytest.mark.parametrize("task", INFERENCE)
def test_the_next_token_is_that_of_the_model(task: str, config: str) -> None:
    recipe = recipe_of(config, 2, None, ModelOptions(task=task, seq=8, weights="fp32"))
    step = make_step(recipe, "cpu")
    kept = copy.deepcopy(step.cache)  # each call leaves the cache as long as it was, not as full
    with torch.no_grad():
        logits = step.model(step.tokens, past_key_values=kept, use_cache=True).logits
    assert torch.equal(step(), logits[:, -1].argmax(-1))
    assert step().shape == (2,)


@pytest.mark.parametrize("options", [{"lora": "r=4"}, {"checkpointing": True}])
def test_options_of_training_are_refused(options: dict[str, Any], config: str) -> None:
    recipe = recipe_of(config, 1, None, ModelOptions(task="decode", **options))
    with pytest.raises(InvalidInput, match="runs the model only"):
        make_step(recipe, "cpu")
