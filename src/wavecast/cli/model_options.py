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
        "seq": "hf, decoders: the number of tokens in a sequence.",
        "weights": "hf, decoders: store the weights as fp32 (default), bf16 or fp16.",
        "lora": "hf, decoders: train low-rank adapters only: r=16, or, for hf, "
        "r=16,alpha=32,dropout=0.05.",
        "targets": "hf, decoders: the layers that get adapters, as q_proj,v_proj, or all-linear "
        "for hf; peft's default, and for decoders query, key and value.",
        "qlora": "hf: store linear layers in 4 bits, and train adapters only.",
        "checkpointing": "hf, decoders: compute activations again in the backward pass.",
        "layers": "Decoders: the number of blocks.",
        "hidden": "Decoders: the width of the model.",
        "heads": "Decoders: the heads of attention.",
        "kv_heads": "Decoders: the heads of keys and values; by default as many.",
        "head_size": "Decoders: the width of a head; by default hidden / heads.",
        "ffn": "Decoders: the inner width of the feed-forward network, or of one expert; by "
        "default 4 x hidden.",
        "vocab": "Decoders: the number of words.",
        "experts": "mixtral: the experts of each block.",
        "top_k": "mixtral: the experts that each word goes to.",
        "shared_experts": "mixtral: experts that all words go to, too.",
        "dense_layers": "mixtral: the first blocks, without experts.",
        "dense_ffn": "mixtral: the inner width of blocks without experts.",
        "kv_rank": "mixtral: the rank of keys and values in DeepSeek's attention.",
        "q_rank": "mixtral: the rank of queries in DeepSeek's attention.",
    },
    "Models of Hugging Face, and decoders of any size (gpt, llama, mixtral)",
)
"""A decorator that gives a command the options of `ModelOptions`, as its parameter `options`."""
