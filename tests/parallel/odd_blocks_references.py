"""The steps of one tensor rank as an expert writes them with torch's DTensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

RANKS = 4
Sharding = Callable[[Any, Any], None]
"""Changes a model into that of one rank of a mesh."""


def styles_of(plan: Mapping[str, str]) -> dict[str, ParallelStyle]:
    """The same plan in DTensor's classes.

    A packed weight ([q; k; v], [gate; up]) is stored in another order, so that each rank's rows
    are its own part of q, of k and of v. Its sharding is then that of any other weight.
    """
    styles: dict[str, Callable[[], ParallelStyle]] = {
        "colwise": ColwiseParallel,
        "packed_colwise": ColwiseParallel,
        "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
        "rowwise": RowwiseParallel,
    }
    return {path: styles[style]() for path, style in plan.items()}


def by_plan(plan: Mapping[str, str]) -> Sharding:
    """Shard with one style a module."""

    def shard(model: Any, mesh: Any) -> None:
        parallelize_module(model, mesh, styles_of(plan))

    return shard


def copied(x: Any, mesh: Any) -> Any:
    """A replicated tensor for local code. Its gradient, partial on each rank, is all-reduced."""
    tensor = DTensor.from_local(x, mesh, [Replicate()])
    return tensor.to_local(grad_placements=[Partial()])


def summed(x: Any, mesh: Any) -> Any:
    """The all-reduced sum of the partial results of local code."""
    tensor = DTensor.from_local(x, mesh, [Partial()])
    return tensor.redistribute(placements=[Replicate()]).to_local()


def copy_inputs(module: Any, mesh: Any, count: int = 1) -> None:
    """Let local code of a module read the first of its arguments, and the last if there are two."""

    def prepare(_: Any, args: Any) -> Any:
        at = {0, len(args) - 1} if count == 2 else {0}
        return tuple(copied(x, mesh) if i in at else x for i, x in enumerate(args))

    module.register_forward_pre_hook(prepare)


def sum_output(module: Any, mesh: Any) -> None:
    """Let a module of local code give the sum over the ranks."""
    module.register_forward_hook(lambda _, args, result: summed(result, mesh))


def keep_shard(module: Any, name: str, dim: int) -> None:
    """Keep this rank's part of a parameter or buffer."""
    whole = getattr(module, name)
    local = whole.detach().chunk(RANKS, dim)[dist.get_rank()].clone()
    setattr(module, name, nn.Parameter(local) if isinstance(whole, nn.Parameter) else local)


def shard_alibi(plan: Mapping[str, str]) -> Sharding:
    """Each rank has the biases of its own heads."""

    def shard(model: Any, mesh: Any) -> None:
        parallelize_module(model, mesh, styles_of(plan))
        for block in model.blocks:
            keep_shard(block.attention, "bias", 0)

    return shard


def shard_multi_query(plan: Mapping[str, str]) -> Sharding:
    """All ranks compute the one key and value; their gradient is partial, and all-reduced."""

    def shard(model: Any, mesh: Any) -> None:
        parallelize_module(model, mesh, styles_of(plan))
        for block in model.blocks:
            block.attention.key_value.register_forward_hook(
                lambda _, args, result: copied(result, mesh)
            )

    return shard


def shard_vocabulary(table: Any, mesh: Any, layout: Any) -> None:
    """Look up local rows and sum over the ranks, as Megatron does.

    DTensor's own rule computes the gradient of the whole table on each rank, and then cuts it.
    """

    def look_up(tokens: Any) -> Any:
        rows = table.weight.to_local()
        first = dist.get_rank() * len(rows)
        elsewhere = (tokens < first) | (tokens >= first + len(rows))
        embedded = F.embedding((tokens - first).masked_fill(elsewhere, 0), rows)
        embedded = embedded.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        embedded = DTensor.from_local(embedded, mesh, [Partial()])
        return embedded.redistribute(placements=[layout]).to_local()

    table.weight = nn.Parameter(distribute_tensor(table.weight, mesh, [Shard(0)]))
    table.forward = look_up


def shard_tied(plan: Mapping[str, str]) -> Sharding:
    """Logits stay sharded by vocabulary; the tie is made again after sharding."""
    head = {"output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}

    def shard(model: Any, mesh: Any) -> None:
        inner = {path: style for path, style in plan.items() if path.startswith("blocks")}
        parallelize_module(model, mesh, styles_of(inner) | head)
        shard_vocabulary(model.tokens, mesh, Replicate())
        model.output.weight = model.tokens.weight

    return shard


def shard_channels(columns: str, norms: tuple[str, ...], rows: str, alone: str = "") -> Sharding:
    """Convolutions by channel: DTensor has no rule for them, so they are local code."""

    def shard(model: Any, mesh: Any) -> None:
        for block in model.blocks:
            first, last = getattr(block, columns), getattr(block, rows)
            copy_inputs(first, mesh)
            sum_output(last, mesh)
            keep_shard(last, "weight", 1)
            sharded = [first, *(getattr(block, name) for name in norms)]
            if alone:
                filters = getattr(block, alone)
                filters.groups //= RANKS
                sharded.append(filters)
            for module in sharded:
                for name in ("weight", "bias", "running_mean", "running_var"):
                    if getattr(module, name, None) is not None:
                        keep_shard(module, name, 0)

    return shard


def shard_experts(plan: Mapping[str, str]) -> Sharding:
    """Grouped experts are local code; what they add up is all-reduced in the order of tokens."""

    def shard(model: Any, mesh: Any) -> None:
        modules = {path: style for path, style in plan.items() if ".experts" not in path}
        parallelize_module(model, mesh, styles_of(modules))
        for block in model.blocks:
            experts = block.feed_forward.experts
            copy_inputs(experts, mesh, count=2)
            sum_output(experts, mesh)
            keep_shard(experts, "gate_up_proj", 2)
            keep_shard(experts, "down_proj", 1)

    return shard


def _sequence_styles(plan: Mapping[str, str]) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for path, style in plan.items():
        if path.startswith("blocks"):
            scatters = RowwiseParallel(output_layouts=Shard(1))
            styles[path] = ColwiseParallel() if style == "colwise" else scatters
    return styles


def _gathered() -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))


def shard_sequence(plan: Mapping[str, str]) -> Sharding:
    """Norms and sums by position, as torchtitan has them; each sublayer gathers its input once."""

    def shard(model: Any, mesh: Any) -> None:
        shard_vocabulary(model.tokens, mesh, Shard(1))
        styles = _sequence_styles(plan)
        for part in ("attention", "feed_forward"):
            styles[f"blocks.*.{part}_norm"] = SequenceParallel()
            styles[f"blocks.*.{part}"] = _gathered()
        parallelize_module(model, mesh, styles)

    return shard


def shard_sequence_one_norm(plan: Mapping[str, str]) -> Sharding:
    """One gather behind the one norm serves attention and feed-forward."""
    gathers = PrepareModuleOutput(
        output_layouts=Shard(1), desired_output_layouts=Replicate(), use_local_output=False
    )

    def shard(model: Any, mesh: Any) -> None:
        shard_vocabulary(model.tokens, mesh, Shard(1))
        styles = _sequence_styles(plan)
        parallelize_module(model, mesh, styles | {"blocks.*.norm": SequenceParallel()})
        for block in model.blocks:
            parallelize_module(block.norm, mesh, gathers)

    return shard


def local(tensor: Any) -> Any:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def reduce_partial_gradients(model: Any) -> None:
    """Sum the partial gradients of replicated weights in one all-reduce, as Megatron does."""
    partial = [
        p.grad
        for p in model.parameters()
        if isinstance(p.grad, DTensor) and p.grad.placements[0].is_partial()
    ]
    if not partial:
        return
    locals_ = [gradient.to_local() for gradient in partial]
    flat = torch.cat([gradient.flatten() for gradient in locals_])
    dist.all_reduce(flat)
    pieces = flat.split([gradient.numel() for gradient in locals_])
    for gradient, piece in zip(locals_, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


class LocalOptimizer:
    """AdamW on the local shards. Lists of DTensors and of other tensors do not mix."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        with torch.no_grad():
            self.shards = [local(parameter).detach() for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(self.shards)

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def step(self) -> None:
        with torch.no_grad():
            reduce_partial_gradients(self.model)
            for parameter, shard in zip(self.parameters, self.shards, strict=True):
                shard.grad = local(parameter.grad)
        self.optimizer.step()
