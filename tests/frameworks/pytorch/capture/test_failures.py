"""A step that cannot be traced fails with one line that says what is wrong, and where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step, mlp, training

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.capture import capture


@torch.library.custom_op("wavecast_test::no_fake", mutates_args=())  # type: ignore[untyped-decorator]
def _no_fake(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _on_gpu(body: Callable[[Any], Any]) -> Callable[[], Step]:
    def make_step() -> Step:
        x = torch.randn(4, 8, device="cuda")
        return lambda: body(x)

    return make_step


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
        _on_gpu(lambda x: _raise(RuntimeError("bad batch"))),
        rf"RuntimeError at {HERE}: bad batch",
    ),
    "the step raises without a message": (
        _on_gpu(lambda x: _raise(KeyError())),
        rf"KeyError at {HERE}: KeyError",
    ),
    "shapes do not fit": (
        _on_gpu(lambda x: x @ x),
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
        _on_gpu(_no_fake),
        r"no_fake.*\(at .*test_failures\.py:\d+\), so it cannot be traced without a GPU",
    ),
    "an operator of operators without a fake implementation": (
        _on_gpu(lambda x: torch.ops.higher_order.cond(True, torch.sin, torch.cos, (x,))),
        r"cond has no fake implementation \(at .*test_failures\.py:\d+\)",
    ),
    "a CUDA graph": (
        _on_gpu(_graph),
        rf"CUDA graph at {HERE}.* graphed=True",
    ),
    "an extension that wants the data": (
        _on_gpu(_extension),
        rf"RuntimeError at {HERE}",
    ),
    "an array of a GPU tensor": (
        _on_gpu(lambda x: (x + 1).numpy()),
        rf"TypeError at {HERE}: can't convert cuda:0",
    ),
    "a missing file": (
        _on_gpu(lambda x: torch.load("no-such-file.pt")),
        rf"FileNotFoundError at {HERE}",
    ),
    "a GPU that is not there": (
        _on_gpu(lambda x: x.to("cuda:1") + 1),
        rf"cuda:1 at {HERE}; only steps that use one GPU",
    ),
    "the step ends the process": (
        _on_gpu(lambda x: sys.exit(3)),
        rf"the step called sys\.exit\(3\) at {HERE}; it should run one training step",
    ),
    "make_step reads a command line": (
        lambda: argparse.ArgumentParser().parse_args(["--no-such-option"]),
        rf"the step called sys\.exit\(2\) at {HERE}",
    ),
    "backward twice": (
        _on_gpu(lambda x: [y.backward() for y in [x.requires_grad_().exp().sum()] * 2]),
        "backward through the graph a second time",
    ),
    "recursion without end": (
        _on_gpu(lambda x: _forever(x)),
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
        capture(_on_gpu(lambda x: _raise(KeyboardInterrupt())))
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
