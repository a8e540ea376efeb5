"""Training steps with their own parallel code, and the collectives that torch issues for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from wavecast.suite.models.language import GPT2
from wavecast.suite.models.llama import Llama
from wavecast.suite.models.vision import ResNet
from wavecast.traces.step import Trace

RANKS = 8
Step = Callable[[], Any]


@dataclass(frozen=True)
class Exchange:
    """A collective: its name, the bytes that one rank gives and gets, and its ranks."""

    name: str
    given: int
    got: int
    ranks: int


def gpt2() -> tuple[nn.Module, Callable[[str], Any]]:
    """A small GPT-2, and its input on a device."""
    model = GPT2(layers=3, width=128, heads=4, vocabulary=1000, context=16, dropout=0.0)
    return model, lambda device: torch.zeros(2, 16, dtype=torch.int64, device=device)


def llama() -> tuple[nn.Module, Callable[[str], Any]]:
    """A small Llama, and its input on a device."""
    model = Llama(4, 256, 8, 8, 512, 2000, tied=False)
    return model, lambda device: torch.zeros(2, 16, dtype=torch.int64, device=device)


def resnet50() -> tuple[nn.Module, Callable[[str], Any]]:
    """ResNet-50 of a quarter of the width, and its input on a device: small images."""
    model = ResNet((3, 4, 6, 3), 16, 1000)
    return model, lambda device: torch.zeros(2, 3, 32, 32, device=device)


MODELS = {"gpt2": gpt2, "llama": llama, "resnet50": resnet50}


def blocks_of(model: Any) -> Any:
    """The repeated parts of a model."""
    return model.stages if isinstance(model, ResNet) else model.blocks


def minimize(model: Any, x: Any, **options: Any) -> Step:
    """A training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().sum().backward()
        optimizer.step()

    return step


def plain_step(name: str, device: str = "cuda") -> Step:
    """The step on one GPU."""
    model, inputs = MODELS[name]()
    return minimize(model.to(device), inputs(device))


def ddp_step(name: str, device: str = "cuda", **options: Any) -> Step:
    """The step with DistributedDataParallel."""
    model, inputs = MODELS[name]()
    model = DistributedDataParallel(model.to(device), **options)
    step = minimize(model, inputs(device))
    step.model = model  # type: ignore[attr-defined]
    return step


def fsdp_step(name: str, device: str = "cuda", mixed: bool = False) -> Step:
    """The step with `fully_shard` on each block and on the model."""
    mesh = dist.init_device_mesh(device, (RANKS,))
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    )
    model, inputs = MODELS[name]()
    model = model.to(device)
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return minimize(model, inputs(device))


def tensor_step(name: str, device: str = "cuda") -> Step:
    """The step with products split over the ranks."""
    mesh = dist.init_device_mesh(device, (RANKS,))
    model, inputs = MODELS[name]()
    model = model.to(device)
    columns, rows = ColwiseParallel, RowwiseParallel
    if name == "resnet50":
        parallelize_module(model, mesh, {"classifier": columns(output_layouts=Replicate())})
    for block in blocks_of(model):
        if name == "gpt2":
            parallelize_module(block, mesh, {"feed_forward.0": columns(), "feed_forward.2": rows()})
        if name == "llama":
            attention = {f"attention.{part}": columns() for part in ("query", "key", "value")}
            inner = {f"feed_forward.{part}": columns() for part in ("gate", "up")}
            outer = {"attention.project": rows(), "feed_forward.down": rows()}
            parallelize_module(block, mesh, attention | inner | outer)
    return minimize(model, inputs(device), foreach=False)  # tensors of both kinds do not mix


def two_axes_step(device: str = "cuda") -> Step:
    """A Llama sharded over four ranks whose products are split over two, with clipping."""
    mesh = dist.init_device_mesh(device, (4, 2), mesh_dim_names=("data", "tensor"))
    model, inputs = llama()
    model = model.to(device)
    for block in blocks_of(model):
        inner = {f"feed_forward.{part}": ColwiseParallel() for part in ("gate", "up")}
        parallelize_module(block, mesh["tensor"], inner | {"feed_forward.down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x = inputs(device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().sum().backward()
        nn.utils.clip_grad_norm_(
            [p for block in blocks_of(model) for p in block.feed_forward.parameters()], 1.0
        )
        optimizer.step()

    return step


def exchanges(trace: Trace) -> list[Exchange]:
    """The collectives of a trace, in order."""
    made = []
    for call in trace:
        if call.op.name.startswith("nccl."):
            given, got = (sum(t.nbytes for t in ts) for ts in (call.op.inputs, call.op.outputs))
            ranks = call.op.attr("ranks")
            assert isinstance(ranks, int)
            made.append(Exchange(call.op.name.removeprefix("nccl."), given, got, ranks))
    return made


_NAMES = {
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
}


class IssuedCollectives(TorchDispatchMode):
    """Writes down the collectives that torch issues, on real tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[Exchange] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, and write it down if it is a collective."""
        out = func(*args, **(kwargs or {}))
        namespace, name = func.namespace, func._schema.name.split("::")[1]
        if namespace == "c10d":
            wide = len(args) > 1 and isinstance(args[1], torch.Tensor)
            given, got = (args[1], args[0]) if wide else (args[0], args[0])
            self._write(name, given, got)
        elif namespace == "_c10d_functional" and name in _NAMES:
            self._write(name, args[0], out)
        return out

    def _write(self, name: str, given: Any, got: Any) -> None:
        ranks = dist.get_world_size()
        self.issued.append(Exchange(_NAMES[name], _nbytes(given), _nbytes(got), ranks))


def _nbytes(value: Any) -> int:
    tensors = [value] if isinstance(value, torch.Tensor) else value
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def issued(
    make_step: Callable[[], Step], backend: str = "fake", warm_up: int = 1
) -> list[Exchange]:
    """The collectives of a step that runs on real CPU tensors, after some calls of it."""
    with group(backend):
        step = make_step()
        for _ in range(warm_up):
            step()
        watch = IssuedCollectives()
        with watch:
            step()
        return watch.issued


@contextmanager
def group(backend: str) -> Iterator[None]:
    """A process group of the fake backend, or of gloo with one rank, inside the block."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # torch replaces it
    if backend == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
