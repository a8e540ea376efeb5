"""A second blind test: compiled steps of models that neither `STEPS` nor `BLIND` has.

The list was written, and committed, before any of its steps was traced, compiled or measured. Do
not look at it to mend the capture or a fit before its predictions are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.steps.blind_nets import (
    AttentiveUNet,
    Autoencoder,
    CenterDetector,
    GatedTokens,
    Mixer,
    SpeechNet,
    TwoTowers,
    heat_loss,
)
from lab.steps.compiled import (
    DEVICE,
    GRAPHS,
    CompiledStep,
    Make,
    Step,
    hf,
    images,
    trained,
    vision,
)
from lab.steps.libraries import import_torchvision


def _googlenet(how: str) -> Step:
    def build() -> nn.Module:
        options = {"aux_logits": False, "init_weights": False}
        model: nn.Module = import_torchvision().models.googlenet(weights=None, **options)
        return model

    return images(build, 64, "fp32", how, optimizer="sgd")


def _segmentation(how: str) -> Step:
    models = import_torchvision().models.segmentation
    with torch.device(DEVICE):
        model = models.lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=21
        )
        pictures, labels = torch.randn(16, 3, 256, 256), torch.randint(0, 21, (16, 256, 256))
    return trained(
        model,
        lambda m: F.cross_entropy(m(pictures)["out"], labels),
        how,
        "bf16",
        optimizer="momentum",
    )


def of_transformers(
    architecture: str,
    settings: Callable[[Any], Any],
    inputs: Callable[[], dict[str, Any]],
    precision: str,
    *,
    checkpoint: bool = False,
    **options: Any,
) -> Make:
    """A model of transformers with inputs of its own, which computes its loss."""

    def make(how: str) -> Step:
        import transformers

        with torch.device(DEVICE):
            model = getattr(transformers, architecture)(settings(transformers)).train()
            given = inputs()
        if checkpoint:
            model.gradient_checkpointing_enable()
        if hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        return trained(model, lambda m: m(**given).loss, how, precision, **options)

    return make


def _tokens(batch: int, length: int) -> dict[str, Any]:
    tokens = torch.randint(5, 1000, (batch, length))
    return {"input_ids": tokens, "labels": tokens}


def _speech() -> dict[str, Any]:
    return {
        "input_features": torch.randn(8, 80, 3000),
        "labels": torch.randint(5, 1000, (8, 64)),
    }


def _captions() -> dict[str, Any]:
    tokens = torch.randint(5, 1000, (64, 48))
    tokens[:, -1] = 49_407
    pictures = torch.randn(64, 3, 224, 224)
    return {"input_ids": tokens, "pixel_values": pictures, "return_loss": True}


def _clip(t: Any) -> Any:
    return t.CLIPConfig(
        text_config={"num_hidden_layers": 2, "vocab_size": 49_408, "eos_token_id": 49_407},
        vision_config={"num_hidden_layers": 3},
    )


def _gemma(t: Any) -> Any:
    return t.Gemma3TextConfig(
        num_hidden_layers=4,
        hidden_size=640,
        intermediate_size=2048,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=256,
        vocab_size=32_000,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention",
                     "full_attention"],
    )  # fmt: skip


def _phi(t: Any) -> Any:
    return t.PhiConfig(
        num_hidden_layers=3,
        hidden_size=1024,
        intermediate_size=4096,
        num_attention_heads=16,
        vocab_size=51_200,
    )


def _qwen(t: Any) -> Any:
    return t.Qwen3Config(
        num_hidden_layers=3,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=48_000,
    )


def _whisper(t: Any) -> Any:
    return t.WhisperConfig(
        encoder_layers=2,
        decoder_layers=2,
        d_model=512,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
    )


def _deberta(t: Any) -> Any:
    return t.DebertaV2Config(
        num_hidden_layers=3,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        vocab_size=32_000,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=512,
    )


def _decoder(how: str) -> Step:
    with torch.device(DEVICE):
        model = GatedTokens(4, 768, 6, 50_304, 1024)
        tokens = torch.randint(0, 50_304, (8, 1025))
    given, following = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return trained(model, lambda m: m(given, following), how, "bf16", optimizer="fused", clip=1.0)


def _unet(how: str) -> Step:
    with torch.device(DEVICE):
        model = AttentiveUNet(64)
        pictures, labels = torch.randn(16, 3, 128, 128), torch.randint(0, 21, (16, 128, 128))
    model = model.to(memory_format=torch.channels_last)
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    return trained(model, lambda m: F.cross_entropy(m(pictures), labels), how, "bf16")


def _towers(how: str) -> Step:
    with torch.device(DEVICE):
        model = TwoTowers(500_000, 100_000, 128)
        person, thing = torch.randint(0, 500_000, (4096,)), torch.randint(0, 100_000, (4096,))
        history, facts = torch.randint(0, 100_000, (4096, 20)), torch.randn(4096, 16)
    return trained(
        model, lambda m: m(person, history, thing, facts), how, "fp32", optimizer="fused"
    )


def _letters(how: str) -> Step:
    with torch.device(DEVICE):
        model = SpeechNet(80, 512, 32)
        sounds, letters = torch.randn(32, 1, 80, 400), torch.randint(0, 32, (32, 200))
    return trained(
        model,
        lambda m: F.cross_entropy(m(sounds).flatten(0, 1), letters.flatten()),
        how,
        "fp32",
        clip=1.0,
    )


def _centers(how: str) -> Step:
    with torch.device(DEVICE):
        model = CenterDetector()
        pictures = torch.randn(32, 3, 256, 256)
        heat, sizes = torch.rand(32, 20, 64, 64).round(decimals=2), torch.rand(32, 4, 64, 64)
    model = model.to(memory_format=torch.channels_last)
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    return trained(
        model, lambda m: heat_loss(m(pictures), heat, sizes), how, "bf16", optimizer="momentum"
    )


def _autoencoder(how: str) -> Step:
    with torch.device(DEVICE):
        model = Autoencoder(64, 128)
        pictures = torch.rand(128, 3, 64, 64)
    return trained(model, lambda m: m(pictures), how, "tf32", compiled_optimizer=True)


def _mixer(how: str) -> Step:
    return images(lambda: Mixer(4, 512, 224, 16), 64, "tf32", how, optimizer="adamw")


def _pictures() -> dict[str, Any]:
    labels = torch.randint(0, 1000, (16,))
    return {"pixel_values": torch.randn(16, 3, 224, 224), "labels": labels}


def _beit(t: Any) -> Any:
    return t.BeitConfig(num_hidden_layers=3, num_labels=1000)


def _swin(t: Any) -> Any:
    return t.SwinConfig(depths=[2, 2, 2], num_heads=[3, 6, 12], num_labels=1000)


BLIND_2: tuple[CompiledStep, ...] = (
    CompiledStep("blind2-segmentation", "segmentation", _segmentation),
    CompiledStep("blind2-googlenet", "googlenet", _googlenet),
    CompiledStep("blind2-swin", "swin",
                 hf("SwinForImageClassification", _swin, 32, 0, "bf16")),
    CompiledStep("blind2-wide-resnet", "resnet",
                 vision("wide_resnet50_2", 32, "tf32", True)),
    CompiledStep("blind2-resnext", "resnet", vision("resnext50_32x4d", 32, "bf16", True)),
    CompiledStep("blind2-unet", "unet", _unet),
    CompiledStep("blind2-deberta", "deberta",
                 hf("DebertaV2ForMaskedLM", _deberta, 8, 256, "bf16")),
    CompiledStep("blind2-clip", "clip",
                 of_transformers("CLIPModel", _clip, _captions, "bf16")),
    CompiledStep("blind2-whisper", "whisper",
                 of_transformers("WhisperForConditionalGeneration", _whisper, _speech, "bf16",
                                 optimizer="fused")),
    CompiledStep("blind2-beit-graphs", "beit",
                 of_transformers("BeitForImageClassification", _beit, _pictures, "tf32"), GRAPHS),
    CompiledStep("blind2-gemma3", "gemma",
                 hf("Gemma3ForCausalLM", _gemma, 4, 1024, "fp32", dtype=torch.bfloat16,
                    optimizer="fused", clip=1.0)),
    CompiledStep("blind2-autoencoder", "autoencoder", _autoencoder),
    CompiledStep("blind2-qwen3-checkpointed", "qwen3",
                 of_transformers("Qwen3ForCausalLM", _qwen, lambda: _tokens(4, 1024), "bf16",
                                 checkpoint=True, optimizer="fused")),
    CompiledStep("blind2-phi", "phi", hf("PhiForCausalLM", _phi, 4, 512, "tf32", clip=1.0)),
    CompiledStep("blind2-electra", "electra",
                 hf("ElectraForMaskedLM", lambda t: t.ElectraConfig(num_hidden_layers=4),
                    32, 128, "fp32")),
    CompiledStep("blind2-centers", "detection", _centers),
    CompiledStep("blind2-decoder", "gpt", _decoder),
    CompiledStep("blind2-mixer-graphs", "mixer", _mixer, GRAPHS),
    CompiledStep("blind2-gru", "recurrent", _letters),
    CompiledStep("blind2-two-towers", "recommendation", _towers),
)  # fmt: skip
"""The steps, those that take longest to compile first."""
