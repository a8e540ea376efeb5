"""A fifth blind test: families that no fit and no earlier test has seen.

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
    "num_key_value_heads": 16,
    "vocab_size": 32_000,
    "pad_token_id": 0,
}
_WHOLE = {"dtype": torch.bfloat16, "optimizer": "fused", "clip": 1.0}
_ADAPTED = partial(adapt, names=("q_proj", "v_proj", "fc1", "fc2"), rank=16)


class CrossBlock(nn.Module):
    """A block of a diffusion transformer that attends to a text (Chen et al., PixArt, 2023)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2)
        )
        self.within = nn.MultiheadAttention(width, heads, batch_first=True)
        self.across = nn.MultiheadAttention(width, heads, batch_first=True)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.randn(6, width) / width**0.5)

    def forward(self, x: Tensor, text: Tensor, when: Tensor) -> Tensor:
        shifts = (self.scale[None] + when.view(len(x), 6, -1)).chunk(6, dim=1)
        y = self.norms[0](x) * (1 + shifts[0]) + shifts[1]
        x = x + shifts[2] * self.within(y, y, y, need_weights=False)[0]
        x = x + self.across(x, text, text, need_weights=False)[0]
        y = self.norms[1](x) * (1 + shifts[3]) + shifts[4]
        return x + shifts[5] * self.wide(y)


class TextToImage(nn.Module):
    """A diffusion transformer over patches of latents, guided by a text."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.text = nn.Linear(1024, width)
        self.when = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, 6 * width))
        self.blocks = nn.ModuleList(CrossBlock(width, heads) for _ in range(layers))
        self.out = nn.Linear(width, 16)

    def forward(self, x: Tensor, text: Tensor, when: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        text, when = self.text(text), self.when(when)
        for block in self.blocks:
            x = block(x, text, when)
        return self.out(x)


class Principal(nn.Module):
    """Graph layers that join the mean, most and least of messages (Corso et al., 2020)."""

    def __init__(self, inputs: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.sent = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.joined = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        x = self.first(x)
        for sent, joined, norm in zip(self.sent, self.joined, self.norms, strict=True):
            message = sent(torch.cat([x[source], x[target]], -1))
            where = target[:, None].expand_as(message)
            empty = torch.zeros_like(x)
            pooled = [
                empty.scatter_reduce(0, where, message, how, include_self=False)
                for how in ("mean", "amax", "amin")
            ]
            x = x + F.relu(norm(joined(torch.cat([x, *pooled], -1))))
        return self.last(x)


class Basket(nn.Module):
    """What a customer buys next, by a transformer over baskets and a table of items."""

    def __init__(self, items: int, width: int, layers: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.places = nn.Embedding(200, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, seen: Tensor) -> Tensor:
        count = seen.shape[1]
        x = self.items(seen) + self.places.weight[:count]
        mask = nn.Transformer.generate_square_subsequent_mask(count, device=x.device)
        x = self.layers(x, mask=mask, is_causal=True)
        return x[:, -1] @ self.items.weight.T


def _painted(how: str) -> Step:
    with torch.device(DEVICE):
        model = TextToImage(1152, 16, 6)
        x, text = torch.randn(16, 4, 64, 64), torch.randn(16, 120, 1024)
        when, goal = torch.randn(16, 256), torch.randn(16, 1024, 16)
    return trained(
        model, lambda m: F.mse_loss(m(x, text, when), goal), how, "bf16", optimizer="fused"
    )  # fmt: skip


def _graph(how: str) -> Step:
    with torch.device(DEVICE):
        model = Principal(100, 128, 4, 40)
        x, edges = torch.randn(60_000, 100), torch.randint(0, 60_000, (2, 600_000))
        labels = torch.randint(0, 40, (60_000,))
    return trained(model, lambda m: F.cross_entropy(m(x, edges), labels), how, "tf32")


def _baskets(how: str) -> Step:
    with torch.device(DEVICE):
        model = Basket(50_000, 256, 4)
        seen, bought = torch.randint(0, 50_000, (512, 100)), torch.randint(0, 50_000, (512,))
    return trained(model, lambda m: F.cross_entropy(m(seen), bought), how, "bf16")


def _decoder(name: str, layers: int, **more: Any) -> Settings:
    return lambda t: getattr(t, name)(num_hidden_layers=layers, **{**_SIZES, **more})


def _causal(
    name: str, settings: Settings, batch: int, length: int, precision: str = "bf16", **o: Any
) -> Make:
    return of_transformers(name, settings, lambda: tokens(batch, length), precision, **o)


_DOTS = _decoder("Dots1Config", 4, n_routed_experts=16, num_experts_per_tok=4,
                 moe_intermediate_size=1024, first_k_dense_replace=1, n_shared_experts=1,
                 head_dim=128)  # fmt: skip
_DEEPSEEK = _decoder("DeepseekV2Config", 3, n_routed_experts=16, num_experts_per_tok=4,
                     moe_intermediate_size=1024, first_k_dense_replace=1, n_shared_experts=1,
                     n_group=1, topk_group=1, q_lora_rank=768, kv_lora_rank=512)  # fmt: skip


def _electra(t: Any) -> Any:
    return t.ElectraConfig(
        vocab_size=30_522, embedding_size=768, hidden_size=768, num_hidden_layers=6,
        num_attention_heads=12, intermediate_size=3072,
    )  # fmt: skip


def _speech(name: str) -> Settings:
    return lambda t: getattr(t, name)(
        vocab_size=32, num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0,
        ctc_zero_infinity=True,
    )  # fmt: skip


def _sounds(batch: int, seconds: int) -> dict[str, Any]:
    labels = torch.randint(1, 30, (batch, 40))
    return {"input_values": torch.randn(batch, 16_000 * seconds), "labels": labels}


def _translated(t: Any) -> Any:
    return t.Speech2TextConfig(encoder_layers=6, decoder_layers=3, vocab_size=10_000,
                               d_model=512, encoder_attention_heads=8, decoder_attention_heads=8,
                               max_source_positions=3000)  # fmt: skip


def _spectra() -> dict[str, Any]:
    return {
        "input_features": torch.randn(16, 1200, 80), "labels": torch.randint(5, 9999, (16, 64))
    }  # fmt: skip


def _summary(t: Any) -> Any:
    return t.PegasusConfig(encoder_layers=4, decoder_layers=4, vocab_size=32_000, d_model=1024,
                           pad_token_id=0, decoder_start_token_id=0)  # fmt: skip


def _captioned() -> dict[str, Any]:
    return {
        "input_ids": torch.randint(5, 1000, (64, 77)),
        "pixel_values": torch.randn(64, 3, 224, 224),
        "return_loss": torch.tensor(True),
    }


def _clip(t: Any) -> Any:
    return t.CLIPConfig(text_config={"num_hidden_layers": 4, "vocab_size": 32_000},
                        vision_config={"num_hidden_layers": 6, "patch_size": 16})  # fmt: skip


_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("beit", DEFAULT, of_transformers(
        "BeitForImageClassification",
        lambda t: t.BeitConfig(num_hidden_layers=8, num_labels=1000), lambda: pictures(64),
        "bf16")),
    ("unispeech", DEFAULT, of_transformers(
        "UniSpeechForCTC", _speech("UniSpeechConfig"), lambda: _sounds(8, 10), "bf16")),
    ("helium", DEFAULT, _causal("HeliumForCausalLM", _decoder("HeliumConfig", 4, head_dim=128), 4,
                                2048, "fp32", **_WHOLE)),
    ("nemotron", DEFAULT, _causal("NemotronForCausalLM", _decoder("NemotronConfig", 4), 4, 1024)),
    ("electra", DEFAULT, _causal("ElectraForMaskedLM", _electra, 32, 256, "fp16")),
    ("painter", DEFAULT, _painted),
    ("baskets", DEFAULT, _baskets),
    ("dots1-moe", EAGER, _causal("Dots1ForCausalLM", _DOTS, 4, 2048, "fp32", **_WHOLE)),
    ("deepseek2", EAGER, _causal("DeepseekV2ForCausalLM", _DEEPSEEK, 4, 2048, "fp32", **_WHOLE)),
    ("phi-lora", EAGER, _causal("PhiForCausalLM", _decoder("PhiConfig", 6), 4, 2048, "fp32",
                                dtype=torch.bfloat16, change=_ADAPTED)),
    ("wavlm", EAGER, of_transformers(
        "WavLMForCTC", _speech("WavLMConfig"), lambda: _sounds(8, 10), "fp16")),
    ("speech2text", EAGER, of_transformers(
        "Speech2TextForConditionalGeneration", _translated, _spectra, "bf16")),
    ("mae", EAGER, of_transformers(
        "ViTMAEForPreTraining", lambda t: t.ViTMAEConfig(num_hidden_layers=8),
        lambda: {"pixel_values": torch.randn(64, 3, 224, 224)}, "bf16")),
    ("clip", EAGER, of_transformers("CLIPModel", _clip, _captioned, "bf16")),
    ("pegasus", EAGER, _causal("PegasusForConditionalGeneration", _summary, 16, 512, "tf32")),
    ("graph", EAGER, _graph),
)  # fmt: skip
BLIND_5: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"blind5-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
