"""Tiny models of Hugging Face transformers, traced without changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import Step, minimize, names

from wavecast import ops
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Phase, Trace

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
TEXT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", {**SMALL, "intermediate_size": 64}),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**SMALL, "intermediate_size": 64}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            **{"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4},
            **{"vocab_size": 100, "decoder_start_token_id": 0, "pad_token_id": 0},
        },
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2, "pad_token_id": 0},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {
            **{**SMALL, "intermediate_size": 64, "num_key_value_heads": 2},
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0},
        },
    ),
}


def _trace(model: Any, inputs: dict[str, Any], dtype: Any) -> Trace:
    def make_step() -> Step:
        network = model().cuda().train()
        placed = {name: make().cuda() for name, make in inputs.items()}

        def loss() -> Any:
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                return network(**placed).loss

        return minimize(loss, torch.optim.AdamW(network.parameters(), fused=True))

    return capture(make_step)


def _build(architecture: str, configuration: str, options: dict[str, Any]) -> Any:
    config = getattr(transformers, configuration)(**options)
    return lambda: getattr(transformers, architecture)(config)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", TEXT)
def test_language_models_train(name: str, dtype: Any) -> None:
    tokens = lambda: torch.randint(5, 100, (2, 16))  # noqa: E731
    mask = lambda: torch.ones(2, 16, dtype=torch.long)  # noqa: E731
    inputs = {"input_ids": tokens, "labels": tokens, "attention_mask": mask}
    trace = _trace(_build(*TEXT[name]), inputs, dtype)
    assert {c.phase for c in trace} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert names(trace)["aten._fused_adamw_"] == 1
    assert not ops.totals(trace).unknown


def test_a_mixture_of_experts_multiplies_in_groups() -> None:
    tokens = lambda: torch.randint(5, 100, (2, 16))  # noqa: E731
    trace = _trace(_build(*TEXT["mixtral"]), {"input_ids": tokens, "labels": tokens}, None)
    grouped = [c for c in trace if c.op.base == "aten._grouped_mm"]
    assert grouped
    assert grouped[0].op.inputs[0].shape[0] == 2 * 16 * 2  # each token goes to two experts
    # One forward, one for the gradients of the weights (a product of two matrices whose terms are
    # divided among experts), and one for those of the tokens.
    forward = [c for c in grouped if c.phase is Phase.FORWARD]
    backward = [c for c in grouped if c.phase is Phase.BACKWARD]
    assert len(backward) == 2 * len(forward)
    of_weights = [c for c in backward if len(c.op.inputs[1].shape) == 2]
    assert len(of_weights) == len(forward)
    assert {c.op.outputs[0].shape for c in of_weights} == {
        (c.op.inputs[1].shape[0], c.op.inputs[1].shape[2], c.op.inputs[1].shape[1]) for c in forward
    }
    assert any("groups of grouped matmuls" in note for note in trace.notes)


def test_a_vision_transformer_trains() -> None:
    options = {**SMALL, "intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 4}
    del options["vocab_size"]
    images = lambda: torch.randn(2, 3, 32, 32)  # noqa: E731
    labels = lambda: torch.zeros(2, dtype=torch.long)  # noqa: E731
    build = _build("ViTForImageClassification", "ViTConfig", options)
    trace = _trace(build, {"pixel_values": images, "labels": labels}, torch.bfloat16)
    assert names(trace)["aten._scaled_dot_product_cudnn_attention"] == 2
    assert not ops.totals(trace).unknown


def test_gradient_checkpointing_of_a_library_runs_layers_again() -> None:
    def build() -> Any:
        model = _build(*TEXT["llama"])()
        model.gradient_checkpointing_enable()
        return model

    tokens = lambda: torch.randint(5, 100, (2, 16))  # noqa: E731
    inputs = {"input_ids": tokens, "labels": tokens}
    again = _trace(build, inputs, torch.bfloat16)
    plain = _trace(_build(*TEXT["llama"]), inputs, torch.bfloat16)
    attention = "aten._scaled_dot_product_cudnn_attention"
    assert names(again)[attention] == 2 * names(plain)[attention]


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "num_return_sequences": 2}])
def test_a_generation_with_an_end_token_runs_to_its_largest_length(options: dict[str, Any]) -> None:
    lengths = []

    def make_step() -> Step:
        architecture, configuration, sizes = TEXT["gpt2"]
        config = getattr(transformers, configuration)(**sizes, eos_token_id=5, pad_token_id=0)
        model = getattr(transformers, architecture)(config).cuda().eval()
        prompt = torch.randint(7, 100, (2, 8)).cuda()

        def step() -> None:
            with torch.no_grad():
                lengths.append(model.generate(prompt, max_new_tokens=4, **options).shape[1])

        return step

    trace = capture(make_step)
    assert set(lengths) == {12}
    assert "reads a GPU value" in trace.notes[0]
