"""The attention of a context rank against PyTorch's own ring attention, step by step."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from parallel.traced_models import traced

from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import DTYPE_BYTES, Phase

torch = pytest.importorskip("torch")

Event = tuple[str, int, int]
"""A collective with its bytes, or attention with the lengths of queries and keys."""
NAMES = {"all_gather_into_tensor": "nccl.all_gather", "all_to_all_single": "nccl.send"}


def events_of_torch(ranks: int, causal: bool) -> tuple[list[Event], list[Event]]:
    """What the last rank does in PyTorch's ring attention, forward and backward."""
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel import _attention
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    events: list[Event] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = str(func).split(".")[1]
            if name in NAMES:
                width = DTYPE_BYTES[str(args[0].dtype).removeprefix("torch.")]
                events.append((NAMES[name], args[0].numel() * width, 0))
            return func(*args, **(kwargs or {}))

    def attend(query: Any, key: Any, value: Any, **_: Any) -> Any:
        events.append(("attention", query.shape[2], key.shape[2]))
        return torch.zeros_like(query), torch.zeros(query.shape[:3])

    def attend_backward(query: Any, key: Any, value: Any, **_: Any) -> Any:
        events.append(("attention", query.shape[2], key.shape[2]))
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)

    dist.init_process_group("fake", rank=ranks - 1, world_size=ranks, store=FakeStore())
    try:
        with warnings.catch_warnings(), Recorder():
            warnings.simplefilter("ignore")
            group = dist.group.WORLD
            own = [torch.zeros(3, 2, 12 // ranks, 16, dtype=torch.bfloat16) for _ in range(4)]
            result = _attention._templated_ring_attention(
                group, 2, attend, *own[:3], is_causal=causal
            )
            forward, events = events, []
            _attention._templated_ring_attention_backward(
                group, 2, attend_backward, own[3], "grad_out", *own[:3], *result[:2], causal
            )
    finally:
        dist.destroy_process_group()
    return forward, events


def events_of_ours(ranks: int) -> tuple[list[Event], list[Event]]:
    sharded, _ = with_layers_sharded(traced("gpt2", "bf16"), Parallel(context=ranks))
    passes: dict[Phase, list[Event]] = {Phase.FORWARD: [], Phase.BACKWARD: []}
    for call in sharded:
        if not call.module.endswith("blocks.0.attention"):
            continue
        op = call.op
        if op.name.startswith("nccl."):
            passes[call.phase].append((op.name, op.inputs[0].nbytes, 0))
        elif "attention" in op.base:
            first = int(call.phase is Phase.BACKWARD)  # the gradient comes first
            query, key = op.inputs[first : first + 2]
            passes[call.phase].append(("attention", query.shape[2], key.shape[2]))
    return passes[Phase.FORWARD], passes[Phase.BACKWARD]


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_every_step_is_the_one_of_torch(ranks: int) -> None:
    assert events_of_ours(ranks) == events_of_torch(ranks, causal=True)
