"""The options of `hf:` targets and of decoders of any size, which several commands share."""

from __future__ import annotations

from wavecast.cli.option_groups import option_group
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS, ModelOptions

__all__ = ["NO_OPTIONS", "ModelOptions", "model_options"]

model_options = option_group(
    "options",
    ModelOptions,
    {
        "task": "hf: the task to train for; by default the one that the config names.",
        "seq": "hf, gpt, llama: the number of tokens in a sequence.",
        "weights": "hf, gpt, llama: store the weights as fp32 (default), bf16 or fp16.",
        "lora": "hf: train low-rank adapters only: r=16, or r=16,alpha=32,dropout=0.05.",
        "targets": "hf: the layers that get adapters, as q_proj,v_proj or all-linear; peft's "
        "default.",
        "qlora": "hf: store linear layers in 4 bits, and train adapters only.",
        "checkpointing": "hf, gpt, llama: compute activations again in the backward pass.",
        "layers": "gpt, llama: the number of blocks.",
        "hidden": "gpt, llama: the width of the model.",
        "heads": "gpt, llama: the heads of attention.",
        "kv_heads": "gpt, llama: the heads of keys and values; by default as many.",
        "ffn": "gpt, llama: the inner width of the feed-forward network; by default 4 x hidden.",
        "vocab": "gpt, llama: the number of words.",
    },
    "Models of Hugging Face, and GPT and Llama of any size",
)
"""A decorator that gives a command the options of `ModelOptions`, as its parameter `options`."""
