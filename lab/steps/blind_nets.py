"""Networks by hand of the second blind test of compiled steps, which no fit has seen."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class GatedTokens(nn.Module):
    """A decoder with normalized queries and keys, squared ReLU and tied words; gives its loss."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norms": nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2)),
                    "parts": nn.Linear(width, 3 * width, bias=False),
                    "out": nn.Linear(width, width, bias=False),
                    "up": nn.Linear(width, 4 * width, bias=False),
                    "down": nn.Linear(4 * width, width, bias=False),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, tokens: Any, following: Any) -> Any:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = x + self._attend(layer, layer["norms"][0](x))
            x = x + layer["down"](F.relu(layer["up"](layer["norms"][1](x))).square())
        logits = F.linear(self.norm(x), self.words.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())

    def _attend(self, layer: Any, x: Any) -> Any:
        parts = layer["parts"](x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        query, key = F.rms_norm(query, query.shape[-1:]), F.rms_norm(key, key.shape[-1:])
        y = F.scaled_dot_product_attention(query, key, value.type_as(query), is_causal=True)
        return layer["out"](y.transpose(1, 2).flatten(-2))


class Mixer(nn.Module):
    """Perceptrons over places and over channels in turn (Tolstikhin et al., 2021)."""

    def __init__(self, layers: int, width: int, side: int, patch: int) -> None:
        super().__init__()
        places = (side // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.places = nn.ModuleList(_perceptron(places, width // 2) for _ in range(layers))
        self.channels = nn.ModuleList(_perceptron(width, 4 * width) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for number, (places, channels) in enumerate(zip(self.places, self.channels, strict=True)):
            x = x + places(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * number + 1](x))
        return self.head(self.norms[-1](x).mean(1))


def _perceptron(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, inner), nn.GELU(), nn.Dropout(0.1), nn.Linear(inner, width)
    )


class AttentiveUNet(nn.Module):
    """Segments pictures: batch norms, transposed convolutions, attention at the bottom."""

    def __init__(self, width: int, classes: int = 21) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(_double(a, b) for a, b in zip((3, *widths), widths, strict=False))
        bottom = 4 * width
        self.norm = nn.LayerNorm(bottom)
        self.mix = nn.MultiheadAttention(bottom, 8, 0.1, batch_first=True)
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2)
            for a, b in zip(widths[::-1], (bottom, *widths[::-1]), strict=False)
        )
        self.up = nn.ModuleList(_double(2 * a, a) for a in widths[::-1])
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        places = self.norm(x.flatten(2).transpose(1, 2))
        mixed, _ = self.mix(places, places, places, need_weights=False)
        x = x + mixed.transpose(1, 2).reshape(x.shape)
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([kept.pop(), rise(x)], 1))
        return self.out(x)


def _double(inner: int, outer: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inner, outer):
        layers += [nn.Conv2d(width, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers)


class TwoTowers(nn.Module):
    """People and things as vectors; the loss tells the things of a batch apart."""

    def __init__(self, people: int, things: int, width: int) -> None:
        super().__init__()
        self.person = nn.Embedding(people, width)
        self.thing = nn.Embedding(things, width)
        self.history = nn.EmbeddingBag(things, width, mode="mean")
        self.first, self.second = (
            nn.Sequential(
                nn.Linear(wide, 512), nn.ReLU(), nn.LayerNorm(512),
                nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128),
            )
            for wide in (2 * width, width + 16)
        )  # fmt: skip

    def forward(self, person: Any, history: Any, thing: Any, facts: Any) -> Any:
        x = self.first(torch.cat([self.person(person), self.history(history)], 1))
        y = self.second(torch.cat([self.thing(thing), facts], 1))
        scores = F.normalize(x, dim=1) @ F.normalize(y, dim=1).T / 0.05
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class SpeechNet(nn.Module):
    """Convolutions over a spectrogram, a GRU in both directions, and a letter per frame."""

    def __init__(self, bands: int, width: int, letters: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, 3, (2, 1), 1), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.layers = nn.GRU(32 * bands // 4, width, 2, batch_first=True, bidirectional=True)
        self.out = nn.Sequential(
            nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.SiLU(),
            nn.Linear(width, letters),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        x = self.convolutions(x).flatten(1, 2).transpose(1, 2)
        x, _ = self.layers(x)
        return self.out(x)


class CenterDetector(nn.Module):
    """Depthwise convolutions down and up; heat and size of objects (Zhou et al., 2019)."""

    def __init__(self, classes: int = 20, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 4, 3, bias=False), nn.BatchNorm2d(width))
        self.stages = nn.ModuleList(_thin(width * 2**i, width * 2 ** (i + 1)) for i in range(2))
        self.sides = nn.ModuleList(nn.Conv2d(width * 2**i, 128, 1) for i in range(3))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(128, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, out, 1))
            for out in (classes, 4)
        )

    def forward(self, x: Any) -> tuple[Any, Any]:
        x = F.relu(self.stem(x))
        seen = [x]
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        y = self.sides[2](seen[2])
        for level in (1, 0):
            size = seen[level].shape[-2:]
            y = F.interpolate(y, size=size, mode="bilinear", align_corners=False)
            y = F.silu(y + self.sides[level](seen[level]))
        return self.heads[0](y), self.heads[1](y)


def _thin(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, inner, 5, 2, 2, groups=inner, bias=False), nn.BatchNorm2d(inner),
        nn.SiLU(), nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer), nn.SiLU(),
    )  # fmt: skip


def heat_loss(found: tuple[Any, Any], heat: Any, sizes: Any) -> Any:
    """Focal loss of the heat (Zhou et al., 2019), and the distance of sizes where objects are."""
    scores = found[0].float().sigmoid().clamp(1e-4, 1 - 1e-4)
    hit = heat.eq(1).float()
    right = (1 - scores) ** 2 * scores.log() * hit
    wrong = (1 - heat) ** 4 * scores**2 * (1 - scores).log() * (1 - hit)
    distance = (found[1].float() - sizes).abs() * hit.amax(1, keepdim=True)
    return -(right + wrong).sum() / hit.sum().clamp(min=1) + 0.1 * distance.mean()


class Autoencoder(nn.Module):
    """Convolutions down to a random code and up again (Kingma and Welling, 2013); its loss."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.down = nn.Sequential(*(
            part for i in range(3) for part in (
                nn.Conv2d(3 if i == 0 else width * 2 ** (i - 1), width * 2**i, 4, 2, 1),
                nn.GroupNorm(8, width * 2**i), nn.ELU())
        ))  # fmt: skip
        self.code = nn.Linear(width * 4 * 64, 2 * code)
        self.open = nn.Linear(code, width * 4 * 64)
        self.up = nn.Sequential(*(
            part for i in (2, 1) for part in (
                nn.ConvTranspose2d(width * 2**i, width * 2 ** (i - 1), 4, 2, 1),
                nn.GroupNorm(8, width * 2 ** (i - 1)), nn.ELU())
        ), nn.ConvTranspose2d(width, 3, 4, 2, 1))  # fmt: skip

    def forward(self, x: Any) -> Any:
        middle, spread = self.code(self.down(x).flatten(1)).chunk(2, 1)
        drawn = middle + torch.randn_like(middle) * (0.5 * spread).exp()
        seen = self.up(self.open(drawn).unflatten(1, (-1, 8, 8)))
        far = (1 + spread - middle.square() - spread.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(seen, x) - 0.001 * far
