"""What people write by hand: LoRA, Newton-Schulz optimizers, message passing, rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.frameworks.pytorch.drawn.newer_layers import orthogonal, rotated, scaled


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank addition (Hu et al., 2021)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        make = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.randn(rank, base.in_features, **make) * 0.01)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **make))

    def forward(self, x: Any) -> Any:
        return self.base(x) + 2.0 * F.linear(F.linear(F.dropout(x, 0.05), self.down), self.up)


def adapt(model: nn.Module, names: Iterable[str], rank: int = 8) -> nn.Module:
    """Freeze a model and give its linear layers of these names a low-rank addition."""
    model.requires_grad_(False)
    chosen_names = set(names)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in chosen_names and isinstance(child, nn.Linear):
                setattr(module, name, LowRank(child, rank))
    return model


class NewtonSchulz(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal by Newton and Schulz's iteration (Jordan, 2024).

    Other parameters take a plain step with momentum.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        orthogonal: Callable[[Tensor], Tensor] = orthogonal,
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self.orthogonal = orthogonal

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            self._update()

    def _update(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                moved = state["momentum"].lerp_(weight.grad, 0.05)
                moved = weight.grad.lerp(moved, 0.95)
                if weight.ndim == 2 and min(weight.shape) > 1:
                    moved = (
                        self.orthogonal(moved) * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                    )
                weight.add_(moved.to(weight.dtype), alpha=-group["lr"])


class Messages(nn.Module):
    """Layers of a graph network: messages along edges are added up where they arrive."""

    def __init__(self, width: int, depth: int, inputs: int = 64, classes: int = 40) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.leave = nn.Linear(width, classes)

    def forward(self, nodes: Any, edges: Any) -> Any:
        x = self.enter(nodes)
        source, target = edges
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent = F.relu(message(torch.cat([x[source], x[target]], -1)))
            heard = torch.zeros_like(x).index_add_(0, target, sent.to(x.dtype))
            x = x + F.relu(update(torch.cat([norm(x), heard], -1)))
        return self.leave(x)


class RotaryBlock(nn.Module):
    """Attention with rotary positions and soft-capped scores, written out; a gated layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2))

    def forward(self, x: Any, cos: Any, sin: Any, mask: Any) -> Any:
        batch, length, width = x.shape
        y = scaled(x, self.scales[0])
        q, k, v = (
            layer(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = 30.0 * torch.tanh(scores / 30.0) + mask
        y = torch.softmax(scores.float(), -1).to(v.dtype) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = scaled(x, self.scales[1])
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class RotaryNet(nn.Module):
    """A decoder of hand-written blocks, with soft-capped logits."""

    def __init__(self, depth: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(RotaryBlock(width, heads) for _ in range(depth))
        self.head = width // heads

    def forward(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        rates = 10_000.0 ** (-torch.arange(0, self.head, 2, device=tokens.device) / self.head)
        angles = (places[:, None] * rates).repeat(1, 2)
        x = self.embedding(tokens)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = torch.full((length, length), -1e9, device=tokens.device, dtype=x.dtype).triu(1)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return 30.0 * torch.tanh(F.linear(x, self.embedding.weight) / 30.0)


# Networks in plain PyTorch that compile quickly: U-Net, detector, recurrent net, perceptron.


class Residual(nn.Module):
    """Two convolutions with group norms, and the time of the noise added between them."""

    def __init__(self, inner: int, outer: int, times: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inner), nn.GroupNorm(8, outer)])
        self.first = nn.Conv2d(inner, outer, 3, padding=1)
        self.second = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(times, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        y = self.first(F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        y = F.dropout(F.silu(self.norms[1](y)), 0.1, self.training)
        return self.skip(x) + self.second(y)


class Denoiser(nn.Module):
    """Three resolutions down and up again, with skips (Ronneberger et al., 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        times = 4 * width
        self.time = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times))
        self.width = width
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(
            [Residual(a, b, times) for a, b in zip((width, *widths), widths, strict=False)]
        )
        self.up = nn.ModuleList(
            [Residual(2 * b, a, times) for a, b in zip((width, *widths), widths, strict=False)][
                ::-1
            ]
        )
        self.middle = Residual(widths[-1], widths[-1], times)
        self.leave = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Any, time: Any) -> Any:
        steps = torch.arange(self.width, device=x.device) / self.width
        time = self.time(torch.cos(time[:, None] * 10_000**-steps))
        x = self.enter(x)
        kept = []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.leave(x)


def _unit(inner: int, outer: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outer), nn.LeakyReLU(0.1, inplace=True))


class Detector(nn.Module):
    """A backbone, a feature pyramid and a head for classes and boxes (Lin et al., 2017)."""

    def __init__(self, classes: int = 20, anchors: int = 3, width: int = 128) -> None:
        super().__init__()
        self.stem = nn.Sequential(_unit(3, 32, 2), _unit(32, 64, 2))
        self.stages = nn.ModuleList(
            nn.Sequential(_unit(64 * 2**i, 128 * 2**i, 2), _unit(128 * 2**i, 128 * 2**i, 1))
            for i in range(3)
        )
        self.sides = nn.ModuleList(nn.Conv2d(128 * 2**i, width, 1) for i in range(3))
        self.head = nn.Sequential(_unit(width, width, 1), _unit(width, width, 1))
        self.scores = nn.Conv2d(width, anchors * classes, 3, padding=1)
        self.boxes = nn.Conv2d(width, anchors * 4, 3, padding=1)
        self.classes = classes

    def forward(self, x: Any) -> tuple[Any, Any]:
        x = self.stem(x)
        seen = []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = stage(x)
            seen.append(side(x))
        above = seen[-1]
        merged = [above]
        for features in reversed(seen[:-1]):
            above = features + F.interpolate(above, scale_factor=2.0, mode="nearest")
            merged.append(above)
        scores, boxes = [], []
        for features in reversed(merged):
            shared = self.head(features)
            scores.append(self.scores(shared).permute(0, 2, 3, 1).flatten(1))
            boxes.append(self.boxes(shared).permute(0, 2, 3, 1).flatten(1))
        return (
            torch.cat(scores, 1).unflatten(1, (-1, self.classes)),
            torch.cat(boxes, 1).unflatten(1, (-1, 4)),
        )


def focal_loss(found_in: tuple[Any, Any], truth: Any, true_boxes: Any) -> Any:
    """Focal loss of the classes (Lin et al., 2017) and a smooth distance of the boxes."""
    scores, boxes = found_in
    entropy = F.binary_cross_entropy_with_logits(scores.float(), truth, reduction="none")
    likely = torch.exp(-entropy)
    positives = truth.amax(-1, keepdim=True)
    distance = F.smooth_l1_loss(boxes.float(), true_boxes, reduction="none") * positives
    return ((1 - likely) ** 2 * entropy).mean() + distance.mean()


class SequenceNet(nn.Module):
    """An embedding, an LSTM and a perceptron with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.layers = nn.LSTM(256, 512, 2, batch_first=True)
        self.norm = nn.LayerNorm(512)
        self.out = nn.Sequential(
            nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 10)
        )

    def forward(self, tokens: Any) -> Any:
        x = F.dropout(self.embedding(tokens), 0.1, self.training)
        x, _ = self.layers(x)
        return self.out(self.norm(x).mean(1))


class Tower(nn.Module):
    """Perceptrons with norms, dropout and residuals; torch.compile is stopped after the first."""

    def __init__(self, width: int, depth: int, breaks: int = 0) -> None:
        super().__init__()
        self.breaks = breaks
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.SiLU(),
                nn.Dropout(0.1),
                nn.Linear(2 * width, width),
            )
            for _ in range(depth)
        )

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            x = x + layer(x)
            if number < self.breaks:
                torch._dynamo.graph_break()
        return x


# A Llama-like decoder (Touvron et al., 2023) in plain PyTorch, of any size.


class PlainLlama(nn.Module):
    """Tokens (batch, length) -> logits (batch, length, vocabulary)."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(PlainLlamaLayer(width, inner, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class PlainLlamaLayer(nn.Module):
    """Causal self-attention and a gated perceptron, each with an RMS norm and a residual."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.attention_norm(x)
        query, key, value = (
            project(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = rotate(query), rotate(key)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x: Any) -> Any:
    """Rotary position embedding (Su et al., 2021)."""
    length, size = x.shape[-2:]
    frequency = 10_000 ** -(torch.arange(0, size, 2, device=x.device) / size)
    angle = torch.outer(torch.arange(length, device=x.device).float(), frequency)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
