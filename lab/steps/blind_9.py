"""The eighth blind test: 30 steps of families that no fit, no suite and no earlier test had.

Models of 2025 and 2026 and older ones that nobody had measured here: language, vision, video,
speech, music, diffusion, graphs, tables, recommenders, time series, mixtures of experts and LoRA,
some with gradient accumulation, checkpointing, frozen parts, schedules or averaged weights. The
list was written, and committed, before any of its steps was measured. Do not look at it to mend the
capture or a fit before its predictions are written down.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from lab.steps.blind_7 import ADAPTED, WHOLE, causal, decoder, images
from lab.steps.blind_8 import boxed
from lab.steps.blind_9_nets import (
    Columns,
    EquivariantMessages,
    Interactions,
    LinearDenoiser,
    MotionDenoiser,
    Neighbourhoods,
    Sessions,
    Unmasking,
)
from lab.steps.compiled import DEFAULT, DEVICE, EAGER, CompiledStep, Make, Step, trained
from lab.steps.host_steps import of_transformers, tokens
from lab.steps.libraries import import_torchvision
from lab.steps.training_ways import (
    accumulated,
    adapted_and_checkpointed,
    averaging,
    checkpointed,
    followed,
    scheduled,
)


def _neo(t: Any) -> Any:
    return t.GPTNeoConfig(
        hidden_size=1024, num_layers=12, attention_types=[[["global", "local"], 6]]
    )


def _albert(t: Any) -> Any:
    return t.AlbertConfig(hidden_size=1024, num_hidden_layers=12, num_attention_heads=16,
                          intermediate_size=4096)  # fmt: skip


def _persimmon(t: Any) -> Any:
    return t.PersimmonConfig(vocab_size=64_000, hidden_size=2048, intermediate_size=8192,
                             num_hidden_layers=4, num_attention_heads=32)  # fmt: skip


def _long(t: Any) -> Any:
    return t.LEDConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip


def _reports() -> dict[str, Any]:
    seen = torch.zeros(4, 4096, dtype=torch.long)
    seen[:, 0] = 1
    return {"input_ids": torch.randint(5, 50_000, (4, 4096)), "global_attention_mask": seen,
            "labels": torch.randint(5, 50_000, (4, 512))}  # fmt: skip


def _pairs_of_texts(how: str) -> Step:
    import transformers as t

    with torch.device(DEVICE):
        model = t.JinaEmbeddingsV3Model(t.JinaEmbeddingsV3Config(num_hidden_layers=12))
        asked, found = torch.randint(5, 250_000, (96, 64)), torch.randint(5, 250_000, (96, 384))
        own = torch.arange(96)

    def code(m: Any, given: Any) -> Any:
        return F.normalize(m(input_ids=given).last_hidden_state.mean(1).float(), dim=-1)

    def loss(m: Any) -> Any:
        return F.cross_entropy(code(m, asked) @ code(m, found).T / 0.02, own)

    return trained(model.train(), loss, how, "bf16", optimizer="fused", clip=1.0)


def _preferred(how: str) -> Step:
    import transformers as t

    settings = decoder("GemmaConfig", 6, head_dim=256, num_attention_heads=8, num_key_value_heads=1,
                       intermediate_size=8192, vocab_size=128_000)(t)  # fmt: skip
    with torch.device(DEVICE):
        model = t.GemmaForCausalLM(settings).to(torch.bfloat16)
        given = tokens(8, 768)["input_ids"]  # the first half is preferred to the second
    reference = deepcopy(model).eval().requires_grad_(False)

    def likely(m: Any) -> Any:
        said = m(given, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        return said.gather(-1, given[:, 1:, None])[..., 0][:, 255:].sum(-1)

    def loss(m: Any) -> Any:
        with torch.no_grad():
            before = likely(reference)
        better, worse = (likely(m) - before).chunk(2)
        return -F.logsigmoid(0.1 * (better - worse)).mean()

    return trained(model.train(), loss, how, "fp32", optimizer="fused", clip=1.0)


def _detector(t: Any) -> Any:
    backbone = t.RfDetrDinov2Config(
        hidden_size=384, num_attention_heads=6, image_size=512, patch_size=16, num_windows=2,
        out_indices=[3, 6, 9, 12],
    )  # fmt: skip
    return t.RfDetrConfig(backbone_config=backbone)


def _scenes(batch: int, side: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, side, side)}


def _rooms() -> dict[str, Any]:
    return {"pixel_values": torch.randn(16, 3, 480, 640)}


def _prompted(how: str) -> Step:
    import transformers as t

    with torch.device(DEVICE):
        model = t.SamModel(t.SamConfig())
        x, points = torch.randn(4, 3, 1024, 1024), torch.rand(4, 8, 1, 2) * 1024
        truth = torch.rand(4, 8, 1, 256, 256).round()
    model.vision_encoder.requires_grad_(False)

    def loss(m: Any) -> Any:
        out = m(pixel_values=x, input_points=points, multimask_output=False).pred_masks.float()
        chance, both = out.sigmoid(), (out.sigmoid() * truth).sum((-2, -1))
        dice = 1 - (2 * both + 1) / (chance.sum((-2, -1)) + truth.sum((-2, -1)) + 1)
        return dice.mean() + F.binary_cross_entropy_with_logits(out, truth)

    return trained(model.train(), loss, how, "bf16")


def _moved(how: str) -> Step:
    with torch.device(DEVICE):
        model = import_torchvision().models.optical_flow.raft_large(weights=None)
        first, second = torch.rand(2, 6, 3, 368, 496) * 2 - 1
        truth = torch.randn(6, 2, 368, 496)

    def loss(m: Any) -> Any:
        found = m(first, second, num_flow_updates=12)
        last = len(found) - 1
        return sum(0.8 ** (last - n) * F.l1_loss(flow, truth) for n, flow in enumerate(found))

    return trained(model.train(), loss, how, "tf32", clip=1.0)


def _taught(how: str) -> Step:
    import transformers as t

    with torch.device(DEVICE):
        model = t.Dinov2WithRegistersModel(
            t.Dinov2WithRegistersConfig(image_size=224, patch_size=14, hidden_size=384,
                                        num_attention_heads=6, num_hidden_layers=12)
        )  # fmt: skip
        head = torch.nn.Linear(384, 16_384, bias=False)
        x = torch.randn(192, 3, 224, 224)
    both = torch.nn.ModuleDict({"body": model, "head": head}).train()
    teacher = deepcopy(both).eval().requires_grad_(False)
    if how != EAGER:
        model.compile()

    def said(m: Any, warmth: float) -> Any:
        return m["head"](m["body"](x).last_hidden_state[:, 0]).float() / warmth

    def loss(m: Any) -> Any:
        with torch.no_grad():
            wanted = said(teacher, 0.04).softmax(-1).roll(96, 0)
        return -(wanted * said(m, 0.1).log_softmax(-1)).sum(-1).mean()

    step = trained(both, loss, EAGER, "bf16", optimizer="fused", clip=3.0)
    return followed(step, averaging(both, teacher, 0.996))


def _clap(t: Any) -> Any:
    return t.ClapConfig(text_config={"num_hidden_layers": 6})


def _heard() -> dict[str, Any]:
    return {"input_features": torch.randn(64, 1, 1001, 64), "return_loss": True,
            "is_longer": torch.zeros(64, 1, dtype=torch.bool),
            "input_ids": torch.randint(5, 50_000, (64, 77))}  # fmt: skip


def _voice(t: Any) -> Any:
    return t.SpeechT5Config(encoder_layerdrop=0.0, decoder_layerdrop=0.0)


def _spoken() -> dict[str, Any]:
    return {"input_ids": torch.randint(5, 80, (32, 128)), "labels": torch.randn(32, 512, 80),
            "attention_mask": torch.ones(32, 128, dtype=torch.long),
            "speaker_embeddings": torch.randn(32, 512)}  # fmt: skip


def _music(t: Any) -> Any:
    return t.MusicgenDecoderConfig(num_hidden_layers=8)


def _songs() -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 2048, (96, 500)),
            "encoder_hidden_states": torch.randn(24, 64, 1024),
            "labels": torch.randint(0, 2048, (24, 500, 4))}  # fmt: skip


def _painted(how: str) -> Step:
    with torch.device(DEVICE):
        model = LinearDenoiser(1152, 36, 6, 32, 2304)
        x, goal = torch.randn(2, 16, 32, 32, 32)
        text, when = torch.randn(16, 120, 2304), torch.rand(16, 256)
    average = deepcopy(model).requires_grad_(False)
    step = trained(model, lambda m: F.mse_loss(m(x, text, when), goal), how, "bf16",
                   optimizer="fused", clip=0.5)  # fmt: skip
    return followed(step, averaging(model, average, 0.9999))


def _animated(how: str) -> Step:
    with torch.device(DEVICE):
        model = MotionDenoiser(128, 16)
        x, noise = torch.randn(2, 128, 4, 32, 32)
    return trained(model, lambda m: F.mse_loss(m(x), noise), how, "fp16")


def _unmasked(how: str) -> Step:
    with torch.device(DEVICE):
        model = Unmasking(50_000, 1024, 16, 8, 1024)
        given = torch.randint(0, 50_000, (4, 1024))
    return trained(model, lambda m: m(given), how, "bf16", optimizer="fused")


def _atoms(how: str) -> Step:
    with torch.device(DEVICE):
        model = EquivariantMessages(128, 4)
        kinds, places = torch.randint(0, 100, (25_000,)), torch.randn(25_000, 3) * 5
        edges, goal = torch.randint(0, 25_000, (2, 500_000)), torch.randn(25_000, 3)
    return trained(model, lambda m: F.mse_loss(m(kinds, places, edges), goal), how, "tf32")


def _summarized(how: str) -> Step:
    with torch.device(DEVICE):
        model = Neighbourhoods(100, 96, 4, 47)
        nodes, edges = torch.randn(40_000, 100), torch.randint(0, 40_000, (2, 320_000))
        labels = torch.randint(0, 47, (40_000,))
    return trained(model, lambda m: F.cross_entropy(m(nodes, edges), labels), how, "fp32")


def _tabled(how: str) -> Step:
    with torch.device(DEVICE):
        model = Columns(60, 20, 1000, 192, 3)
        numbers, kinds = torch.randn(4096, 60), torch.randint(0, 1000, (4096, 20))
        goal = torch.randn(4096)
    return trained(model, lambda m: F.mse_loss(m(numbers, kinds), goal), how, "bf16")


def _visited(how: str) -> Step:
    with torch.device(DEVICE):
        model = Sessions(200_000, 512, 2)
        seen, offered = torch.randint(0, 200_000, (1024, 50)), torch.randint(0, 200_000, (4096,))
        bought = torch.randint(0, 4096, (1024, 50))

    def loss(m: Any) -> Any:
        return F.cross_entropy(m(seen, offered).flatten(0, 1), bought.flatten())

    return trained(model, loss, how, "tf32")


def _fields(how: str) -> Step:
    with torch.device(DEVICE):
        model = Interactions(39, 25_000, 16, (128, 128))
        given, clicked = torch.randint(0, 25_000, (24_576, 39)), torch.rand(24_576).round()
    return trained(model, lambda m: F.binary_cross_entropy_with_logits(m(given), clicked),
                   how, "tf32")  # fmt: skip


def _loads(t: Any) -> Any:
    return t.AutoformerConfig(
        prediction_length=96, context_length=192, lags_sequence=[1, 24], num_time_features=4,
        d_model=256, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=1024,
        decoder_ffn_dim=1024, encoder_layerdrop=0.0, decoder_layerdrop=0.0, label_length=96,
    )  # fmt: skip


def _hours() -> dict[str, Any]:
    return {"past_values": torch.rand(256, 216), "past_time_features": torch.randn(256, 216, 4),
            "past_observed_mask": torch.ones(256, 216), "future_values": torch.rand(256, 96),
            "future_time_features": torch.randn(256, 96, 4)}  # fmt: skip


def _internvl(t: Any) -> Any:
    text = decoder("Qwen3Config", 6, hidden_size=1536, intermediate_size=4096, head_dim=128,
                   num_attention_heads=12, num_key_value_heads=4)(t)  # fmt: skip
    vision = t.InternVLVisionConfig(num_hidden_layers=12)
    return t.InternVLConfig(vision_config=vision, text_config=text, image_token_id=4)


def _with_frozen_eyes(model: Any) -> Any:
    model.model.vision_tower.requires_grad_(False)
    return model


def _described() -> dict[str, Any]:
    given = torch.randint(5, 1000, (8, 768))
    given[:, 8:264] = 4  # the places of the picture: 32 x 32 patches, four in each token
    return {"input_ids": given, "labels": given, "pixel_values": torch.randn(8, 3, 448, 448)}


_MIMO = decoder("MiMoV2FlashConfig", 4, n_routed_experts=16, num_experts_per_tok=4, head_dim=128,
                v_head_dim=96, moe_intermediate_size=768)  # fmt: skip
_GLM = decoder("Glm4MoeLiteConfig", 4, n_routed_experts=16, num_experts_per_tok=4,
               num_key_value_heads=16, moe_intermediate_size=768)  # fmt: skip
_MISTRAL = decoder("Mistral4Config", 3, n_routed_experts=8, num_experts_per_tok=2,
                   num_key_value_heads=16, moe_intermediate_size=1024)  # fmt: skip
_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("mistral4-moe", DEFAULT, causal("Mistral4ForCausalLM", _MISTRAL, 4, 2048, "fp32", **WHOLE)),
    ("persimmon", DEFAULT, scheduled(causal(
        "PersimmonForCausalLM", _persimmon, 4, 2048, optimizer="fused", clip=1.0))),
    ("albert", DEFAULT, causal("AlbertForMaskedLM", _albert, 32, 512, "fp16")),
    ("clovax-lora", DEFAULT, causal(
        "HyperCLOVAXForCausalLM", decoder("HyperCLOVAXConfig", 6), 4, 2048, "fp32",
        dtype=torch.bfloat16, change=ADAPTED)),
    ("glpn", DEFAULT, of_transformers(
        "GLPNForDepthEstimation", lambda t: t.GLPNConfig(), _rooms, "bf16",
        loss=lambda out: out.predicted_depth.float().clamp(min=1e-3).log().var())),
    ("hgnet", DEFAULT, images(
        "HGNetV2ForImageClassification", lambda t: t.HGNetV2Config(num_labels=1000), 256, "bf16",
        last=True, optimizer="momentum")),
    ("taught", DEFAULT, _taught),
    ("musicgen", DEFAULT, of_transformers("MusicgenForCausalLM", _music, _songs, "bf16")),
    ("painted", DEFAULT, _painted),
    ("atoms", DEFAULT, _atoms),
    ("columns", DEFAULT, _tabled),
    ("fields", DEFAULT, _fields),
    ("mimo-moe", EAGER, causal("MiMoV2FlashForCausalLM", _MIMO, 4, 2048, "fp32", **WHOLE)),
    ("glm-lite-moe", EAGER, causal(
        "Glm4MoeLiteForCausalLM", _GLM, 4, 2048, "fp32", **WHOLE, change=checkpointed)),
    ("ministral-lora", EAGER, causal(
        "MinistralForCausalLM", decoder("MinistralConfig", 8, head_dim=128, sliding_window=1024), 4,
        2048, "fp32", dtype=torch.bfloat16, change=adapted_and_checkpointed)),
    ("neo", EAGER, accumulated(causal("GPTNeoForCausalLM", _neo, 4, 1024, "fp16"), 4)),
    ("led", EAGER, of_transformers(
        "LEDForConditionalGeneration", _long, _reports, "bf16", optimizer="fused")),
    ("embeddings", EAGER, _pairs_of_texts),
    ("preferred", EAGER, _preferred),
    ("rf-detr", EAGER, of_transformers(
        "RfDetrForObjectDetection", _detector, partial(_scenes, 16, 512), "bf16", clip=0.1,
        loss=boxed)),
    ("sam", EAGER, _prompted),
    ("raft", EAGER, _moved),
    ("clap", EAGER, of_transformers("ClapModel", _clap, _heard, "bf16")),
    ("speech-t5", EAGER, of_transformers(
        "SpeechT5ForTextToSpeech", _voice, _spoken, "tf32", clip=1.0)),
    ("animated", EAGER, _animated),
    ("unmasked", EAGER, accumulated(_unmasked, 2)),
    ("summaries", EAGER, _summarized),
    ("sessions", EAGER, _visited),
    ("autoformer", EAGER, of_transformers("AutoformerForPrediction", _loads, _hours, "fp32")),
    ("internvl", EAGER, of_transformers(
        "InternVLForConditionalGeneration", _internvl, _described, "fp32",
        change=_with_frozen_eyes, **WHOLE)),
)  # fmt: skip
BLIND_9: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"blind9-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
