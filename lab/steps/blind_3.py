"""A third blind test: steps of 2025 and 2026, eager and compiled, that no fit has seen.

The list was written, and committed, before any of its steps was measured. Do not look at it to mend
the capture or a fit before its predictions are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from lab.steps.blind_3_nets import (
    Attentive,
    Crossed,
    FlowTransformer,
    Isomorphism,
    SequentialUser,
    TextUNet,
    sampled_loss,
)
from lab.steps.compiled import DEFAULT, DEVICE, EAGER, CompiledStep, Make, Step, trained
from lab.steps.hand_written import NewtonSchulz, adapt
from lab.steps.host_steps import Settings, of_transformers, pictures, tokens

_SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "pad_token_id": 0,
}
_WHOLE = {"dtype": torch.bfloat16, "optimizer": "fused", "clip": 1.0}


def _decoder(name: str, layers: int, **more: Any) -> Settings:
    return lambda t: getattr(t, name)(num_hidden_layers=layers, **{**_SIZES, **more})


def _causal(
    name: str, settings: Settings, batch: int, length: int, precision: str = "bf16", **o: Any
) -> Make:
    return of_transformers(name, settings, lambda: tokens(batch, length), precision, **o)


def _images(name: str, settings: Settings, batch: int, precision: str, **o: Any) -> Make:
    return of_transformers(name, settings, lambda: pictures(batch), precision, **o)


_OLMOE = _decoder("OlmoeConfig", 4, num_experts=16, num_experts_per_tok=4, intermediate_size=1024,
                  num_key_value_heads=16)  # fmt: skip
_ERNIE = _decoder("Ernie4_5_MoeConfig", 4, moe_num_experts=16, moe_k=2, moe_intermediate_size=1024,
                  moe_layer_start_index=1, moe_num_shared_experts=1)  # fmt: skip
_GRANITE = _decoder("GraniteMoeConfig", 4, num_local_experts=8, num_experts_per_tok=2,
                    intermediate_size=1024, num_key_value_heads=8)  # fmt: skip


def _esm(t: Any) -> Any:
    return t.EsmConfig(
        vocab_size=33, hidden_size=640, num_hidden_layers=6, num_attention_heads=20,
        intermediate_size=2560, pad_token_id=1, position_embedding_type="rotary",
        token_dropout=False,
    )  # fmt: skip


def _proteins() -> dict[str, Any]:
    given = torch.randint(4, 24, (16, 512))
    return {"input_ids": given, "labels": given}


def _bart(t: Any) -> Any:
    return t.BartConfig(encoder_layers=4, decoder_layers=4, vocab_size=32_000)


def _sounds(batch: int, seconds: int) -> dict[str, Any]:
    labels = torch.randint(1, 30, (batch, 40))
    return {"input_values": torch.randn(batch, 16_000 * seconds), "labels": labels}


def _conformer(t: Any) -> Any:
    return t.Wav2Vec2ConformerConfig(
        vocab_size=32,num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0,
                                     ctc_zero_infinity=True)  # fmt: skip


def _hubert(t: Any) -> Any:
    return t.HubertConfig(
        vocab_size=32,num_hidden_layers=4, mask_time_prob=0.0, layerdrop=0.0,
                          ctc_zero_infinity=True)  # fmt: skip


def _moonshine(t: Any) -> Any:
    return t.MoonshineConfig(
        pad_token_id=0,hidden_size=416, intermediate_size=1664, encoder_num_hidden_layers=6,
                             decoder_num_hidden_layers=6)  # fmt: skip


def _spoken() -> dict[str, Any]:
    return {"input_values": torch.randn(32, 160_000), "labels": torch.randint(5, 1000, (32, 64))}


def _videos() -> dict[str, Any]:
    return {"pixel_values": torch.randn(16, 16, 3, 224, 224), "labels": torch.zeros(16).long()}


def _series() -> dict[str, Any]:
    return {"past_values": torch.randn(64, 512, 21), "future_values": torch.randn(64, 96, 21)}


def _patches(t: Any) -> Any:
    return t.PatchTSTConfig(num_input_channels=21, context_length=512, patch_length=16,
                            patch_stride=8, prediction_length=96, d_model=256, ffn_dim=512,
                            num_attention_heads=8, num_hidden_layers=3)  # fmt: skip


def _uper(t: Any) -> Any:
    stages = ["stage1", "stage2", "stage3", "stage4"]
    return t.UperNetConfig(
        backbone_config=t.ConvNextConfig(
            out_features=stages, hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3]
        ), num_labels=150,
        use_auxiliary_head=False, pool_scales=[1, 2, 3, 6], hidden_size=256,
    )  # fmt: skip


def _scenes() -> dict[str, Any]:
    return {
        "pixel_values": torch.randn(32, 3, 256, 256),
        "labels": torch.randint(0, 150, (32, 256, 256)),
    }


def _pairs() -> dict[str, Any]:
    return {
        "input_ids": torch.randint(5, 1000, (64, 64)),
        "pixel_values": torch.randn(64, 3, 224, 224),
        "return_loss": torch.tensor(True),
    }


def _siglip(t: Any) -> Any:
    return t.SiglipConfig(text_config={"num_hidden_layers": 3},
                          vision_config={"num_hidden_layers": 4})  # fmt: skip


def _seen_twice(architecture: str, settings: Settings, batch: int, **o: Any) -> Make:
    """A model without a loss: its features are made alike for two views."""
    return of_transformers(
        architecture, settings, lambda: {"pixel_values": torch.randn(batch, 3, 224, 224)}, "bf16",
        loss=lambda out: F.mse_loss(*out.last_hidden_state.float().mean(1).chunk(2)), **o,
    )  # fmt: skip


def _flow(how: str) -> Step:
    with torch.device(DEVICE):
        model = FlowTransformer(6, 1024, 16, 32)
        x, when, goal = torch.randn(32, 16, 32, 32), torch.rand(32), torch.randn(32, 256, 64)
    return trained(model, lambda m: F.mse_loss(m(x, when), goal), how, "bf16", optimizer="fused")


def _unet(how: str) -> Step:
    with torch.device(DEVICE):
        model = TextUNet(128)
        x, text = torch.randn(32, 4, 64, 64), torch.randn(32, 77, 768)
    model = model.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    return trained(model, lambda m: F.mse_loss(m(x, text), x), how, "bf16")


def _graph(build: Callable[[], Any], nodes: int, degree: int) -> Make:
    def make(how: str) -> Step:
        with torch.device(DEVICE):
            model = build()
            features = torch.randn(nodes, 128)
            edges = torch.randint(0, nodes, (2, nodes * degree))
            labels = torch.randint(0, 47, (nodes,))
        return trained(model, lambda m: F.cross_entropy(m(features, edges), labels), how, "fp32")

    return make


def _clicks(how: str) -> Step:
    with torch.device(DEVICE):
        model = Crossed(20, 200_000, 64, 3)
        numbers, bags = torch.randn(8192, 13), torch.randint(0, 200_000, (8192, 20, 5))
        clicked = (torch.rand(8192) > 0.7).float()

    def loss(m: Any) -> Any:
        return F.binary_cross_entropy_with_logits(m(numbers, bags), clicked)

    return trained(model, loss, how, "tf32", optimizer="momentum")


def _users(how: str) -> Step:
    with torch.device(DEVICE):
        model = SequentialUser(100_000, 256, 4, 4, 256)
        seen = torch.randint(0, 100_000, (64, 256))
        others = torch.randint(0, 100_000, (64, 256, 32))

    def loss(m: Any) -> Any:
        return sampled_loss(m(seen), m.items.weight, seen, others)

    return trained(model, loss, how, "bf16")


def _newton(how: str) -> Step:
    step = _causal(
        "StableLmForCausalLM",
        _decoder("StableLmConfig", 4, hidden_size=1024, intermediate_size=2816),
        4,
        1024,
    )(how)
    step.optimizer = NewtonSchulz(step.optimizer.param_groups[0]["params"])  # type: ignore[attr-defined]
    return step  # fmt: skip


_ADAPTED = partial(adapt, names=("q_proj", "k_proj", "v_proj", "o_proj"), rank=16)
_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("unet", DEFAULT, _unet),
    ("regnet", DEFAULT, _images(
        "RegNetForImageClassification",
        lambda t: t.RegNetConfig(num_labels=1000, depths=[1, 1, 2, 1], groups_width=24,
                                 hidden_sizes=[48, 120, 336, 888]), 256, "bf16", last=True,
        optimizer="momentum")),
    ("siglip", DEFAULT, of_transformers("SiglipModel", _siglip, _pairs, "bf16")),
    ("hubert", DEFAULT, of_transformers("HubertForCTC", _hubert, lambda: _sounds(16, 10), "bf16")),
    ("dinov3", DEFAULT, _seen_twice(
        "DINOv3ViTModel", lambda t: t.DINOv3ViTConfig(num_hidden_layers=4, hidden_size=768,
                                                      num_attention_heads=12,
                                                      intermediate_size=3072), 128)),
    ("flow", DEFAULT, _flow),
    ("cohere2", DEFAULT, _causal("Cohere2ForCausalLM", _decoder("Cohere2Config", 3), 2, 2048,
                                 "fp32", **_WHOLE)),
    ("mistral-lora", DEFAULT, _causal(
        "MistralForCausalLM", _decoder("MistralConfig", 4, head_dim=128, sliding_window=None), 4,
        1024, "fp32", dtype=torch.bfloat16, change=_ADAPTED)),
    ("esm", DEFAULT, of_transformers("EsmForMaskedLM", _esm, _proteins, "bf16",
                                     optimizer="fused")),
    ("users", DEFAULT, _users),
    ("patchtst", DEFAULT, of_transformers("PatchTSTForPrediction", _patches, _series, "tf32")),
    ("isomorphism", DEFAULT, _graph(lambda: Isomorphism(256, 4, 128, 47), 50_000, 8)),
    ("smollm3", EAGER, _causal("SmolLM3ForCausalLM", _decoder("SmolLM3Config", 6), 4, 2048,
                               "fp32", **_WHOLE)),
    ("exaone4-lora", EAGER, _causal(
        "Exaone4ForCausalLM", _decoder("Exaone4Config", 8, head_dim=128), 8, 1024, "fp32",
        dtype=torch.bfloat16, change=_ADAPTED)),
    ("olmoe", EAGER, _causal("OlmoeForCausalLM", _OLMOE, 4, 2048, "fp32", **_WHOLE)),
    ("ernie-moe", EAGER, _causal("Ernie4_5_MoeForCausalLM", _ERNIE, 4, 2048, "fp32", **_WHOLE)),
    ("granite-moe", EAGER, _causal("GraniteMoeForCausalLM", _GRANITE, 4, 2048, "fp32", **_WHOLE)),
    ("starcoder2", EAGER, _causal("Starcoder2ForCausalLM", _decoder("Starcoder2Config", 6), 4,
                                  2048)),
    ("stablelm-newton", EAGER, _newton),
    ("bart", EAGER, _causal("BartForConditionalGeneration", _bart, 32, 512, "bf16")),
    ("conformer", EAGER, of_transformers("Wav2Vec2ConformerForCTC", _conformer,
                                         lambda: _sounds(24, 10), "bf16")),
    ("moonshine", EAGER, of_transformers("MoonshineForConditionalGeneration", _moonshine, _spoken,
                                         "bf16")),
    ("efficientnet", EAGER, _images(
        "EfficientNetForImageClassification",
        lambda t: t.EfficientNetConfig(num_labels=1000, width_coefficient=1.0,
                                       depth_coefficient=1.1, image_size=224, hidden_dim=1280),
        128, "fp16", last=True, optimizer="momentum")),
    ("pvt2", EAGER, _images("PvtV2ForImageClassification",
                            lambda t: t.PvtV2Config(num_labels=1000), 192, "bf16")),
    ("uper", EAGER, of_transformers("UperNetForSemanticSegmentation", _uper, _scenes, "bf16",
                                    last=True)),
    ("videomae", EAGER, of_transformers(
        "VideoMAEForVideoClassification",
        lambda t: t.VideoMAEConfig(num_hidden_layers=6, num_labels=400), _videos, "bf16")),
    ("attentive", EAGER, _graph(lambda: Attentive(256, 4, 3, 128, 47), 50_000, 10)),
    ("clicks", EAGER, _clicks),
    ("flow-eager", EAGER, _flow),
    ("unet-eager", EAGER, _unet),
)  # fmt: skip
BLIND_3: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"blind3-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
