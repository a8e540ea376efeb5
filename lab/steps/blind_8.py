"""The seventh blind test: 30 steps of families that no fit, no suite and no earlier test had.

Models of 2025 and 2026 and older ones that nobody had measured here: language, vision, video,
speech, diffusion, graphs, recommenders, time series, mixtures of experts, LoRA, Muon and a small
model that learns from a large one. The list was written, and committed, before any of its steps was
measured. Do not look at it to mend the capture or a fit before its predictions are written down.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from lab.steps.blind_7 import ADAPTED, SIZES, WHOLE, causal, decoder, images
from lab.steps.blind_8_nets import (
    ContinuousFilters,
    GatedGraph,
    Interest,
    InvertedSeries,
    JointDenoiser,
    Tasks,
    VideoCoder,
)
from lab.steps.compiled import DEFAULT, DEVICE, EAGER, CompiledStep, Make, Step, trained
from lab.steps.hand_written import NewtonSchulz
from lab.steps.host_steps import Settings, of_transformers, tokens


def _roformer(t: Any) -> Any:
    return t.RoFormerConfig(vocab_size=32_000, num_hidden_layers=6)


def _nystrom(t: Any) -> Any:
    return t.NystromformerConfig(max_position_embeddings=1026, num_hidden_layers=6,
                                 segment_means_seq_len=1024)  # fmt: skip


def _longcat(t: Any) -> Any:
    return t.LongcatFlashConfig(
        **{**SIZES, "num_key_value_heads": None}, num_layers=2, num_hidden_layers=4,
        ffn_hidden_size=4096, q_lora_rank=768, moe_topk=4, n_routed_experts=16, zero_expert_num=8,
        expert_ffn_hidden_size=704,
    )  # fmt: skip


def _hearing(t: Any) -> Any:
    encoder = t.LasrEncoderConfig(num_hidden_layers=8, layerdrop=0.0)
    return t.LasrCTCConfig(encoder_config=encoder)


def _heard() -> dict[str, Any]:
    return {"input_features": torch.randn(32, 1200, 128),
            "attention_mask": torch.ones(32, 1200, dtype=torch.bool),
            "labels": torch.randint(1, 500, (32, 48))}  # fmt: skip


def _films() -> dict[str, Any]:
    return {"pixel_values_videos": torch.randn(4, 8, 3, 288, 288),
            "labels": torch.zeros(4, dtype=torch.long)}  # fmt: skip


def _watching(t: Any) -> Any:
    return t.VideoPrismVisionConfig(num_frames=8, num_spatial_layers=4, num_temporal_layers=2,
                                    num_labels=400)  # fmt: skip


def _pixels(t: Any) -> Any:
    return t.PixioConfig(hidden_size=768, num_hidden_layers=8, num_attention_heads=12)


def _matting(t: Any) -> Any:
    backbone = t.VitDetConfig(
        hidden_size=384, num_attention_heads=6, num_hidden_layers=12, image_size=512,
        pretrain_image_size=224, num_channels=4, window_size=14,
        window_block_indices=[0, 1, 3, 4, 6, 7, 9, 10], residual_block_indices=[2, 5, 8, 11],
        use_relative_position_embeddings=True, out_features=["stage12"],
    )  # fmt: skip
    return t.VitMatteConfig(backbone_config=backbone, fusion_hidden_sizes=[256, 128, 64, 32],
                            convstream_hidden_sizes=[48, 96, 192])  # fmt: skip


def _seen(batch: int, channels: int, side: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, channels, side, side)}


def boxed(out: Any) -> Any:
    return out.logits.float().square().mean() + out.pred_boxes.float().mean()


def _perceiver(t: Any) -> Any:
    return t.PerceiverConfig(num_latents=512, d_latents=1024, num_self_attends_per_block=6,
                             image_size=224, num_labels=1000)  # fmt: skip


def _aya(t: Any) -> Any:
    text = t.Cohere2Config(**{**SIZES, "hidden_size": 1024, "intermediate_size": 4096},
                           num_hidden_layers=6)  # fmt: skip
    vision = t.SiglipVisionConfig(num_hidden_layers=6, image_size=224, patch_size=14)
    return t.AyaVisionConfig(vision_config=vision, text_config=text, image_token_index=4,
                             vision_feature_select_strategy="full")  # fmt: skip


def _described() -> dict[str, Any]:
    given = torch.randint(5, 1000, (16, 512))
    given[:, 8:72] = 4  # the places of the picture: 16 x 16 patches, four in each token
    return {"input_ids": given, "labels": given, "pixel_values": torch.randn(16, 3, 224, 224)}


def _spectra() -> dict[str, Any]:
    return {"spectrogram": torch.randn(16, 128, 80)}


def _newton(settings: Settings) -> Make:
    def make(how: str) -> Step:
        step = causal("Jais2ForCausalLM", settings, 8, 1024)(how)
        weights = step.optimizer.param_groups[0]["params"]  # type: ignore[attr-defined]
        step.optimizer = NewtonSchulz(weights)  # type: ignore[attr-defined]
        return step

    return make


def _distilled(how: str) -> Step:
    import transformers

    with torch.device(DEVICE):
        large, small = (
            transformers.Ernie4_5ForCausalLM(decoder("Ernie4_5Config", layers)(transformers))
            for layers in (8, 3)
        )
        given = tokens(4, 1024)["input_ids"]
    large = large.to(torch.bfloat16).eval().requires_grad_(False)

    def loss(m: Any) -> Any:
        with torch.no_grad():
            wanted = large(given, use_cache=False).logits.float().log_softmax(-1)
        said = m(given, use_cache=False).logits.float().log_softmax(-1)
        return F.kl_div(said, wanted, reduction="batchmean", log_target=True)

    return trained(small.train(), loss, how, "bf16", optimizer="fused", clip=1.0)


def _painted(how: str) -> Step:
    with torch.device(DEVICE):
        model = JointDenoiser(1024, 16, 5, 2048)
        x, text, when = torch.randn(16, 16, 64, 64), torch.randn(16, 154, 2048), torch.rand(16, 256)
        goal = torch.randn(16, 1024, 64)
    return trained(
        model, lambda m: F.mse_loss(m(x, text, when), goal), how, "bf16", optimizer="fused"
    )  # fmt: skip


def _filmed(how: str) -> Step:
    with torch.device(DEVICE):
        model = VideoCoder(64)
        x = torch.randn(2, 3, 16, 128, 128)
    return trained(model, lambda m: F.l1_loss(m(x), x), how, "bf16")


def _atoms(how: str) -> Step:
    with torch.device(DEVICE):
        model = ContinuousFilters(128, 4, 50)
        kinds, places = torch.randint(0, 100, (30_000,)), torch.randn(30_000, 3) * 5
        edges, energies = torch.randint(0, 30_000, (2, 600_000)), torch.randn(30_000)
    return trained(model, lambda m: F.mse_loss(m(kinds, places, edges), energies), how, "fp32")


def _gated(how: str) -> Step:
    with torch.device(DEVICE):
        model = GatedGraph(256, 3, 4, 40)
        nodes, edges = torch.randn(40_000, 256), torch.randint(0, 40_000, (3, 2, 120_000))
        labels = torch.randint(0, 40, (40_000,))
    return trained(model, lambda m: F.cross_entropy(m(nodes, edges), labels), how, "tf32")


def _forecast(how: str) -> Step:
    with torch.device(DEVICE):
        model = InvertedSeries(96, 96, 512, 8, 3)
        past, future = torch.randn(32, 96, 321), torch.randn(32, 96, 321)
    return trained(model, lambda m: F.mse_loss(m(past), future), how, "fp32")


def _interested(how: str) -> Step:
    with torch.device(DEVICE):
        model = Interest(500_000, 64)
        before = torch.randint(0, 500_000, (16_384, 200))
        offered, clicked = torch.randint(0, 500_000, (16_384,)), torch.rand(16_384).round()

    def loss(m: Any) -> Any:
        return F.binary_cross_entropy_with_logits(m(before, offered), clicked)

    return trained(model, loss, how, "tf32")


def _goals(how: str) -> Step:
    with torch.device(DEVICE):
        model = Tasks(30, 100_000, 32, 8, 3)
        given, reached = torch.randint(0, 100_000, (16_384, 30)), torch.rand(16_384, 3).round()
    return trained(
        model, lambda m: F.binary_cross_entropy_with_logits(m(given), reached), how, "bf16"
    )  # fmt: skip


_SOLAR = decoder("SolarOpenConfig", 4, n_routed_experts=16, num_experts_per_tok=4, head_dim=128,
                 moe_intermediate_size=704)  # fmt: skip
_EXAONE = decoder("ExaoneMoeConfig", 4, num_experts=16, num_experts_per_tok=4, sliding_window=512,
                  moe_intermediate_size=704)  # fmt: skip
_MINIMAX = decoder("MiniMaxConfig", 4, num_local_experts=8, intermediate_size=1408, head_dim=128)
_YOUTU = decoder("YoutuConfig", 5, num_key_value_heads=16, q_lora_rank=768)
_CWM = decoder("CwmConfig", 8, sliding_window=1024)
_VAULT = decoder("VaultGemmaConfig", 4, head_dim=128, query_pre_attn_scalar=128)
_JAIS = decoder("Jais2Config", 4, hidden_size=1280, num_attention_heads=10, num_key_value_heads=10)
_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("textnet", DEFAULT, images(
        "TextNetForImageClassification", lambda t: t.TextNetConfig(num_labels=1000), 192, "fp16",
        last=True)),
    ("videoprism", DEFAULT, of_transformers(
        "VideoPrismForVideoClassification", _watching, _films, "bf16")),
    ("pixio", DEFAULT, of_transformers(
        "PixioModel", _pixels, partial(_seen, 64, 3, 256), "bf16",
        loss=lambda out: out.pooler_output.float().square().mean())),
    ("lasr", DEFAULT, of_transformers("LasrForCTC", _hearing, _heard, "bf16")),
    ("vaultgemma", DEFAULT, causal("VaultGemmaForCausalLM", _VAULT, 4, 1024)),
    ("bitnet", DEFAULT, causal(
        "BitNetForCausalLM", decoder("BitNetConfig", 4), 4, 2048, "fp32", **WHOLE)),
    ("cwm-lora", DEFAULT, causal(
        "CwmForCausalLM", _CWM, 4, 2048, "fp32", dtype=torch.bfloat16, change=ADAPTED)),
    ("roformer", DEFAULT, causal("RoFormerForMaskedLM", _roformer, 32, 512, "fp16")),
    ("joint", DEFAULT, _painted),
    ("video-coder", DEFAULT, _filmed),
    ("interest", DEFAULT, _interested),
    ("atoms", DEFAULT, _atoms),
    ("solar-moe", EAGER, causal("SolarOpenForCausalLM", _SOLAR, 4, 2048, "fp32", **WHOLE)),
    ("exaone-moe", EAGER, causal("ExaoneMoeForCausalLM", _EXAONE, 4, 2048, "fp32", **WHOLE)),
    ("minimax", EAGER, causal("MiniMaxForCausalLM", _MINIMAX, 4, 2048, "fp32", **WHOLE)),
    ("longcat", EAGER, causal("LongcatFlashForCausalLM", _longcat, 4, 1024, "fp32", **WHOLE)),
    ("youtu", EAGER, causal("YoutuForCausalLM", _YOUTU, 4, 2048)),
    ("diffllama", EAGER, causal(
        "DiffLlamaForCausalLM", decoder("DiffLlamaConfig", 5), 4, 1024, "fp16",
        change=lambda model: model.to(DEVICE))),  # `torch.normal` heeds no default device
    ("jais2-newton", EAGER, _newton(_JAIS)),
    ("distilled", EAGER, _distilled),
    ("fnet", EAGER, causal(
        "FNetForMaskedLM", lambda t: t.FNetConfig(num_hidden_layers=8), 32, 512, "fp32")),
    ("nystrom", EAGER, causal("NystromformerForMaskedLM", _nystrom, 8, 1024, "tf32")),
    ("perceiver", EAGER, images(
        "PerceiverForImageClassificationLearned", _perceiver, 8, "fp16")),
    ("rt-detr2", EAGER, of_transformers(
        "RTDetrV2ForObjectDetection", lambda t: t.RTDetrV2Config(), partial(_seen, 16, 3, 640),
        "bf16", loss=boxed)),
    ("vitmatte", EAGER, of_transformers(
        "VitMatteForImageMatting", _matting, partial(_seen, 8, 4, 512), "bf16",
        loss=lambda out: out.alphas.float().square().mean())),
    ("vocoder", EAGER, of_transformers(
        "SpeechT5HifiGan", lambda t: t.SpeechT5HifiGanConfig(), _spectra, "tf32",
        loss=lambda out: out.square().mean())),
    ("aya", EAGER, of_transformers(
        "AyaVisionForConditionalGeneration", _aya, _described, "bf16", optimizer="fused")),
    ("inverted", EAGER, _forecast),
    ("gated", EAGER, _gated),
    ("goals", EAGER, _goals),
)  # fmt: skip
BLIND_8: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"blind8-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
