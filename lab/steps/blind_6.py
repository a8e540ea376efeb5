"""The second half of the fifth blind test: 14 more steps of families that nothing had seen.

The list was written, and committed, before any of its steps was measured. Do not look at it to mend
the capture or a fit before its predictions are written down.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.steps.compiled import DEFAULT, DEVICE, EAGER, CompiledStep, Make, Step, trained
from lab.steps.hand_written import adapt
from lab.steps.host_steps import Settings, of_transformers, pictures, tokens

_SIZES = {"vocab_size": 32_000, "hidden_size": 2048, "num_attention_heads": 16}
_GATED = {**_SIZES, "intermediate_size": 5632, "num_key_value_heads": 8, "pad_token_id": 0}
_WHOLE = {"dtype": torch.bfloat16, "optimizer": "fused", "clip": 1.0}
_ADAPTED = partial(adapt, names=("q_proj", "k_proj", "v_proj", "o_proj"), rank=16)


class Convolved(nn.Module):
    """A graph network that sums neighbours by degree (Kipf and Welling, 2017)."""

    def __init__(self, inputs: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        widths = [inputs, *[width] * (layers - 1), classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, edges: Tensor, share: Tensor) -> Tensor:
        source, target = edges
        for number, layer in enumerate(self.layers):
            y = layer(x)
            x = torch.zeros_like(y).index_add(0, target, y[source] * share[:, None])
            if number + 1 < len(self.layers):
                x = F.dropout(F.relu(x), 0.5)
        return x


class Factored(nn.Module):
    """Factorization machines beside a deep network (Guo et al., DeepFM, 2017)."""

    def __init__(self, fields: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.ones = nn.ModuleList(nn.Embedding(rows, 1) for _ in range(fields))
        sizes = [fields * width, 1024, 512, 256, 1]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.deep = nn.Sequential(*layers[:-1])

    def forward(self, given: Tensor) -> Tensor:
        columns = given.unbind(1)
        rows = torch.stack([t(c) for t, c in zip(self.tables, columns, strict=True)], 1)
        first = sum(t(c) for t, c in zip(self.ones, columns, strict=True))
        second = (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True) / 2
        return (first + second + self.deep(rows.flatten(1)))[:, 0]


class SoundUNet(nn.Module):
    """A U-net over raw sound, for diffusion (Kong et al., 2021; Schneider et al., 2023)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width, 8 * width)
        self.first = nn.Conv1d(2, width, 7, padding=3)
        self.down = nn.ModuleList(self._block(w) for w in widths)
        self.shrink = nn.ModuleList(nn.Conv1d(w, 2 * w, 4, 4) for w in widths[:-1])
        self.grow = nn.ModuleList(nn.ConvTranspose1d(2 * w, w, 4, 4) for w in widths[:-1])
        self.up = nn.ModuleList(self._block(w) for w in widths[:-1])
        self.last = nn.Conv1d(width, 2, 7, padding=3)

    @staticmethod
    def _block(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv1d(width, width, 3, padding=1),
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv1d(width, width, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for block, shrink in zip(self.down, self.shrink, strict=False):
            x = x + block(x)
            kept.append(x)
            x = shrink(x)
        x = x + self.down[-1](x)
        for block, grow in reversed(list(zip(self.up, self.grow, strict=True))):
            x = grow(x) + kept.pop()
            x = x + block(x)
        return self.last(x)


def _convolved(how: str) -> Step:
    with torch.device(DEVICE):
        model = Convolved(128, 256, 3, 40)
        x, edges = torch.randn(150_000, 128), torch.randint(0, 150_000, (2, 1_200_000))
        share, labels = torch.rand(1_200_000), torch.randint(0, 40, (150_000,))
    return trained(model, lambda m: F.cross_entropy(m(x, edges, share), labels), how, "fp32")


def _factored(how: str) -> Step:
    with torch.device(DEVICE):
        model = Factored(26, 100_000, 32)
        given = torch.randint(0, 100_000, (16_384, 26))
        clicked = (torch.rand(16_384) > 0.7).float()
    return trained(
        model, lambda m: F.binary_cross_entropy_with_logits(m(given), clicked), how, "tf32"
    )  # fmt: skip


def _sounded(how: str) -> Step:
    with torch.device(DEVICE):
        model = SoundUNet(64)
        x, goal = torch.randn(8, 2, 131_072), torch.randn(8, 2, 131_072)
    return trained(model, lambda m: F.mse_loss(m(x), goal), how, "bf16")


def _decoder(name: str, layers: int, **more: Any) -> Settings:
    return lambda t: getattr(t, name)(num_hidden_layers=layers, **{**_GATED, **more})


def _causal(
    name: str, settings: Settings, batch: int, length: int, precision: str = "bf16", **o: Any
) -> Make:
    return of_transformers(name, settings, lambda: tokens(batch, length), precision, **o)


def _falcon(t: Any) -> Any:
    return t.FalconConfig(**_SIZES, num_hidden_layers=6, multi_query=True, pad_token_id=0)


def _bigcode(t: Any) -> Any:
    return t.GPTBigCodeConfig(vocab_size=32_000, n_positions=2048, n_embd=2048, n_layer=4,
                              n_head=16, pad_token_id=0)  # fmt: skip


def _sew(t: Any) -> Any:
    return t.SEWConfig(vocab_size=32, num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0,
                       ctc_zero_infinity=True)  # fmt: skip


def _sounds() -> dict[str, Any]:
    return {"input_values": torch.randn(16, 160_000), "labels": torch.randint(1, 30, (16, 40))}


_PHIMOE = _decoder("PhimoeConfig", 4, num_local_experts=8, num_experts_per_tok=2,
                   intermediate_size=1408)  # fmt: skip
_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("bit", DEFAULT, of_transformers(
        "BitForImageClassification", lambda t: t.BitConfig(num_labels=1000), lambda: pictures(64),
        "bf16")),
    ("bigcode", DEFAULT, _causal("GPTBigCodeForCausalLM", _bigcode, 4, 1024)),
    ("mpnet", DEFAULT, _causal(
        "MPNetForMaskedLM", lambda t: t.MPNetConfig(num_hidden_layers=6), 32, 256, "fp16")),
    ("msn", DEFAULT, of_transformers(
        "ViTMSNForImageClassification",
        lambda t: t.ViTMSNConfig(num_hidden_layers=8, num_labels=1000), lambda: pictures(64),
        "bf16")),
    ("convolved", DEFAULT, _convolved),
    ("falcon", EAGER, _causal("FalconForCausalLM", _falcon, 4, 2048)),
    ("granite-lora", EAGER, _causal("GraniteForCausalLM", _decoder("GraniteConfig", 6), 4, 2048,
                                    "fp32", dtype=torch.bfloat16, change=_ADAPTED)),
    ("phimoe", EAGER, _causal("PhimoeForCausalLM", _PHIMOE, 4, 2048, "fp32", **_WHOLE)),
    ("distilbert", EAGER, _causal(
        "DistilBertForMaskedLM", lambda t: t.DistilBertConfig(), 64, 256, "tf32")),
    ("mobilenet1", EAGER, of_transformers(
        "MobileNetV1ForImageClassification",
        lambda t: t.MobileNetV1Config(num_labels=1000), lambda: pictures(256), "fp16", last=True)),
    ("sew", EAGER, of_transformers("SEWForCTC", _sew, _sounds, "bf16")),
    ("factored", EAGER, _factored),
    ("convolved-eager", EAGER, _convolved),
    ("sound-unet", EAGER, _sounded),
)  # fmt: skip
BLIND_6: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"blind6-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
