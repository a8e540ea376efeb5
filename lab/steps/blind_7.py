"""The sixth blind test: 31 steps of families that no fit and no earlier test had seen.

Models of 2025 and 2026 and older ones that nobody had measured here: language, vision, video,
speech, sound, diffusion, graphs, recommenders, time series, mixtures of experts and LoRA. The list
was written, and committed, before any of its steps was measured. Do not look at it to mend the
capture or a fit before its predictions are written down.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from lab.steps.blind_7_nets import CrossNet, PictureCoder, VideoDenoiser
from lab.steps.compiled import DEFAULT, DEVICE, EAGER, CompiledStep, Make, Step, trained
from lab.steps.hand_written import adapt
from lab.steps.host_steps import Settings, of_transformers, pictures, tokens
from lab.steps.libraries import import_torchvision

SIZES = {"vocab_size": 32_000, "hidden_size": 2048, "num_attention_heads": 16,
         "num_key_value_heads": 8, "intermediate_size": 5632, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
"""The sizes of a decoder, where its step says nothing else."""
WHOLE = {"dtype": torch.bfloat16, "optimizer": "fused", "clip": 1.0}
"""How a model is trained whose weights themselves are in bf16."""
ADAPTED = partial(adapt, names=("q_proj", "k_proj", "v_proj", "o_proj"), rank=16)


def decoder(name: str, layers: int, **more: Any) -> Settings:
    """A configuration of transformers with a decoder's sizes."""
    return lambda t: getattr(t, name)(num_hidden_layers=layers, **{**SIZES, **more})


def causal(
    name: str, settings: Settings, batch: int, length: int, precision: str = "bf16", **o: Any
) -> Make:
    """A model of transformers that is trained on tokens."""
    return of_transformers(name, settings, lambda: tokens(batch, length), precision, **o)


def images(
    name: str, settings: Settings, batch: int, precision: str, side: int = 224, **o: Any
) -> Make:
    """A model of transformers that is trained to tell pictures apart."""
    return of_transformers(name, settings, lambda: pictures(batch, side), precision, **o)


def _gemma_pair(t: Any) -> Any:
    sizes = {"vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 4096,
             "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
             "head_dim": 128, "query_pre_attn_scalar": 128}  # fmt: skip
    parts = {side: t.T5GemmaModuleConfig(**sizes) for side in ("encoder", "decoder")}
    return t.T5GemmaConfig(**parts, vocab_size=32_000)


def _long_text(t: Any) -> Any:
    return t.LongT5Config(vocab_size=32_000, d_model=768, d_ff=2048, num_layers=4, num_heads=12,
                          d_kv=64, decoder_start_token_id=0, pad_token_id=0)  # fmt: skip


def _texts() -> dict[str, Any]:
    return {"input_ids": torch.randint(5, 1000, (4, 2048)),
            "labels": torch.randint(5, 1000, (4, 256))}  # fmt: skip


def _bloom(t: Any) -> Any:
    return t.BloomConfig(vocab_size=32_000, hidden_size=1536, n_layer=6, n_head=16)


def _nomic(t: Any) -> Any:
    return t.NomicBertConfig(vocab_size=32_000, num_hidden_layers=8)


def _next(t: Any) -> Any:
    more = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 704,
            "shared_expert_intermediate_size": 704, "head_dim": 128, "linear_num_value_heads": 16,
            "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
    return t.Qwen3NextConfig(num_hidden_layers=2, **{**SIZES, "num_key_value_heads": 2, **more})


def _films() -> dict[str, Any]:
    return {"pixel_values_videos": torch.randn(4, 16, 3, 224, 224),
            "labels": torch.zeros(4, dtype=torch.long)}  # fmt: skip


def _watching(t: Any) -> Any:
    return t.VJEPA2Config(
        crop_size=224, frames_per_clip=16, hidden_size=768, num_labels=400, num_attention_heads=12,
        num_hidden_layers=6, num_pooler_layers=1,
    )  # fmt: skip


def _poses(t: Any) -> Any:
    backbone = t.VitPoseBackboneConfig(hidden_size=768, num_hidden_layers=8, num_attention_heads=12,
                                       image_size=[256, 192], out_indices=[8])  # fmt: skip
    return t.VitPoseConfig(backbone_config=backbone, num_labels=17, use_simple_decoder=False)


def _people() -> dict[str, Any]:
    return {"pixel_values": torch.randn(64, 3, 256, 192)}


def _depths(t: Any) -> Any:
    return t.DPTConfig(hidden_size=768, num_hidden_layers=12, image_size=384, is_hybrid=False)


def _scenes() -> dict[str, Any]:
    return {"pixel_values": torch.randn(8, 3, 384, 384)}


def _spectra(bins: int) -> dict[str, Any]:
    return {"input_features": torch.randn(16, 1000, bins),
            "labels": torch.randint(1, 30, (16, 40))}  # fmt: skip


def _heard() -> dict[str, Any]:
    return {**_spectra(80), "attention_mask": torch.ones(16, 1000, dtype=torch.bool)}


def _parakeet(t: Any) -> Any:
    encoder = t.ParakeetEncoderConfig(hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
                                      intermediate_size=2048, layerdrop=0.0)  # fmt: skip
    return t.ParakeetCTCConfig(vocab_size=1025, encoder_config=encoder)


def _speech_bert(t: Any) -> Any:
    return t.Wav2Vec2BertConfig(vocab_size=32, hidden_size=768, num_hidden_layers=6,
                                num_attention_heads=12, intermediate_size=3072, layerdrop=0.0,
                                mask_time_prob=0.0, ctc_zero_infinity=True)  # fmt: skip


def _sounds() -> dict[str, Any]:
    return {"input_values": torch.randn(4, 1, 64_000)}


def _series(t: Any) -> Any:
    return t.PatchTSMixerConfig(
        context_length=512, patch_length=16, patch_stride=16, num_input_channels=7, d_model=64,
        num_layers=8, expansion_factor=3, mode="mix_channel", prediction_length=96,
    )  # fmt: skip


def _pasts() -> dict[str, Any]:
    return {"past_values": torch.randn(512, 512, 7), "future_values": torch.randn(512, 96, 7)}


def _found(name: str) -> Make:
    def make(how: str) -> Step:
        with torch.device(DEVICE):
            detection = import_torchvision().models.detection
            model = getattr(detection, name)(weights=None, weights_backbone=None)
            seen = [torch.rand(3, 512, 512) for _ in range(4)]
            corners = torch.rand(4, 8, 2) * 200
            boxes = torch.cat([corners, corners + 50 + torch.rand(4, 8, 2) * 200], -1)
            truth = [{"boxes": b, "labels": torch.randint(1, 90, (8,))} for b in boxes]
        return trained(model.train(), lambda m: sum(m(seen, truth).values()), how, "fp32",
                       optimizer="momentum")  # fmt: skip

    return make


def _graphs(how: str) -> Step:
    from torch_geometric.nn import GIN, global_add_pool  # type: ignore[import-not-found]

    with torch.device(DEVICE):
        model = GIN(64, 256, 5, norm="batch_norm")
        head = torch.nn.Linear(256, 10)
        nodes, edges = torch.randn(60_000, 64), torch.randint(0, 60_000, (2, 250_000))
        of, labels = torch.arange(60_000) // 30, torch.randint(0, 10, (2000,))
    both = torch.nn.ModuleList([model, head])

    def loss(m: Any) -> Any:
        return F.cross_entropy(m[1](global_add_pool(m[0](nodes, edges), of, 2000)), labels)

    return trained(both, loss, how, "fp32")


def _clicked(how: str) -> Step:
    with torch.device(DEVICE):
        model = CrossNet(26, 100_000, 16, 13, 3)
        numbers, given = torch.randn(8192, 13), torch.randint(0, 100_000, (8192, 26))
        clicked = (torch.rand(8192) > 0.7).float()
    return trained(model, lambda m: F.binary_cross_entropy_with_logits(m(numbers, given), clicked),
                   how, "bf16")  # fmt: skip


def _filmed(how: str) -> Step:
    with torch.device(DEVICE):
        model = VideoDenoiser(512, 8, 4)
        x, when = torch.randn(2, 8, 1024, 16), torch.rand(2)
    return trained(model, lambda m: F.mse_loss(m(x, when), x), how, "bf16", optimizer="fused")


def _coded(how: str) -> Step:
    with torch.device(DEVICE):
        model = PictureCoder(64)
        x = torch.randn(8, 3, 256, 256)
    return trained(model, lambda m: F.l1_loss(m(x), x), how, "bf16")


_HUNYUAN = decoder("HunYuanMoEV1Config", 4, num_experts=8, moe_topk=2, intermediate_size=1408,
                   head_dim=128)  # fmt: skip
_MINIMAX = decoder("MiniMaxM2Config", 4, num_local_experts=16, num_experts_per_tok=4,
                   intermediate_size=704, head_dim=128)  # fmt: skip
_LFM = decoder("Lfm2MoeConfig", 4, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=896,
               num_dense_layers=1, layer_types=["conv", "full_attention"] * 2)  # fmt: skip
_FLEX = decoder("FlexOlmoConfig", 3, num_experts=7, num_experts_per_tok=5, intermediate_size=2048)
_AFMOE = decoder("AfmoeConfig", 4, num_experts=16, num_experts_per_tok=4, num_shared_experts=1,
                 moe_intermediate_size=704)  # fmt: skip
_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("swiftformer", DEFAULT, images(
        "SwiftFormerForImageClassification", lambda t: t.SwiftFormerConfig(num_labels=1000), 64,
        "bf16")),
    ("t5gemma", DEFAULT, causal("T5GemmaForConditionalGeneration", _gemma_pair, 8, 512)),
    ("levit", DEFAULT, images(
        "LevitForImageClassification", lambda t: t.LevitConfig(num_labels=1000), 256, "fp16")),
    ("ijepa", DEFAULT, images(
        "IJepaForImageClassification",
        lambda t: t.IJepaConfig(num_hidden_layers=8, num_labels=1000), 64, "bf16")),
    ("vjepa2", DEFAULT, of_transformers(
        "VJEPA2ForVideoClassification", _watching, _films, "bf16")),
    ("ministral3", DEFAULT, causal(
        "Ministral3ForCausalLM", decoder("Ministral3Config", 3, head_dim=128), 4, 2048)),
    ("nomic", DEFAULT, causal("NomicBertForMaskedLM", _nomic, 32, 512, optimizer="fused")),
    ("video", DEFAULT, _filmed),
    ("coder", DEFAULT, _coded),
    ("crossed", DEFAULT, _clicked),
    ("nanochat", EAGER, causal(
        "NanoChatForCausalLM", decoder("NanoChatConfig", 8, hidden_size=1280,
                                        num_attention_heads=10, num_key_value_heads=10), 8, 2048)),
    ("hunyuan", EAGER, causal(
        "HunYuanDenseV1ForCausalLM", decoder("HunYuanDenseV1Config", 5, head_dim=128), 4, 2048)),
    ("hunyuan-moe", EAGER, causal("HunYuanMoEV1ForCausalLM", _HUNYUAN, 4, 2048, "fp32", **WHOLE)),
    ("minimax-m2", EAGER, causal("MiniMaxM2ForCausalLM", _MINIMAX, 4, 2048, "fp32", **WHOLE)),
    ("lfm2-moe", EAGER, causal("Lfm2MoeForCausalLM", _LFM, 4, 2048, "fp32", **WHOLE)),
    ("flex-olmo", EAGER, causal("FlexOlmoForCausalLM", _FLEX, 4, 1024, "fp32", **WHOLE)),
    ("afmoe", EAGER, causal("AfmoeForCausalLM", _AFMOE, 4, 2048, "fp32", **WHOLE)),
    ("qwen3-next", EAGER, causal("Qwen3NextForCausalLM", _next, 2, 1024, "fp32", **WHOLE)),
    ("qwen2-lora", EAGER, causal(
        "Qwen2ForCausalLM", decoder("Qwen2Config", 8), 4, 2048, "fp32", dtype=torch.bfloat16,
        change=ADAPTED)),
    ("bloom", EAGER, causal("BloomForCausalLM", _bloom, 4, 1024, "fp16")),
    ("longt5", EAGER, of_transformers(
        "LongT5ForConditionalGeneration", _long_text, _texts, "bf16")),
    ("dinov3-convnext", EAGER, images(
        "DINOv3ConvNextModel", lambda t: t.DINOv3ConvNextConfig(), 64, "bf16",
        loss=lambda out: out.pooler_output.float().square().mean())),
    ("mobilevit", EAGER, images(
        "MobileViTForImageClassification", lambda t: t.MobileViTConfig(num_labels=1000), 128,
        "fp16", 256, last=True)),
    ("vitpose", EAGER, of_transformers(
        "VitPoseForPoseEstimation", _poses, _people, "bf16",
        loss=lambda out: out.heatmaps.float().square().mean())),
    ("dpt", EAGER, of_transformers(
        "DPTForDepthEstimation", _depths, _scenes, "tf32",
        loss=lambda out: out.predicted_depth.square().mean())),
    ("parakeet", EAGER, of_transformers(
        "ParakeetForCTC", _parakeet, _heard, "bf16")),
    ("speech-bert", EAGER, of_transformers(
        "Wav2Vec2BertForCTC", _speech_bert, partial(_spectra, 160), "fp16")),
    ("dac", EAGER, of_transformers(
        "DacModel", lambda t: t.DacConfig(decoder_hidden_size=512), _sounds, "tf32",
        loss=lambda out: out.loss.mean() + out.audio_values.square().mean())),
    ("series", EAGER, of_transformers("PatchTSMixerForPrediction", _series, _pasts, "fp32")),
    ("retinanet", EAGER, _found("retinanet_resnet50_fpn")),
    ("graphs", EAGER, _graphs),
)  # fmt: skip
BLIND_7: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"blind7-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
