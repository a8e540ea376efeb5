"""Networks of the eighth blind test that no library has (`lab.steps.blind_9`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.steps.blind_3_nets import normed_block


class LinearBlock(nn.Module):
    """Attention without a softmax, then text, then convolutions (Xie et al., Sana, 2024)."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads, self.side, inner = heads, side, 5 * width // 2
        self.steer = nn.Parameter(torch.randn(6, width) / width**0.5)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.text = nn.MultiheadAttention(width, heads, batch_first=True)
        self.wide = nn.Conv2d(width, 2 * inner, 1)
        self.deep = nn.Conv2d(2 * inner, 2 * inner, 3, padding=1, groups=2 * inner)
        self.narrow = nn.Conv2d(inner, width, 1, bias=False)

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = q.relu().float(), k.relu().float(), v.float()
        share = q @ k.sum(-2)[..., None] + 1e-6
        return self.out(((q @ (k.transpose(-2, -1) @ v)) / share).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, text: Tensor, when: Tensor) -> Tensor:
        parts = (self.steer + when.unflatten(-1, (6, -1))).unsqueeze(2).unbind(1)
        x = x + parts[2] * self._attend(self.norms[0](x) * (1 + parts[0]) + parts[1])
        x = x + self.text(x, text, text, need_weights=False)[0]
        y = self.norms[1](x) * (1 + parts[3]) + parts[4]
        y = self.deep(F.silu(self.wide(y.transpose(1, 2).unflatten(-1, (self.side, -1)))))
        y, gate = y.chunk(2, 1)
        return x + parts[5] * self.narrow(y * F.silu(gate)).flatten(2).transpose(1, 2)


class LinearDenoiser(nn.Module):
    """The flow of a strongly compressed picture, in time that grows with its size only."""

    def __init__(self, width: int, heads: int, layers: int, side: int, text: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(32, width, 1), nn.Linear(width, 32)
        self.text = nn.Sequential(nn.Linear(text, width), nn.GELU("tanh"), nn.Linear(width, width))
        self.when = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, 6 * width))
        self.blocks = nn.ModuleList(LinearBlock(width, heads, side) for _ in range(layers))

    def forward(self, x: Tensor, text: Tensor, when: Tensor) -> Tensor:
        y, text, when = self.enter(x).flatten(2).transpose(1, 2), self.text(text), self.when(when)
        for block in self.blocks:
            y = block(y, text, when)
        return self.leave(y).transpose(1, 2).unflatten(-1, x.shape[-2:])


class Motion(nn.Module):
    """Attention of each place along the frames (Guo et al., AnimateDiff, 2024)."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.frames = frames
        self.places = nn.Parameter(torch.randn(frames, width) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend = nn.MultiheadAttention(width, 8, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                   nn.Linear(4 * width, width))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        films = x.unflatten(0, (-1, self.frames))  # batch, frames, channels, height, width
        y = films.permute(0, 3, 4, 1, 2).flatten(0, 2)
        z = self.norms[0](y) + self.places
        y = y + self.attend(z, z, z, need_weights=False)[0]
        y = y + self.inner(self.norms[1](y))
        batch, _, _, height, width = films.shape
        return y.unflatten(0, (batch, height, width)).permute(0, 3, 4, 1, 2).flatten(0, 1)


class MotionDenoiser(nn.Module):
    """A frozen U-shaped net of pictures, between whose layers motion is learned."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(normed_block(s, s) for s in sizes)
        self.shrink = nn.ModuleList(nn.Conv2d(s, 2 * s, 3, 2, 1) for s in sizes[:2])
        self.up = nn.ModuleList(normed_block(2 * s, s) for s in sizes[::-1])
        self.grow = nn.ModuleList(nn.Conv2d(2 * s, s, 3, padding=1) for s in sizes[1::-1])
        self.leave = nn.Conv2d(width, 4, 3, padding=1)
        self.requires_grad_(False)
        self.motion_down = nn.ModuleList(Motion(s, frames) for s in sizes)
        self.motion_up = nn.ModuleList(Motion(s, frames) for s in sizes[::-1])

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.enter(x), []
        for level, (block, motion) in enumerate(zip(self.down, self.motion_down, strict=True)):
            x = motion(block(x))
            kept.append(x)
            x = self.shrink[level](x) if level < 2 else x
        for level, (block, motion) in enumerate(zip(self.up, self.motion_up, strict=True)):
            if level:
                x = self.grow[level - 1](F.interpolate(x, scale_factor=2.0))
            x = motion(block(torch.cat([x, kept.pop()], 1)))
        return self.leave(x)


class Unmasking(nn.Module):
    """A decoder that sees all tokens and fills in masked ones (Nie et al., LLaDA, 2025)."""

    def __init__(self, words: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words + 1, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True,
                                           norm_first=True, bias=False)  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss: each masked token weighs more, the fewer of its text are masked."""
        share = torch.rand(len(tokens), 1, device=tokens.device) * 0.999 + 0.001
        masked = torch.rand(tokens.shape, device=tokens.device) < share
        seen = tokens.masked_fill(masked, self.words.num_embeddings - 1)
        x = self.norm(self.layers(self.words(seen) + self.places.weight))
        lost = F.cross_entropy(self.head(x).transpose(1, 2), tokens, reduction="none")
        return (lost * masked / share).mean()


class EquivariantMessages(nn.Module):
    """Atoms whose places move as the messages say (Satorras et al., EGNN, 2021)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()

        def two(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, outputs))

        self.kinds = nn.Embedding(100, width)
        self.told = nn.ModuleList(two(2 * width + 1, width) for _ in range(layers))
        self.near = nn.ModuleList(nn.Linear(width, 1) for _ in range(layers))
        self.moved = nn.ModuleList(two(width, 1) for _ in range(layers))
        self.heard = nn.ModuleList(two(2 * width, width) for _ in range(layers))

    def forward(self, kinds: Tensor, places: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        x = self.kinds(kinds)
        degree = torch.zeros_like(places[:, :1]).index_add(0, target, torch.ones_like(
            target, dtype=places.dtype)[:, None]).clamp(min=1)  # fmt: skip
        layers = zip(self.told, self.near, self.moved, self.heard, strict=True)
        for told, near, moved, heard in layers:
            apart = places[source] - places[target]
            far = apart.square().sum(-1, keepdim=True)
            sent = F.silu(told(torch.cat([x[source], x[target], far], -1)))
            sent = sent * near(sent).sigmoid()
            step = apart / (far.add(1e-8).sqrt() + 1) * moved(sent)
            places = places + torch.zeros_like(places).index_add(0, target, step) / degree
            sums = torch.zeros_like(x).index_add(0, target, sent)
            x = x + heard(torch.cat([x, sums], -1))
        return places


class Neighbourhoods(nn.Module):
    """Four summaries of the neighbours in three scales (Corso et al., PNA, 2020)."""

    def __init__(self, inputs: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(inputs, width), nn.Linear(width, classes)
        self.before = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.after = nn.ModuleList(nn.Linear(13 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        x = self.enter(nodes)
        degree = torch.bincount(target, minlength=len(nodes)).clamp(min=1)[:, None]
        scale = torch.log(degree + 1.0) / 2.2
        for before, after, norm in zip(self.before, self.after, self.norms, strict=True):
            sent = before(torch.cat([x[target], x[source]], -1))
            place = target[:, None].expand_as(sent)
            empty = torch.zeros_like(x)
            mean = empty.scatter_add(0, place, sent) / degree
            square = empty.scatter_add(0, place, sent * sent) / degree
            most, least = (
                empty.scatter_reduce(0, place, sent, how, include_self=False)
                for how in ("amax", "amin")
            )
            spread = (square - mean * mean).relu().add(1e-5).sqrt()
            summary = torch.cat([mean, most, least, spread], -1)
            y = after(torch.cat([x, summary, summary * scale, summary / scale], -1))
            x = x + norm(y).relu()
        return self.leave(x)


class Columns(nn.Module):
    """Each column of a table is a token (Gorishniy et al., FT-Transformer, 2021)."""

    def __init__(self, numbers: int, kinds: int, values: int, width: int, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(numbers, width))
        self.table = nn.Embedding(kinds * values, width)
        self.register_buffer("first", torch.arange(kinds) * values)
        self.goal = nn.Parameter(torch.zeros(width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(width, 8 * width // 3) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(4 * width // 3, width) for _ in range(layers))
        self.leave = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        goal = self.goal.expand(len(numbers), 1, -1)
        told = numbers[..., None] * self.weight + self.bias
        x = torch.cat([goal, told, self.table(kinds + self.first)], 1)
        layers: Any = zip(self.qkv, self.out, self.wide, self.narrow, strict=True)
        for n, (qkv, out, wide, narrow) in enumerate(layers):
            q, k, v = qkv(self.norms[2 * n](x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
            x = x + out(y.transpose(1, 2).flatten(2))
            y, gate = wide(self.norms[2 * n + 1](x)).chunk(2, -1)
            x = x + narrow(F.dropout(y * gate.relu(), 0.1))
        return self.leave(self.norms[-1](x[:, 0]).relu())[:, 0]


class Sessions(nn.Module):
    """What a visit leads to, by gated recurrent layers (Hidasi and Karatzoglou, GRU4Rec, 2018)."""

    def __init__(self, items: int, width: int, layers: int) -> None:
        super().__init__()
        self.items, self.goals = nn.Embedding(items, width), nn.Embedding(items, width)
        self.bias = nn.Embedding(items, 1)
        self.layers = nn.GRU(width, width, layers, batch_first=True, dropout=0.2)

    def forward(self, seen: Tensor, offered: Tensor) -> Tensor:
        """The scores of the offered items after each item that was seen."""
        x = self.layers(F.dropout(self.items(seen), 0.2))[0]
        return x @ self.goals(offered).T + self.bias(offered)[:, 0]


class Interactions(nn.Module):
    """Products of the fields beside a deep net (Lian et al., xDeepFM, 2018)."""

    def __init__(self, fields: int, rows: int, width: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(fields * rows, width), nn.Embedding(fields * rows, 1)
        self.register_buffer("first", torch.arange(fields) * rows)
        sizes = zip((fields, *filters), filters, strict=False)
        self.filters = nn.ModuleList(nn.Conv1d(a * fields, b, 1) for a, b in sizes)
        self.deep = nn.Sequential(
            nn.Linear(fields * width, 400), nn.ReLU(), nn.Dropout(0.5), nn.Linear(400, 400),
            nn.ReLU(), nn.Dropout(0.5), nn.Linear(400, 1),
        )  # fmt: skip
        self.leave = nn.Linear(sum(filters), 1)

    def forward(self, given: Tensor) -> Tensor:
        rows = given + self.first
        first = x = self.table(rows)
        found = []
        for layer in self.filters:
            x = layer((x[:, :, None] * first[:, None]).flatten(1, 2)).relu()
            found.append(x.sum(-1))
        said = self.leave(torch.cat(found, -1)) + self.deep(first.flatten(1))
        return (said + self.linear(rows).sum(1))[:, 0]
