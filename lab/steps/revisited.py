"""Steps of which measurements kept apart said that they were predicted badly, made again.

The issue that named them gave models and errors, not batches or sizes: these are ours. Models of
timm are those of the first blind test that were furthest off. `lab.collect.step_times` measures
them; no fit reads them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from lab.steps.compiled import (
    DEFAULT,
    DEVICE,
    EAGER,
    CompiledStep,
    Make,
    Step,
    images,
    of_suite,
    pictures_to_pictures,
    recurrent,
    sequence,
    trained,
    vision,
)
from lab.steps.hand_written import Messages, NewtonSchulz, PlainLlama, RotaryNet, adapt
from lab.steps.host_steps import Settings, of_transformers, pictures, tokens
from lab.steps.libraries import import_timm, import_torchvision

_SIZES = {"vocab_size": 32_000, "hidden_size": 1024, "num_attention_heads": 16,
          "num_key_value_heads": 8, "intermediate_size": 2816, "pad_token_id": 0}  # fmt: skip
_WHOLE = {"dtype": torch.bfloat16, "optimizer": "fused", "clip": 1.0}
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj")


def timm(name: str, batch: int, precision: str, **options: Any) -> Make:
    """A classifier of timm, to be made in any way."""
    options = {"optimizer": "adamw", **options}
    build = lambda: import_timm().create_model(name)  # noqa: E731
    return lambda how: images(build, batch, precision, how, **options)


def _segmented(how: str) -> Step:
    with torch.device(DEVICE):
        model = import_torchvision().models.get_model(
            "deeplabv3_resnet50", weights=None, weights_backbone=None, num_classes=21
        )
        seen, labels = torch.randn(8, 3, 512, 512), torch.randint(0, 21, (8, 512, 512))
    return trained(model, lambda m: F.cross_entropy(m(seen)["out"], labels), how, "bf16")


def _filmed(how: str) -> Step:
    with torch.device(DEVICE):
        model = import_torchvision().models.get_model("r2plus1d_18", weights=None)
        seen, labels = torch.randn(8, 3, 16, 112, 112), torch.randint(0, 400, (8,))
    return trained(model, lambda m: F.cross_entropy(m(seen), labels), how, "bf16")


def _messages(how: str) -> Step:
    with torch.device(DEVICE):
        model = Messages(128, 4)
        nodes, edges = torch.randn(100_000, 64), torch.randint(0, 100_000, (2, 1_000_000))
        labels = torch.randint(0, 40, (100_000,))
    return trained(model, lambda m: F.cross_entropy(m(nodes, edges), labels), how, "fp32")


def _geometric(how: str) -> Step:
    from torch_geometric.nn import GATConv  # type: ignore[import-not-found]

    class GraphAttention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GATConv(128, 64, heads=4), GATConv(256, 40, heads=1)

        def forward(self, x: Any, edges: Any) -> Any:
            return self.second(F.dropout(F.elu(self.first(x, edges)), 0.5), edges)

    with torch.device(DEVICE):
        model = GraphAttention()
        nodes, edges = torch.randn(100_000, 128), torch.randint(0, 100_000, (2, 1_000_000))
        labels = torch.randint(0, 40, (100_000,))
    return trained(model, lambda m: F.cross_entropy(m(nodes, edges), labels), how, "fp32")


def _llama(layers: int, batch: int, length: int) -> Make:
    build = partial(PlainLlama, layers, 768, 2048, 12, 32_000)
    return lambda how: sequence(build, batch, length, 32_000, "bf16", how, optimizer="fused")


def _newton(how: str) -> Step:
    build = partial(PlainLlama, 4, 1024, 2816, 16, 32_000)
    step = sequence(build, 4, 1024, 32_000, "bf16", how)
    step.optimizer = NewtonSchulz(step.optimizer.param_groups[0]["params"])  # type: ignore[attr-defined]
    return step


def _rotary(how: str) -> Step:
    return sequence(partial(RotaryNet, 4, 1024, 16, 32_000), 4, 1024, 32_000, "bf16", how)


def _causal(name: str, config: str, layers: int, precision: str = "fp32", **o: Any) -> Make:
    more = o.pop("more", {})
    settings: Settings = lambda t: getattr(t, config)(num_hidden_layers=layers, **_SIZES, **more)  # noqa: E731
    return of_transformers(name, settings, lambda: tokens(4, 1024), precision, **o)


def _scenes() -> dict[str, Any]:
    return {"pixel_values": torch.randn(8, 3, 512, 512),
            "labels": torch.randint(0, 150, (8, 512, 512))}  # fmt: skip


def _spoken() -> dict[str, Any]:
    return {"input_values": torch.randn(8, 160_000), "labels": torch.randint(1, 30, (8, 40))}


def _conformer(t: Any) -> Any:
    return t.Wav2Vec2ConformerConfig(
        vocab_size=32, num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0,
        ctc_zero_infinity=True, hidden_size=512, num_attention_heads=8, intermediate_size=2048,
    )  # fmt: skip


def _segformer(t: Any) -> Any:
    return t.SegformerConfig(num_labels=150)


_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1408, "head_dim": 64}
_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("fastvit", DEFAULT, timm("fastvit_sa12", 64, "bf16", side=256)),
    ("conformer", DEFAULT, of_transformers("Wav2Vec2ConformerForCTC", _conformer, _spoken, "bf16")),
    ("segformer", DEFAULT, of_transformers(
        "SegformerForSemanticSegmentation", _segformer, _scenes, "bf16")),
    ("tinyvit", DEFAULT, timm("tiny_vit_11m_224", 64, "bf16")),
    ("llama-short", DEFAULT, _llama(6, 16, 256)),
    ("llama-long", DEFAULT, _llama(4, 4, 2048)),
    ("regnet", EAGER, vision("regnet_y_8gf", 64, "bf16", True)),
    ("resnext", EAGER, vision("resnext50_32x4d", 64, "fp16")),
    ("resnext-last", EAGER, vision("resnext50_32x4d", 64, "fp16", True)),
    ("efficientnetv2", EAGER, vision("efficientnet_v2_s", 64, "fp16", True)),
    ("convnextv2", EAGER, of_transformers(
        "ConvNextV2ForImageClassification", lambda t: t.ConvNextV2Config(num_labels=1000),
        lambda: pictures(64), "bf16")),
    ("convnextv2-last", EAGER, timm("convnextv2_tiny", 64, "bf16", last=True)),
    ("deeplab", EAGER, _segmented),
    ("r2plus1d", EAGER, _filmed),
    ("dlrm", EAGER, lambda how: of_suite("dlrm", 16_384, "fp32", how, tables=(200_000,) * 26)),
    ("unet-last", EAGER, lambda how: pictures_to_pictures(32, "bf16", how, True, 128)),
    ("messages", EAGER, _messages),
    ("geometric", EAGER, _geometric),
    ("lstm-tf32", EAGER, lambda how: recurrent(256, "tf32", how)),
    ("rotary", EAGER, _rotary),
    ("newton", EAGER, _newton),
    ("tinyvit-eager", EAGER, timm("tiny_vit_11m_224", 64, "bf16")),
    ("llama-lora", EAGER, _causal("LlamaForCausalLM", "LlamaConfig", 8, dtype=torch.bfloat16,
                                  change=partial(adapt, names=_LINEAR))),
    ("qwen3-moe", EAGER, _causal("Qwen3MoeForCausalLM", "Qwen3MoeConfig", 6, more=_MOE, **_WHOLE)),
    ("llama", EAGER, _causal("LlamaForCausalLM", "LlamaConfig", 8, "bf16")),
    ("vit-relpos", EAGER, timm("vit_relpos_small_patch16_224", 32, "bf16", last=True)),
    ("coat", EAGER, timm("coat_tiny", 16, "fp16", last=True)),
    ("poolformer", EAGER, timm("poolformerv2_s12", 32, "bf16", last=True)),
    ("mobilenetv4", EAGER, timm("mobilenetv4_hybrid_medium", 48, "fp16")),
    ("hiera", EAGER, timm("sam2_hiera_tiny", 4, "bf16", last=True, side=896)),
)  # fmt: skip
REVISITED: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"revisited-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
