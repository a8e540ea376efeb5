"""Training steps whose own code is parallel: DDP, FSDP2 and tensor parallel, for one rank of many.

The process group must exist already: torch's fake one on a GPU, or that of a trace.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from wavecast.suite.models.language import GPT2
from wavecast.suite.models.llama import Llama

RANKS = 8
Step = Callable[[], None]

_SIZES: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "gpt2": (partial(GPT2, 12, 768, 12, 50_257, 1024, dropout=0.0), 4, 1024, 50_257),
    "llama": (partial(Llama, 8, 2048, 32, 8, 8192, 32_000, tied=False), 2, 1024, 32_000),
}
"""For each model how it is made, and the batch, the sequence and the vocabulary."""


def ddp(name: str) -> Step:
    """DistributedDataParallel under autocast."""
    model = DistributedDataParallel(_model(name))
    return _step(name, model, autocast=True)


def fsdp(
    name: str,
    ranks: tuple[int, ...] = (RANKS,),
    reshard: bool = True,
    checkpointing: bool = False,
    weights: torch.dtype = torch.float32,
) -> Step:
    """`fully_shard` on each block and on the model, in bfloat16.

    Args:
        name: the model.
        ranks: the ranks of the mesh; two numbers are replicas and shards (HSDP).
        reshard: whether gathered weights are freed after the forward pass (else as ZeRO 2).
        checkpointing: whether blocks compute their activations again.
        weights: the data type in which weights are stored.
    """
    names = ("replicate", "shard")[-len(ranks) :]
    mesh = dist.init_device_mesh("cuda", ranks, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    model: Any = _model(name).to(weights)
    for block in model.blocks:
        if checkpointing:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return _step(name, model, autocast=False)


def tensor(name: str) -> Step:
    """The products of each block split over the ranks, under autocast."""
    mesh = dist.init_device_mesh("cuda", (RANKS,))
    model: Any = _model(name)
    columns, rows = ColwiseParallel, RowwiseParallel
    for block in model.blocks:
        if name == "gpt2":
            plan: dict[str, Any] = {"feed_forward.0": columns(), "feed_forward.2": rows()}
        else:
            inner = [f"attention.{part}" for part in ("query", "key", "value")]
            inner += [f"feed_forward.{part}" for part in ("gate", "up")]
            plan = {path: columns() for path in inner}
            plan |= {"attention.project": rows(), "feed_forward.down": rows()}
        parallelize_module(block, mesh, plan)
    return _step(name, model, autocast=True, foreach=False)


STEPS: dict[str, Callable[[], Step]] = {
    **{
        f"{strategy.__name__} {name}": partial(strategy, name)
        for strategy in (ddp, fsdp, tensor)
        for name in _SIZES
    },
    "hsdp llama": partial(fsdp, "llama", ranks=(2, RANKS // 2)),
    "zero2 llama": partial(fsdp, "llama", reshard=False),
    "fsdp-checkpointed llama": partial(fsdp, "llama", checkpointing=True),
    "fsdp-bf16 llama": partial(fsdp, "llama", weights=torch.bfloat16),
    "zero2-bf16 llama": partial(fsdp, "llama", reshard=False, weights=torch.bfloat16),
}


def _model(name: str) -> nn.Module:
    return _SIZES[name][0]().cuda()


def _step(name: str, model: nn.Module, *, autocast: bool, foreach: bool | None = None) -> Step:
    _, batch, sequence, vocabulary = _SIZES[name]
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    tokens = torch.randint(0, vocabulary, (batch, sequence + 1), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step
