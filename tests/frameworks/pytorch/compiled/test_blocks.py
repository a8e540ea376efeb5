"""Blocks that are compiled one by one, as torchtitan does, and computed again in the backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from wavecast.frameworks.pytorch.compiled import dynamo
from wavecast.frameworks.pytorch.compiled.tracing import capture
from wavecast.hardware.devices import device
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.graphs import eager_code, graphs_of
from wavecast.traces.step import Phase, Trace

BLOCKS = 3
ATTENTION = "aten._scaled_dot_product_flash_attention"


class Attention(nn.Module):
    """Attention with dropout, which draws random numbers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.parts = nn.Linear(width, 3 * width)

    def forward(self, x: Any) -> Any:
        q, k, v = self.parts(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        return x + y.transpose(1, 2).flatten(2)


class Recomputed(nn.Module):
    """A block whose activations are computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Attention()

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inside, x, use_reentrant=False)


class Net(nn.Module):
    """Blocks after each other."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Recomputed() for _ in range(BLOCKS))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def make_step() -> Callable[[], None]:
    model = Net().cuda().bfloat16()
    for block in model.blocks:
        block.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 128, 64, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.fixture(scope="module")
def trace() -> Trace:
    return capture(make_step, gpu=device("a100-sxm-80gb"))


def test_what_is_computed_again_is_compiled_with_its_random_numbers(trace: Trace) -> None:
    assert not any("could not be followed" in note for note in trace.notes)
    attended = Counter(call.phase for call in trace if call.op.name == ATTENTION)
    assert attended == {Phase.FORWARD: BLOCKS, Phase.BACKWARD: BLOCKS}


def test_a_graph_that_is_compiled_once_belongs_to_each_block_that_runs_it(trace: Trace) -> None:
    products = Counter(
        call.module.split(".inside")[0]
        for call in trace
        if call.op.base in ("aten.mm", "aten.addmm")
    )
    assert set(products) == {f"Net.blocks.{block}" for block in range(BLOCKS)}
    assert products["Net.blocks.1"] == products["Net.blocks.2"]


def test_fsdp_exchanges_the_weights_and_gradients_of_each_block(trace: Trace) -> None:
    last = spread(trace, Parallel(data=2, shard=3)).groups[0].parts[0].last
    names = Counter(call.op.name for call in last)
    assert names["nccl.reduce_scatter"] == BLOCKS
    assert names["nccl.all_gather"] == 2 * BLOCKS
    # The compiled code of each block, forward and backward; the optimizer is eager.
    assert len(graphs_of(last.calls)) == len(graphs_of(trace.calls)) == 2 * BLOCKS


MANY = 10
"""More blocks than Dynamo compiles one function for (`recompile_limit`)."""


@pytest.mark.parametrize("wrap", [False, True])
def test_blocks_that_are_one_graph_each_are_compiled_once_as_torchtitan_shards_them(
    wrap: bool,
) -> None:
    """Hooks of the trace run where the compiler listens; it compiled their look-ups eight times."""

    def make_step() -> Callable[[], None]:
        distributed.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (distributed.get_world_size(),))
        model = nn.Sequential(*(Attention() for _ in range(MANY)))
        for name, plain in list(model.named_children()):
            block: Any = checkpoint_wrapper(plain, preserve_rng_state=False)
            if wrap:
                block = torch.compile(block, fullgraph=True)
            else:
                block.compile(fullgraph=True)
            model.register_module(name, block)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*model, model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        x = torch.randn(2, 128, 64, device="cuda", dtype=torch.bfloat16)
        return lambda: model(x).square().mean().backward()

    before = dynamo.graph_count()
    trace = capture(make_step, gpu=device("a100-sxm-80gb"), ranks=4)
    assert not eager_code(trace)
    assert len(graphs_of(trace.calls)) == 2 * MANY
    assert dynamo.graph_count() - before <= 3  # the first, a middle and the last block
