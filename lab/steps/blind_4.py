"""A fourth blind test: steps of families that no fit and no earlier test has seen.

The list was written, and committed, before any of its steps was measured. Do not look at it to mend
the capture or a fit before its predictions are written down.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.steps.compiled import DEFAULT, DEVICE, EAGER, CompiledStep, Make, Step, trained
from lab.steps.hand_written import adapt
from lab.steps.host_steps import Settings, of_transformers, pictures, tokens

_SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "pad_token_id": 0,
}
_WHOLE = {"dtype": torch.bfloat16, "optimizer": "fused", "clip": 1.0}
_ADAPTED = partial(adapt, names=("q_proj", "v_proj", "up_proj", "down_proj"), rank=32)


class Equivariant(nn.Module):
    """A layer of messages that also moves points in space (Satorras et al., 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        silu = nn.SiLU()
        self.message = nn.Sequential(
            nn.Linear(2 * width + 1, width), silu, nn.Linear(width, width), silu
        )
        self.moved = nn.Sequential(nn.Linear(width, width), silu, nn.Linear(width, 1, bias=False))
        self.update = nn.Sequential(nn.Linear(2 * width, width), silu, nn.Linear(width, width))

    def forward(self, x: Tensor, places: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges
        apart = places[source] - places[target]
        distance = apart.square().sum(-1, keepdim=True)
        sent = self.message(torch.cat([x[source], x[target], distance], -1))
        step = torch.zeros_like(places).index_add(0, target, apart * self.moved(sent))
        total = torch.zeros_like(x).index_add(0, target, sent)
        return x + self.update(torch.cat([x, total], -1)), places + step / 8


class Molecules(nn.Module):
    """Several such layers, and an energy for each molecule."""

    def __init__(self, width: int, layers: int, molecules: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(20, width)
        self.layers = nn.ModuleList(Equivariant(width) for _ in range(layers))
        self.energy = nn.Linear(width, 1)
        self.molecules = molecules

    def forward(self, kinds: Tensor, places: Tensor, edges: Tensor, of: Tensor) -> Tensor:
        x = self.kinds(kinds)
        for layer in self.layers:
            x, places = layer(x, places, edges)
        return torch.zeros(self.molecules, device=x.device).index_add(0, of, self.energy(x)[:, 0])


class TwoTowers(nn.Module):
    """Users and items as vectors, from bags of what is known of them."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.users, self.items = (nn.EmbeddingBag(rows, width, mode="mean") for _ in range(2))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 1024), nn.ReLU(), nn.LayerNorm(1024),
                          nn.Linear(1024, 256))
            for _ in range(2)
        )  # fmt: skip

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        bags = (self.users(users), self.items(items))
        left, right = (
            F.normalize(t(b), dim=-1) for t, b in zip(self.towers, bags, strict=True)
        )  # fmt: skip
        return left @ right.T / 0.05


def _molecules(how: str) -> Step:
    nodes, count = 40_000, 1000
    with torch.device(DEVICE):
        model = Molecules(192, 4, count)
        kinds, places = torch.randint(0, 20, (nodes,)), torch.randn(nodes, 3)
        edges = torch.randint(0, nodes, (2, 12 * nodes))
        of, energies = torch.randint(0, count, (nodes,)), torch.randn(count)
    return trained(
        model, lambda m: F.l1_loss(m(kinds, places, edges, of), energies), how, "tf32"
    )  # fmt: skip


def _towers(how: str) -> Step:
    with torch.device(DEVICE):
        model = TwoTowers(500_000, 128)
        users, items = (torch.randint(0, 500_000, (8192, 24)) for _ in range(2))
        same = torch.arange(8192)
    return trained(model, lambda m: F.cross_entropy(m(users, items), same), how, "bf16")


def _decoder(name: str, layers: int, **more: Any) -> Settings:
    return lambda t: getattr(t, name)(num_hidden_layers=layers, **{**_SIZES, **more})


def _causal(
    name: str, settings: Settings, batch: int, length: int, precision: str = "bf16", **o: Any
) -> Make:
    return of_transformers(name, settings, lambda: tokens(batch, length), precision, **o)


def _images(
    name: str, settings: Settings, batch: int, precision: str, side: int = 224, **o: Any
) -> Make:
    return of_transformers(name, settings, lambda: pictures(batch, side), precision, **o)


_OSS = _decoder("GptOssConfig", 3, num_local_experts=8, num_experts_per_tok=2, head_dim=128,
                intermediate_size=1408, sliding_window=128)  # fmt: skip
_GLM = _decoder(
    "Glm4MoeConfig",
    4,
    n_routed_experts=16,
    num_experts_per_tok=4,
    head_dim=128,
    moe_intermediate_size=1024,
    first_k_dense_replace=1,
    n_shared_experts=1,
)
_LFM = _decoder("Lfm2Config", 6, layer_types=["conv", "conv", "full_attention"] * 2)
_OLMO = _decoder("Olmo3Config", 4, sliding_window=512)
_SEED = _decoder("SeedOssConfig", 6, head_dim=128)


def _encoder(name: str, layers: int, **more: Any) -> Settings:
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    return lambda t: getattr(t, name)(num_hidden_layers=layers, **{**sizes, **more})


_EURO = _encoder("EuroBertConfig", 6, num_key_value_heads=12, vocab_size=32_000, pad_token_id=0)
_DEBERTA = _encoder(
    "DebertaV2Config", 4, vocab_size=32_000, relative_attention=True, position_buckets=128,
    norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
)  # fmt: skip
_MODERN = _encoder("ModernBertDecoderConfig", 8, vocab_size=32_000, intermediate_size=1152,
                   pad_token_id=0)  # fmt: skip


def _m2m(t: Any) -> Any:
    return t.M2M100Config(encoder_layers=4, decoder_layers=4, vocab_size=32_000, d_model=1024,
                          encoder_layerdrop=0.0, decoder_layerdrop=0.0)  # fmt: skip


def _whisper(t: Any) -> Any:
    return t.WhisperConfig(encoder_layers=4, decoder_layers=4, d_model=512, vocab_size=32_000,
                           encoder_attention_heads=8, decoder_attention_heads=8,
                           encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=0,
                           bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)  # fmt: skip


def _heard() -> dict[str, Any]:
    return {"input_features": torch.randn(16, 80, 3000), "labels": torch.randint(5, 999, (16, 64))}


def _data2vec(t: Any) -> Any:
    return t.Data2VecAudioConfig(vocab_size=32, num_hidden_layers=4, mask_time_prob=0.0,
                                 layerdrop=0.0, ctc_zero_infinity=True)  # fmt: skip


def _sounds() -> dict[str, Any]:
    return {"input_values": torch.randn(12, 160_000), "labels": torch.randint(1, 30, (12, 40))}


def _spectra() -> dict[str, Any]:
    return {"input_values": torch.randn(24, 1024, 128), "labels": torch.zeros(24).long()}


def _frames() -> dict[str, Any]:
    return {"pixel_values": torch.randn(8, 8, 3, 224, 224), "labels": torch.zeros(8).long()}


def _small_pictures() -> dict[str, Any]:
    return {"pixel_values": torch.randn(8, 3, 64, 64)}


def _super(out: Any) -> Any:
    return out.reconstruction.float().square().mean()


def _depth(t: Any) -> Any:
    return t.DepthAnythingConfig(
        backbone_config=t.Dinov2Config(
            hidden_size=384, num_attention_heads=6, num_hidden_layers=8, image_size=224,
            out_indices=[2, 4, 6, 8], apply_layernorm=True, reshape_hidden_states=False,
        ), reassemble_hidden_size=384, neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64, head_hidden_size=32,
    )  # fmt: skip


_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("focalnet", DEFAULT, _images("FocalNetForImageClassification",
                                  lambda t: t.FocalNetConfig(num_labels=1000), 64, "bf16")),
    ("hiera", DEFAULT, _images(
        "HieraForImageClassification",
        lambda t: t.HieraConfig(num_labels=1000, depths=[1, 2, 5, 2]), 64, "bf16")),
    ("data2vec", DEFAULT, of_transformers("Data2VecAudioForCTC", _data2vec, _sounds, "bf16")),
    ("whisper", DEFAULT, of_transformers("WhisperForConditionalGeneration", _whisper, _heard,
                                         "bf16")),
    ("swin2sr", DEFAULT, of_transformers(
        "Swin2SRForImageSuperResolution",
        lambda t: t.Swin2SRConfig(image_size=64, depths=[2, 2, 2], num_heads=[6, 6, 6]),
        _small_pictures, "bf16", loss=_super)),
    ("apertus", DEFAULT, _causal("ApertusForCausalLM", _decoder("ApertusConfig", 3), 4, 2048,
                                 "fp32", **_WHOLE)),
    ("arcee", DEFAULT, _causal("ArceeForCausalLM", _decoder("ArceeConfig", 4), 4, 1024)),
    ("glm4-lora", DEFAULT, _causal(
        "Glm4ForCausalLM", _decoder("Glm4Config", 3, head_dim=128), 4, 1024, "fp32",
        dtype=torch.bfloat16, change=partial(adapt, names=("q_proj", "v_proj"), rank=32))),
    ("eurobert", DEFAULT, _causal("EuroBertForMaskedLM", _EURO, 16, 512, "bf16",
                                  optimizer="fused")),
    ("molecules", DEFAULT, _molecules),
    ("lfm2", EAGER, _causal("Lfm2ForCausalLM", _LFM, 4, 2048, "fp32", **_WHOLE)),
    ("gpt-oss", EAGER, _causal("GptOssForCausalLM", _OSS, 2, 1024, "fp32", **_WHOLE)),
    ("olmo3", EAGER, _causal("Olmo3ForCausalLM", _OLMO, 4, 2048)),
    ("glm4-moe", EAGER, _causal("Glm4MoeForCausalLM", _GLM, 4, 2048, "fp32", **_WHOLE)),
    ("seed-oss-lora", EAGER, _causal("SeedOssForCausalLM", _SEED, 4, 2048, "fp32",
                                     dtype=torch.bfloat16, change=_ADAPTED)),
    ("modernbert-decoder", EAGER, _causal("ModernBertDecoderForCausalLM", _MODERN, 16, 1024)),
    ("deberta", EAGER, _causal("DebertaV2ForMaskedLM", _DEBERTA, 16, 512, "fp16")),
    ("m2m100", EAGER, _causal("M2M100ForConditionalGeneration", _m2m, 16, 256, "bf16")),
    ("mobilevit2", EAGER, _images(
        "MobileViTV2ForImageClassification",
        lambda t: t.MobileViTV2Config(num_labels=1000), 96, "fp16", 256, last=True)),
    ("depth-anything", EAGER, of_transformers(
        "DepthAnythingForDepthEstimation", _depth,
        lambda: {"pixel_values": torch.randn(32, 3, 224, 224)}, "bf16",
        loss=lambda out: out.predicted_depth.float().square().mean())),
    ("cvt", EAGER, _images("CvtForImageClassification",
                           lambda t: t.CvtConfig(num_labels=1000), 64, "tf32")),
    ("spectra", EAGER, of_transformers(
        "ASTForAudioClassification",
        lambda t: t.ASTConfig(num_hidden_layers=6, num_labels=527), _spectra, "bf16")),
    ("timesformer", EAGER, of_transformers(
        "TimesformerForVideoClassification",
        lambda t: t.TimesformerConfig(num_hidden_layers=6, num_labels=400), _frames, "bf16")),
    ("towers", EAGER, _towers),
)  # fmt: skip
BLIND_4: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"blind4-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
