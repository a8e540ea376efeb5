"""Compiled training steps with awkward code: graph breaks, values that are read, and ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn

from lab.steps import compiled_ways as ways
from lab.steps.compiled_ways import BATCH, WIDTH, Step, perceptron, rows, trained


def bad_script() -> Step:
    """A print, a value that is read, a call of numpy, and a branch on data, inside of a graph."""
    model, x = perceptron(), rows()

    def run() -> Any:
        y = model(x)
        print("here")
        scale = y.abs().max().item()
        y = y / (1.0 + scale)
        table = np.asarray(np.linspace(0.0, 1.0, WIDTH), dtype=np.float32)
        y = y * torch.from_numpy(table).to(y.device)
        if y.sum() > 0:
            y = y * 2
        return y.square().mean()

    return trained(model, torch.compile(run))


def masked() -> Step:
    """A selection whose size depends on data."""
    model, x = perceptron(), rows()

    def run() -> Any:
        y = model(x)
        return y[y > 0].square().mean()

    return trained(model, torch.compile(run))


def lengths() -> Step:
    """Two sizes of a batch in one step, for which torch compiles again."""
    model = perceptron()
    batches = [torch.randn(n, WIDTH, device="cuda") for n in (8, 16, 24)]
    model.compile()

    def run() -> Any:
        return sum(model(x).square().mean() for x in batches)

    return trained(model, run)


def from_constants() -> Step:
    """Widths that are computed on the GPU and read back, under a default device."""
    with torch.device("cuda"):
        widths = (torch.arange(3) * 16.0 + 32).div(8).round().mul(8).int().tolist()
        layers = [nn.Linear(WIDTH, widths[0])]
        layers += [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        model = nn.Sequential(*layers)
        x = torch.randn(BATCH, WIDTH)
    compiled = torch.compile(model)
    return trained(model, lambda: compiled(x).square().mean())


def experts() -> Step:
    """A mixture of experts whose tokens are sorted by expert."""
    gate = nn.Linear(WIDTH, 4).cuda()
    weights = nn.Parameter(torch.randn(4, WIDTH, WIDTH, device="cuda"))
    x = torch.randn(128, WIDTH, device="cuda")
    model = nn.ModuleList([gate])
    model.register_parameter("weights", weights)

    def run() -> Any:
        chances, chosen = gate(x).softmax(-1).topk(2)
        parts = torch.einsum("nd,edh->neh", x, weights)
        picked = parts.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
        return (picked * chances[..., None]).sum(1).square().mean()

    return trained(model, torch.compile(run))


def language() -> Step:
    """Tokens, sequences of several lengths, and a loss that ignores padding."""
    embed, head = nn.Embedding(1000, WIDTH).cuda(), nn.Linear(WIDTH, 1000).cuda()
    block = nn.TransformerEncoderLayer(WIDTH, 4, batch_first=True).cuda()
    model = nn.ModuleList([embed, block, head])
    tokens = torch.randint(0, 1000, (4, 32), device="cuda")
    padding = torch.zeros(4, 32, dtype=torch.bool, device="cuda")

    def run() -> Any:
        y = head(block(embed(tokens), src_key_padding_mask=padding))
        return F.cross_entropy(y.flatten(0, 1), tokens.flatten(), ignore_index=0)

    return trained(model, torch.compile(run))


def on_host() -> Step:
    """Numbers of the host inside of compiled code: schedules, tables and a copy to the GPU."""
    model, x = perceptron(), rows()
    table = torch.linspace(0, 1, WIDTH)
    count = 0

    def run(factor: float) -> Any:
        return (model(x) * table.to("cuda") * factor).square().mean()

    compiled = torch.compile(run)

    def loss() -> Any:
        nonlocal count
        count += 1
        return compiled(0.1 * count)

    return trained(model, loss)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        ctx.scale = scale
        ctx.save_for_backward(x)
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < ctx.scale), None


def own_function() -> Step:
    """A function with a gradient of its own (a straight-through estimator)."""
    model, x = perceptron(), rows()
    compiled = torch.compile(lambda y: _Rounded.apply(model(y), 8.0).square().mean())
    return trained(model, lambda: compiled(x))


def flexible_attention() -> Step:
    """flex_attention with a causal mask and a score of its own."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    model = nn.Linear(WIDTH, 3 * WIDTH).cuda()
    x = torch.randn(2, 256, WIDTH, device="cuda")
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")

    def run() -> Any:
        q, k, v = model(x).view(2, 256, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, block_mask=mask).square().mean()

    return trained(model, torch.compile(run))


def _ranked(wrap: Callable[[Any], Any]) -> Callable[[], Step]:
    def make() -> Step:
        dist.init_process_group("nccl")
        x = rows()
        model = wrap(nn.Sequential(perceptron(), perceptron()))
        return trained(model, lambda: model(x).square().mean())

    return make


def _ddp_inside(model: Any) -> Any:
    model.compile()
    return nn.parallel.DistributedDataParallel(model)


def _ddp_outside(model: Any) -> Any:
    return torch.compile(nn.parallel.DistributedDataParallel(model))


def _fsdp(model: Any, whole: bool) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cuda", (RANKS,))
    for block in model:
        if not whole:
            block.compile()
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if whole:
        model.compile()
    return model


RANKS = 4

WAYS: dict[str, Callable[[], Step]] = {
    "torch.compile(model)": ways.by_options(),
    "fullgraph=True": ways.by_options(fullgraph=True),
    "dynamic=True": ways.by_options(dynamic=True),
    'mode="reduce-overhead"': ways.by_options(mode="reduce-overhead"),
    'mode="max-autotune"': ways.by_options(mode="max-autotune"),
    'mode="max-autotune-no-cudagraphs"': ways.by_options(mode="max-autotune-no-cudagraphs"),
    'backend="aot_eager"': ways.by_options(backend="aot_eager"),
    'backend="eager"': ways.by_options(backend="eager"),
    "blocks compiled one by one": ways.compiled_blocks,
    "a compiled loss": ways.compiled_function,
    "autocast inside of the function": ways.compiled_step,
    "a compiled optimizer": ways.compiled_optimizer,
    "a part that is not compiled": ways.disabled_part,
}
TRAININGS: dict[str, Callable[[], Step]] = {
    "RNN": ways.recurrent(nn.RNN),
    "LSTM": ways.recurrent(nn.LSTM),
    "GRU": ways.recurrent(nn.GRU),
    "LSTM cells in a loop": ways.cells,
    "recurrent classifier": ways.sequences,
    "graph net": ways.graph_net,
    "U-Net": ways.denoiser,
    "channels last, fused SGD": ways.channels_last,
    "GAN with two optimizers": ways.adversarial,
    "two towers": ways.towers,
    "gradient accumulation, clipping, schedule": ways.accumulated,
    "checkpointing inside": ways.checkpointed,
    "checkpointing outside": ways.checkpointed_outside,
    "GradScaler, float16": ways.scaled,
    "moving average of weights": ways.averaged,
    "autograd.Function": own_function,
    "flex_attention": flexible_attention,
    "mixture of experts": experts,
    "transformer layer with padding": language,
}
AWKWARD: dict[str, Callable[[], Step]] = {
    "print, item, numpy, branch": bad_script,
    "mask whose size depends on data": masked,
    "three batch sizes": lengths,
    "widths computed on the GPU": from_constants,
    "numbers of the host": on_host,
}
RANKED: dict[str, Callable[[], Step]] = {
    "DDP around a compiled model": _ranked(_ddp_inside),
    "a compiled DDP": _ranked(_ddp_outside),
    "FSDP2, blocks compiled": _ranked(partial(_fsdp, whole=False)),
    "FSDP2, model compiled": _ranked(partial(_fsdp, whole=True)),
}
