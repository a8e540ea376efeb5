"""What cannot be traced is refused at once, with the line and with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step, mlp, training
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture

HERE = r"tests/frameworks/pytorch/capture/test_refusals\.py:\d+"
ONE_RANK = "trace the step of one rank instead: without a process group"
TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


def _refused(make_step: Callable[[], Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        capture(make_step)
    assert "\n" not in str(caught.value)
    assert len(capture(training(mlp))) > 0  # the next step can be traced


@pytest.mark.parametrize(
    "start",
    [
        lambda: torch.distributed.init_process_group("nccl"),
        lambda: init_process_group("gloo"),
        lambda: init_process_group("gloo", rank=0, world_size=2, init_method="tcp://127.0.0.1:1"),
        lambda: fully_shard(mlp().cuda()),
        lambda: torch.distributed.init_device_mesh("cuda", (2,)),
    ],
)
@pytest.mark.parametrize("launched", [False, True])
def test_a_process_group_is_refused_and_does_not_wait_for_others(
    start: Callable[[], Any], launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value) if launched else monkeypatch.delenv(name, raising=False)
    _refused(lambda: start(), rf"starts a process group at {HERE}.*{ONE_RANK}")
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("wrapper", [nn.parallel.DistributedDataParallel, FullyShardedDataParallel])
def test_a_model_of_several_processes_is_refused(wrapper: Any) -> None:
    _refused(lambda: wrapper(mlp().cuda()), rf"model in {wrapper.__name__} at {HERE}.*{ONE_RANK}")


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_refused(layout: Any) -> None:
    rows = [torch.randn(3, 8), torch.randn(5, 8)]
    _refused(
        lambda: torch.nested.nested_tensor(rows, layout=layout, device="cuda"),
        rf"makes a nested tensor at {HERE}.*pad_sequence",
    )


def test_jagged_tensors_made_of_parts_are_refused() -> None:
    make = torch.nested.nested_tensor_from_jagged  # taken before tracing begins
    _refused(
        lambda: make(torch.randn(8, 4).cuda(), torch.tensor([0, 3, 8]).cuda()),
        rf"makes a nested tensor at {HERE}",
    )


def test_lazy_layers_are_refused() -> None:
    _refused(lambda: nn.LazyLinear(4).cuda(), rf"makes a lazy layer at {HERE}.*number of its input")


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_where_the_table_is_used(layer: Any) -> None:
    def make_step(frozen: bool = False) -> Step:
        table = layer(100, 8, sparse=True).cuda().requires_grad_(not frozen)
        head = nn.Linear(8, 2).cuda()
        numbers = torch.randint(0, 100, (4, 6), device="cuda")
        return lambda: head(table(numbers)).sum().backward()

    _refused(make_step, rf"sparse=True at {HERE}.*use sparse=False")
    assert len(capture(lambda: make_step(frozen=True))) > 0  # without a gradient, nothing is sparse
