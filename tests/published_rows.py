"""Rows of the public table of steps on several GPUs."""

from __future__ import annotations

from typing import Any

VTRAIN: dict[str, Any] = {
    # vTrain's validation set, data/ground_truth_single.csv, first line
    **dict.fromkeys(("kv_heads", "n_experts", "active_params_b", "shard_group", "offload")),
    **dict.fromkeys(("sequence_parallel", "compile", "interconnect_inter", "qc", "ep")),
    "source": "VIA-Research/vTrain",
    "framework": "Megatron-DeepSpeed",
    "task": "pretrain",
    "model": "GPT L24 H1024",
    "model_family": "GPT",
    "params_b": 0.35482112,
    "layers": 24,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "vocab": 50257,
    "seq_len": 1024,
    "gpu": "A100-SXM",
    "n_gpu": 2,
    "gpus_per_node": 8,
    "precision": "fp16",
    "strategy": "PP",
    "dp": 1,
    "zero_stage": "0",
    "tp": 1,
    "pp": 2,
    "cp": 1,
    "virtual_pp": 1,
    "micro_batch": 8,
    "grad_accum": 2,
    "global_batch": 16,
    "activation_checkpointing": "full",
    "flash_attention": False,
    "step_s": 0.372160408,
}
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
