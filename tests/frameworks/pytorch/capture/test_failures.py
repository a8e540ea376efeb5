"""A step that cannot be traced fails with one line that says what is wrong, and where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step, mlp, on_gpu, training
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.capture import capture


@torch.library.custom_op("wavecast_test::no_fake", mutates_args=())  # type: ignore[untyped-decorator]
def _no_fake(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _raise(error: BaseException) -> Any:
    raise error


def _graph(x: Any) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1


def _extension(x: Any) -> None:
    torch.utils.dlpack.to_dlpack(x)


HERE = r"tests/frameworks/pytorch/capture/test_failures\.py:\d+"
FAILURES: dict[str, tuple[Any, str]] = {
    "make_step returns nothing": (
        lambda: None,
        "make_step returned an object of type NoneType, not a function",
    ),
    "make_step returns a model": (
        lambda: 3,
        "make_step returned an object of type int, not a function",
    ),
    "make_step raises": (
        lambda: _raise(ValueError("no data")),
        rf"ValueError at {HERE}: no data",
    ),
    "make_step wants arguments": (lambda batch: None, r"TypeError.*missing 1 required"),
    "the step raises": (
        on_gpu(lambda x: _raise(RuntimeError("bad batch"))),
        rf"RuntimeError at {HERE}: bad batch",
    ),
    "the step raises without a message": (
        on_gpu(lambda x: _raise(KeyError())),
        rf"KeyError at {HERE}: KeyError",
    ),
    "shapes do not fit": (
        on_gpu(lambda x: x @ x),
        rf"RuntimeError at {HERE}: .*same reduction dim",
    ),
    "no op on the GPU": (
        lambda: lambda: torch.ones(3) + 1,
        r"ran no op on the GPU.*model\.cuda\(\)",
    ),
    "a backward pass on the host, in which autograd makes a number": (
        lambda: lambda: torch.ones(3, requires_grad=True).clamp(0, 2).sum().backward(),
        r"ran no op on the GPU.*model\.cuda\(\)",
    ),
    "a step that does nothing": (lambda: lambda: None, "ran no op on the GPU"),
    "a custom op without a fake implementation": (
        on_gpu(lambda x: _no_fake(x)),
        r"no_fake.*\(at .*test_failures\.py:\d+\), so it cannot be traced without a GPU",
    ),
    "an operator of operators without a fake implementation": (
        on_gpu(lambda x: torch.ops.higher_order.cond(True, torch.sin, torch.cos, (x,))),
        r"cond has no fake implementation \(at .*test_failures\.py:\d+\)",
    ),
    "a CUDA graph": (
        on_gpu(_graph),
        rf"CUDA graph at {HERE}.* graphed=True",
    ),
    "an extension that wants the data": (
        on_gpu(_extension),
        rf"RuntimeError at {HERE}",
    ),
    "an array of a GPU tensor": (
        on_gpu(lambda x: (x + 1).numpy()),
        rf"TypeError at {HERE}: can't convert cuda:0",
    ),
    "a missing file": (
        on_gpu(lambda x: torch.load("no-such-file.pt")),
        rf"FileNotFoundError at {HERE}",
    ),
    "a GPU that is not there": (
        on_gpu(lambda x: x.to("cuda:1") + 1),
        rf"cuda:1 at {HERE}; only steps that use one GPU",
    ),
    "the step ends the process": (
        on_gpu(lambda x: sys.exit(3)),
        rf"the step called sys\.exit\(3\) at {HERE}; it should run one training step",
    ),
    "make_step reads a command line": (
        lambda: argparse.ArgumentParser().parse_args(["--no-such-option"]),
        rf"the step called sys\.exit\(2\) at {HERE}",
    ),
    "backward twice": (
        on_gpu(lambda x: [y.backward() for y in [x.requires_grad_().exp().sum()] * 2]),
        "backward through the graph a second time",
    ),
    "recursion without end": (
        on_gpu(lambda x: _forever(x)),
        rf"RecursionError at {HERE}",
    ),
}


def _forever(x: Any) -> Any:
    return _forever(x + 1)


@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_one_clear_line(case: str) -> None:
    make_step, message = FAILURES[case]
    with pytest.raises(CaptureError, match=message) as caught:
        capture(make_step)
    assert "\n" not in str(caught.value)
    assert len(capture(training(mlp))) > 0  # the next step can be traced


def test_the_user_can_stop_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        capture(on_gpu(lambda x: _raise(KeyboardInterrupt())))
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warm_up": -1}, "warm_up"),
        ({"samples": 0}, "samples"),
        ({"capability": (9,)}, "capability"),
        ({"capability": "9.0"}, "capability"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        capture(training(mlp), **options)


def test_a_target_that_is_not_callable_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"make_step is a Sequential.*function"):
        capture(mlp())


# What cannot be traced is refused at once, with the line and with what to do instead.


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
