"""The collectives of a tensor rank against those that DTensor issues for the same plan."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

import wavecast
from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.strategy import Parallel
from wavecast.suite import benchmark
from wavecast.traces.step import DTYPE_BYTES, Phase, Trace

torch = pytest.importorskip("torch")

SIZES = {"layers": 2, "width": 32, "heads": 4, "key_value_heads": 4, "inner": 64, "vocabulary": 20}
COLUMNS = ("attention.query", "attention.key", "attention.value")
INNER = ("feed_forward.gate", "feed_forward.up")
ROWS = ("attention.project", "feed_forward.down")
NAMES = {
    "all_reduce": "nccl.all_reduce",
    "all_gather_into_tensor": "nccl.all_gather",
    "reduce_scatter_tensor": "nccl.reduce_scatter",
}
PLAN = {
    **{f"blocks.*.{name}": "colwise" for name in (*COLUMNS, *INNER)},
    **{f"blocks.*.{name}": "rowwise" for name in ROWS},
    "words": "rowwise",
    "output": "colwise_rep",
}


@contextmanager
def one_of(ranks: int) -> Iterator[Any]:
    """A mesh of ranks of which this process is the first, with no other process."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from wavecast.frameworks.pytorch.capture.ranks import forget_shardings

    forget_shardings()
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


def dtensor_styles(sequence: bool) -> dict[str, Any]:
    """The same plan as `PLAN`, in DTensor's classes; with `sequence` as torchtitan has it."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    between = Shard(1) if sequence else Replicate()
    styles: dict[str, Any] = {
        "words": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "output": tp.ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    for block in ("blocks.0", "blocks.1"):
        styles |= {f"{block}.{name}": tp.ColwiseParallel() for name in (*COLUMNS, *INNER)}
        styles |= {f"{block}.{name}": tp.RowwiseParallel(output_layouts=between) for name in ROWS}
        if sequence:
            styles[f"{block}.attention_norm"] = tp.SequenceParallel()
            styles[f"{block}.feed_forward_norm"] = tp.SequenceParallel()
            styles[f"{block}.attention"] = tp.PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            )
            styles[f"{block}.feed_forward"] = tp.PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            )
    if sequence:
        styles["norm"] = tp.SequenceParallel()
    return styles


Collective = tuple[str, int]
"""A collective and the bytes that a rank gives to it."""
Product = tuple[int, int, int]
"""The sizes of a product of two matrices."""


def issued(ranks: int, sequence: bool, precision: str) -> tuple[list[Collective], list[Product]]:
    """What one rank does in a forward and a backward pass under DTensor."""
    import torch.nn.functional as F
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module
    from torch.utils._python_dispatch import TorchDispatchMode

    from wavecast.suite.models.llama import Llama

    calls: list[Collective] = []
    products: list[Product] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented  # seen again on the tensors of this rank
            _, name, *_ = str(func).split(".")
            if name in NAMES:
                dtype = str(args[0].dtype).removeprefix("torch.")
                calls.append((NAMES[name], args[0].numel() * DTYPE_BYTES[dtype]))
            elif name == "mm" and not isinstance(args[0], FakeTensor):  # DTensor asks for shapes
                products.append((*args[0].shape, args[1].shape[1]))
            return func(*args, **(kwargs or {}))

    model = Llama(**SIZES, tied=False)
    tokens = torch.zeros(3, 12, dtype=torch.long)
    with one_of(ranks) as mesh, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallelize_module(model, mesh, dtensor_styles(sequence))
        with Recorder():
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                logits = model(tokens).flatten(0, 1)
            F.cross_entropy(logits.float(), tokens.flatten()).backward()
    return calls, products


@cache
def llama(precision: str) -> Trace:
    sizes = {**SIZES, "tied": False, "sequence": 12}
    return wavecast.trace(
        lambda: benchmark("llama-1b").make_step(3, precision, device="cuda", **sizes)
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective_and_product_is_the_one_that_dtensor_issues(
    ranks: int, sequence: bool, precision: str
) -> None:
    strategy = Parallel(tensor=ranks, sequence=sequence, tensor_plan=PLAN)
    sharded, _ = with_layers_sharded(llama(precision), strategy)
    passes = [call.op for call in sharded if call.phase in (Phase.FORWARD, Phase.BACKWARD)]
    ours = [(op.name, op.inputs[0].nbytes) for op in passes if op.name.startswith("nccl.")]
    if sequence:  # DTensor leaves the sum of the norms' gradients to whoever reads them
        norms = 5 * 32 * 4
        assert ours.pop() == ("nccl.all_reduce", norms)
    collectives, products = issued(ranks, sequence, precision)
    assert ours == collectives
    assert [
        (*op.inputs[0].shape, op.inputs[1].shape[1]) for op in passes if op.base == "aten.mm"
    ] == products
