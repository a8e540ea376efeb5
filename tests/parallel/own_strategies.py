"""The step of a small Llama whose own code is parallel, by ten strategies, and the plain step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import pipelining
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as layers
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from wavecast.suite.decoders import DecoderShape, SizedDecoder
from wavecast.suite.models.llama import Llama, rotations
from wavecast.suite.models.mixtures import GroupedLayers, MixtureLayers, MixtureShape

Step = Callable[[], Any]
WIDTH, INNER, HEADS, VOCABULARY = 1024, 4096, 16, 1000


@dataclass(frozen=True)
class Sizes:
    """A model and a batch."""

    layers: int = 4
    batch: int = 2
    sequence: int = 128
    dtype: torch.dtype = torch.float32
    recompute: bool = False
    autocast: bool = False
    foreach: bool = True
    experts: int = 0


def plain(sizes: Sizes) -> Step:
    """The step on one GPU."""
    return training(sizes, model_of(sizes))


def model_of(sizes: Sizes) -> Any:
    """A Llama on the GPU, or one with experts, whose blocks may be run again."""
    with torch.device("cuda"):
        if sizes.experts:
            shape = (sizes.layers, WIDTH, HEADS, HEADS, INNER, VOCABULARY, sizes.sequence)
            mixture = MixtureShape(sizes.experts, top_k=2)
            decoder = DecoderShape(*shape, WIDTH // HEADS, True, False, mixture=mixture)
            recompute = "full" if sizes.recompute else "none"
            return SizedDecoder(decoder, recompute, fused_attention=True).to(sizes.dtype)
        model = Llama(sizes.layers, WIDTH, HEADS, HEADS, INNER, VOCABULARY, tied=False)
    return _recomputing(model.to(sizes.dtype), sizes)


def _recomputing(model: Any, sizes: Sizes) -> Any:
    for block in model.blocks if sizes.recompute else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model


def training(sizes: Sizes, model: Any, optimizer: Any = None) -> Step:
    """The usual step of a model."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), foreach=sizes.foreach)
    tokens = _tokens(sizes)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=sizes.autocast):
            logits = model(tokens)
        _loss(logits, tokens).backward()
        optimizer.step()

    return step


def _tokens(sizes: Sizes, batch: int = 0) -> Tensor:
    shape = (batch or sizes.batch, sizes.sequence)
    return torch.zeros(shape, dtype=torch.int64, device="cuda")


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def ddp(sizes: Sizes) -> Step:
    """DistributedDataParallel."""
    dist.init_process_group("nccl")
    return training(sizes, DistributedDataParallel(model_of(sizes)))


def zero_1(sizes: Sizes) -> Step:
    """DistributedDataParallel with the optimizer states of a share of the parameters."""
    with warnings.catch_warnings():  # its module scripts functions, which torch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("nccl")
    model = DistributedDataParallel(model_of(sizes))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, foreach=sizes.foreach, lr=1e-3
    )
    return training(sizes, model, optimizer)


def fsdp(sizes: Sizes, mesh: tuple[int, ...] = (8,), reshard: bool = True) -> Step:
    """`fully_shard` on each block and on the model; gradients are reduced in float32."""
    names = ("replica", "shard")[-len(mesh) :]
    options: dict[str, Any] = {
        "mesh": dist.init_device_mesh("cuda", mesh, mesh_dim_names=names),
        "mp_policy": MixedPrecisionPolicy(
            torch.bfloat16 if sizes.autocast else None, torch.float32
        ),
        "reshard_after_forward": reshard,
    }
    model = model_of(sizes)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return training(replace(sizes, autocast=False), model)


def tensor(sizes: Sizes, sequence: bool = False, ranks: int = 8) -> Step:
    """Weights split over the ranks by DTensor, as torchtitan does, with the loss on the shards."""
    mesh = dist.init_device_mesh("cuda", (ranks,))
    model = model_of(replace(sizes, recompute=False))
    layers.parallelize_module(model, mesh, _styles(sizes.layers, sequence))
    step = training(sizes, _recomputing(model, sizes))

    def on_shards() -> None:
        with layers.loss_parallel():
            step()

    return on_shards


def _styles(blocks: int, sequence: bool) -> dict[str, Any]:
    between = Shard(1) if sequence else Replicate()
    styles: dict[str, Any] = {
        "words": layers.RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "output": layers.ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parts = {"attention": ("query", "key", "value"), "feed_forward": ("gate", "up")}
    for block in (f"blocks.{index}" for index in range(blocks)):
        for part, names in parts.items():
            styles |= {f"{block}.{part}.{name}": layers.ColwiseParallel() for name in names}
        for name in ("attention.project", "feed_forward.down"):
            styles[f"{block}.{name}"] = layers.RowwiseParallel(output_layouts=between)
        if sequence:
            for part, others in (("attention", (None,)), ("feed_forward", ())):
                styles[f"{block}.{part}_norm"] = layers.SequenceParallel()
                styles[f"{block}.{part}"] = layers.PrepareModuleInput(
                    input_layouts=(Shard(1), *others),
                    desired_input_layouts=(Replicate(), *others),
                )
    return styles | ({"norm": layers.SequenceParallel()} if sequence else {})


class Stage(nn.Module):
    """Some blocks of a Llama, with what comes before the first and after the last of all."""

    def __init__(self, model: Any, begin: int, end: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(model.blocks[begin:end])
        self.words = None if begin else model.words
        is_last = end == len(model.blocks)
        self.head = nn.Sequential(model.norm, model.output) if is_last else None
        self.shape = model.head_size, model.base

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or hidden states -> hidden states or logits."""
        if self.words is not None:
            x = self.words(x)
        turn = rotations(x.shape[1], *self.shape, x.device)
        for block in self.blocks:
            x = block(x, turn)
        return x if self.head is None else self.head(x)


def pipeline(sizes: Sizes, stages: int, microbatches: int) -> Step:
    """The first stage of a pipeline (`torch.distributed.pipelining`)."""
    dist.init_process_group("nccl")
    whole = model_of(replace(sizes, recompute=False))
    stage = _recomputing(Stage(whole, 0, sizes.layers // stages), sizes)
    del whole
    sent = torch.empty(
        sizes.batch, sizes.sequence, WIDTH, dtype=sizes.dtype, device="meta", requires_grad=True
    )
    given = torch.empty(sizes.batch, sizes.sequence, dtype=torch.int64, device="meta")
    place = pipelining.PipelineStage(
        stage, 0, stages, torch.device("cuda"), input_args=given, output_args=sent
    )
    run = pipelining.Schedule1F1B(place, microbatches, loss_fn=_loss)
    optimizer = torch.optim.AdamW(stage.parameters())
    tokens = _tokens(sizes, sizes.batch * microbatches)

    def step() -> None:
        optimizer.zero_grad()
        run.step(tokens)
        optimizer.step()

    return step


class ByPosition(nn.Module):
    """A Llama that is told the positions of its tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens and their positions -> logits."""
        model = self.model
        size = model.head_size
        rates = model.base ** (-torch.arange(0, size, 2, device="cuda") / size)
        angles = torch.outer(positions.float(), rates).repeat(1, 2)
        x, turn = model.words(tokens), (angles.cos(), angles.sin())
        for block in model.blocks:
            x = block(x, turn)
        return model.output(model.norm(x))


def context(sizes: Sizes, ranks: int) -> Step:
    """Ring attention (`context_parallel`); DDP reduces the gradients of all ranks."""
    mesh = dist.init_device_mesh("cuda", (ranks,))
    model = DistributedDataParallel(ByPosition(model_of(sizes)))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, positions = _tokens(sizes), torch.arange(sizes.sequence, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        parts = [tokens.clone(), tokens.clone(), positions.clone()]
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[1, 1, 0]):
            _loss(model(parts[0], parts[2]), parts[1]).backward()
        optimizer.step()

    return step


class SpreadLayers(MixtureLayers):
    """A mixture whose experts are on other ranks, one on each."""

    def experts_of_all(self, sent: Tensor, ends: Tensor) -> Tensor:
        """Tokens sorted by expert -> the results of the experts."""
        ranks = dist.get_world_size()
        theirs = torch.empty_like(ends)
        dist.all_to_all_single(theirs, ends)
        equal = [sent.shape[0] // ranks] * ranks
        everyone = dist.group.WORLD
        got = all_to_all_single_autograd(sent, equal, equal, everyone)
        results = self.own_experts(got, theirs.sum(0, keepdim=True).int())
        return all_to_all_single_autograd(results, equal, equal, everyone)


def experts(sizes: Sizes, ranks: int) -> Step:
    """One expert on each rank, tokens sent to it and back; DDP reduces all other gradients."""
    dist.init_process_group("nccl")
    model = model_of(sizes)
    for block in model.blocks:
        mixture = block.feed_forward
        mixture.__class__ = SpreadLayers
        with torch.device("cuda"):
            mixture.own_experts = GroupedLayers(1, WIDTH, INNER).to(sizes.dtype)
        del mixture.experts
        mixture.experts = mixture.experts_of_all
    own = [name for name, _ in model.named_parameters() if ".own_experts." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
    return training(sizes, DistributedDataParallel(model))
