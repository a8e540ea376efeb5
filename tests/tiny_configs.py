"""Configs of models that are small enough to be traced in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
BERT = {
    "model_type": "bert",
    **SMALL,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "architectures": ["BertForMaskedLM"],
}
LLAMA = {
    "model_type": "llama",
    **SMALL,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    **{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 100},
    "architectures": ["GPT2LMHeadModel"],
}
T5 = {
    "model_type": "t5",
    **{"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 100},
    **{"decoder_start_token_id": 0, "pad_token_id": 0, "relative_attention_num_buckets": 32},
    "architectures": ["T5ForConditionalGeneration"],
}
VIT = {
    "model_type": "vit",
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 64, "image_size": 32, "patch_size": 8},
    "architectures": ["ViTForImageClassification"],
}
WHISPER = {
    "model_type": "whisper",
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 100},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8},
    **{"max_source_positions": 20, "max_target_positions": 64},
    **{"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0},
    "architectures": ["WhisperForConditionalGeneration"],
}
UNET = {
    "_class_name": "UNet2DConditionModel",
    **{"sample_size": 16, "in_channels": 4, "out_channels": 4, "block_out_channels": [32, 64]},
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    **{"cross_attention_dim": 32, "attention_head_dim": 8, "layers_per_block": 1},
    **{"addition_embed_type": "text_time", "addition_time_embed_dim": 8},
    "projection_class_embeddings_input_dim": 6 * 8 + 24,
}


def written(folder: Path, config: dict[str, Any], **changes: Any) -> str:
    """The path of a config file with some values changed."""
    path = folder / "config.json"
    path.write_text(json.dumps(config | changes), encoding="utf-8")
    return str(path)
