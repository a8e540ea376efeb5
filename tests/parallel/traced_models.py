"""Traces of small models of the suite and of Hugging Face, made once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import tiny_configs
from small_models import SMALL

import wavecast
from wavecast import ops
from wavecast.suite import benchmark
from wavecast.traces.step import Call, Role, Trace

SUITE = ("gpt2", "llama-1b", "bert-base", "vit")
HUGGING_FACE = ("LLAMA", "GPT2", "BERT", "VIT", "T5")
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")


MIXTRAL = {
    "model_type": "mixtral",
    **tiny_configs.SMALL,
    **{"num_key_value_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64},
    **{"num_local_experts": 4, "num_experts_per_tok": 2},
    "architectures": ["MixtralForCausalLM"],
}


@cache
def traced(name: str, precision: str = "fp32") -> Trace:
    if name == "MIXTRAL":  # grouped products are for bfloat16
        return traced_config(MIXTRAL, "bfloat16 weights")
    if name in HUGGING_FACE:
        return traced_config(getattr(tiny_configs, name), precision)
    sizes = SMALL[name]
    return wavecast.trace(lambda: benchmark(name).make_step(3, precision, device="cuda", **sizes))


def traced_config(config: dict[str, Any], precision: str) -> Trace:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def make_step() -> Any:
        values = {key: value for key, value in config.items() if key != "architectures"}
        if values["model_type"] == "gpt2":
            values |= {"bos_token_id": 0, "eos_token_id": 0}
        made = transformers.AutoConfig.for_model(**values)
        model = getattr(transformers, config["architectures"][0])(made).cuda().train()
        if precision == "bfloat16 weights":
            model = model.bfloat16()
        optimizer = torch.optim.AdamW(model.parameters())
        if values["model_type"] == "vit":
            inputs = {"pixel_values": torch.randn(3, 3, 32, 32, device="cuda")}
            inputs["labels"] = torch.zeros(3, dtype=torch.long, device="cuda")
        else:
            words = torch.zeros(3, 16, dtype=torch.long, device="cuda")
            inputs = {"input_ids": words, "labels": words}

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**inputs).loss
            loss.backward()
            optimizer.step()

        return step

    return wavecast.trace(make_step)


def flops(call: Call) -> float:
    return ops.executed_flops(call.op) or 0.0


def is_product(call: Call) -> bool:
    return call.op.base in PRODUCTS or "attention" in call.op.base


def computed(trace: Trace) -> list[Call]:
    """The calls but for collectives and waits."""
    return [call for call in trace if not call.op.name.startswith(("nccl.", "cuda."))]


def collectives(trace: Trace) -> list[Call]:
    return [call for call in trace if call.op.name.startswith("nccl.")]


def held(trace: Trace, role: Role) -> int:
    """The bytes of a role, without weights that are gathered for a while."""
    own = (a for a in trace.allocations if a.role is role)
    return sum(a.nbytes for a in own if role is not Role.PARAMETER or a.born is None)
