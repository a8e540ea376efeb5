"""CUDA's autocast: which ops run in half precision, which in float32, and the casts between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Step, calls_of, forward, names, training
from torch import nn

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import autocast, capture
from wavecast.traces.step import Phase

HALF = [torch.float16, torch.bfloat16]
# CUDA casts these ops, too. `_cudnn_rnn` is cast with its layer. It is not known how torch 2.15
# casts `linalg_matrix_sqrth`, so it is left alone. The rest are forms for named tensors.
LEFT_OUT = set(
    """
    _cudnn_rnn linalg_matrix_sqrth softmax.Dimname log_softmax.Dimname norm.names_ScalarOpt_dim
    cumsum.dimname cumprod.dimname sum.dim_DimnameList prod.dim_Dimname
    """.split()
)


def _under(dtype: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    def cast(*tensors: Any) -> Any:
        with torch.autocast("cuda", dtype):
            return run(*tensors)

    return cast


def test_the_lists_name_every_op_that_torch_casts_on_cuda_once() -> None:
    listed = [
        *(*autocast.LOWER_PRECISION, *autocast.FLOAT32, *autocast.FLOAT32_DTYPE),
        *(*autocast.FLOAT32_OVERLOAD, *autocast.WIDEST, *autocast.BANNED),
    ]
    assert len(listed) == len(set(listed))
    assert autocast.registered("AutocastCUDA") - set(listed) <= LEFT_OUT


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("run", "op", "runs_in_half"),
    [
        (lambda x: x @ x, "aten.mm", True),
        (lambda x: F.linear(x, x), "aten.mm", True),
        (lambda x: F.conv1d(x[None], x[:, :, None]), "aten.convolution", True),
        (lambda x: torch.baddbmm(x[None], x[None], x[None]), "aten.baddbmm", True),
        (lambda x: torch.einsum("ij,jk->ik", x, x), "aten.bmm", True),
        (lambda x: x.half().exp(), "aten.exp", False),
        (lambda x: (x @ x).pow(2), "aten.pow", False),
        (lambda x: (x @ x).softmax(-1), "aten._softmax", False),
        (lambda x: F.layer_norm(x @ x, (8,)), "aten.native_layer_norm", False),
        (lambda x: F.group_norm(x @ x, 2), "aten.native_group_norm", False),
        (lambda x: (x @ x).sum(), "aten.sum", False),
        (lambda x: (x @ x).norm(), "aten.linalg_vector_norm", False),
        (lambda x: F.mse_loss(x @ x, x), "aten.mse_loss", False),
        (lambda x: (x @ x).log_softmax(-1), "aten._log_softmax", False),
        (lambda x: F.cross_entropy(x @ x, x[0].long()), "aten._log_softmax", True),
        (lambda x: F.gelu(x @ x), "aten.gelu", True),
        (lambda x: (x @ x) + 1, "aten.add", True),
    ],
)
def test_ops_run_in_the_precision_of_their_list(
    run: Callable[..., Any], op: str, runs_in_half: bool, dtype: Any
) -> None:
    call = calls_of(forward(_under(dtype, run), (8, 8)), op)[0]
    expected = str(dtype).removeprefix("torch.") if runs_in_half else "float32"
    assert call.op.outputs[0].dtype == expected


def test_ops_of_mixed_precision_run_in_the_widest() -> None:
    trace = forward(_under(torch.float16, lambda x: torch.addcmul(x, x.half(), x)), (8, 8))
    assert {t.dtype for t in calls_of(trace, "aten.addcmul")[0].op.inputs} == {"float32"}


def test_a_loss_that_is_unsafe_in_half_precision_is_refused() -> None:
    run = _under(torch.float16, lambda x: F.binary_cross_entropy(x.sigmoid(), x))
    with pytest.raises(CaptureError, match="unsafe to autocast"):
        forward(run, (8, 8))


def test_a_weight_used_twice_is_cast_once() -> None:
    def twice() -> Any:
        layer = nn.Linear(8, 8, bias=False)
        return nn.Sequential(layer, layer)

    trace = capture(training(twice, dtype=torch.bfloat16))
    casts = [c for c in calls_of(trace, "aten._to_copy") if c.op.inputs[0].shape == (8, 8)]
    assert [c.phase for c in casts] == [Phase.FORWARD, Phase.BACKWARD]


def test_a_weight_is_cast_each_time_without_the_cache() -> None:
    def make_step() -> Step:
        layer, x = nn.Linear(8, 8, bias=False).cuda(), torch.randn(4, 8, device="cuda")

        def step() -> None:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                layer(layer(x))

        return step

    casts = [c.op.inputs[0].shape for c in calls_of(capture(make_step), "aten._to_copy")]
    assert casts.count((8, 8)) == 2


def test_autocast_switched_off_inside_casts_nothing_there() -> None:
    def run(x: Any) -> Any:
        with torch.autocast("cuda", torch.float16):
            y = x @ x
            with torch.autocast("cuda", enabled=False):
                z = x @ x
            with torch.autocast("cuda", torch.bfloat16):
                w = (x * 1) @ x.detach()  # a weight would come from the cache, in float16
        return y + z + w + x @ x

    products = calls_of(forward(run, (8, 8)), "aten.mm")
    forwards = [c.op.inputs[0].dtype for c in products if c.phase is Phase.FORWARD]
    assert forwards == ["float16", "float32", "bfloat16", "float32"]


def test_the_backward_pass_runs_in_the_precision_of_the_forward_pass() -> None:
    trace = capture(training(lambda: nn.Linear(8, 8), dtype=torch.bfloat16))
    products = [c for c in calls_of(trace, "aten.mm") if c.phase is Phase.BACKWARD]
    assert {c.op.inputs[0].dtype for c in products} == {"bfloat16"}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_spellings_work() -> None:
    def run(x: Any) -> Any:
        with torch.cuda.amp.autocast():
            y = x @ x
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            return y + x @ x

    products = calls_of(forward(run, (8, 8)), "aten.mm")
    assert {c.op.inputs[0].dtype for c in products} == {"float16", "bfloat16"}


def test_functions_that_choose_their_own_precision_do() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad @ x

    trace = forward(_under(torch.float16, lambda x: Product.apply(x.half())), (8, 8))
    assert {c.op.inputs[0].dtype for c in calls_of(trace, "aten.mm")} == {"float32"}


def test_autocast_of_the_cpu_is_not_cudas() -> None:
    def run(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    assert {c.op.inputs[0].dtype for c in calls_of(forward(run, (8, 8)), "aten.mm")} == {"float32"}


def test_double_precision_is_never_cast() -> None:
    trace = forward(_under(torch.float16, lambda x: x.double() @ x.double()), (8, 8))
    assert {c.op.inputs[0].dtype for c in calls_of(trace, "aten.mm")} == {"float64"}


def test_the_softmax_of_cuda_widens_float16_but_not_bfloat16_itself() -> None:
    for dtype, cast in ((torch.float16, "float16"), (torch.bfloat16, "float32")):
        trace = forward(_under(dtype, lambda x: (x @ x).softmax(-1)), (8, 8))
        softmax = calls_of(trace, "aten._softmax")[0].op
        assert softmax.inputs[0].dtype == cast
        assert softmax.outputs[0].dtype == "float32"


def test_casts_are_recorded_as_copies() -> None:
    trace = capture(training(lambda: nn.Linear(8, 8), dtype=torch.bfloat16))
    # input, weight and bias there; the gradients of weight and bias, and of the loss's float, back
    assert names(trace, Phase.FORWARD)["aten._to_copy"] == 4
    assert names(trace, Phase.BACKWARD)["aten._to_copy"] == 3
