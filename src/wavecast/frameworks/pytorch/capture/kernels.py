"""CUDA's choice of kernels, for operators that choose by device.

Composite operators such as `batch_norm`, `dropout`, `lstm` or `scaled_dot_product_attention` check
the device of their input and call one of several kernels. While tracing, their implementations in
torch's dispatcher are replaced by ones that choose as on CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.attention import AttentionCall
from wavecast.frameworks.pytorch.capture.memory_format import suggested
from wavecast.frameworks.pytorch.capture.replacements import aten_kernels
from wavecast.frameworks.pytorch.capture.rnn import RecurrentLayer, gru_cell, lstm_cell
from wavecast.frameworks.pytorch.capture.rnn_weights import CUDNN_MODES
from wavecast.frameworks.pytorch.capture.sequences import sequence_kernels
from wavecast.frameworks.pytorch.capture.threads import only_when_traced
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder

_aten = torch.ops.aten

# The largest batch that cuDNN takes, in training (True) and evaluation (False)
# (aten/native/Normalization.cpp).
_CUDNN_BATCH_NORM_LARGEST = {True: 880_801, False: 65_535}
_CUDNN_BATCH_NORM_EPSILON = 1e-5


@contextmanager
def cuda_kernels(
    capability: tuple[int, int], recorder: OpRecorder, assumptions: Assumptions
) -> Iterator[None]:
    """Make composite operators choose the kernels of a GPU of this compute capability."""
    kernels = [
        (name, only_when_traced(name, implementation))
        for name, implementation in _implementations(capability, recorder, assumptions)
    ]
    with aten_kernels("CompositeImplicitAutograd", kernels):
        yield


def _implementations(
    capability: tuple[int, int], recorder: OpRecorder, assumptions: Assumptions
) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "dropout", dropout
    yield "batch_norm", batch_norm
    yield "group_norm", group_norm
    yield "rms_norm", rms_norm
    yield "scaled_dot_product_attention", AttentionCall(capability)
    yield "softmax.int", Softmax(_aten._softmax)
    yield "log_softmax.int", Softmax(_aten._log_softmax)
    yield "lstm_cell", lstm_cell
    yield "gru_cell", gru_cell
    yield from sequence_kernels(assumptions)
    for name in CUDNN_MODES:
        layer = RecurrentLayer(name, recorder)
        yield f"{name}.input", layer.run_padded
        yield f"{name}.data", layer.run_packed


def dropout(source: Any, p: float, train: bool) -> Any:
    """Dropout, for which CUDA has one fused kernel (aten/native/Dropout.cpp)."""
    if not train or p == 0 or source.numel() == 0:
        return source
    if p == 1:
        return source * torch.zeros_like(source)
    return _aten.native_dropout(source, p, train)[0]


def batch_norm(
    source: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Batch norm with cuDNN if it can (`_select_batch_norm_backend`, native/Normalization.cpp)."""
    affine = weight is not None and bias is not None
    statistics = (running_mean is None) == (running_var is None)
    use_cudnn = (
        cudnn_enabled
        and affine
        and statistics
        and (training or running_mean is not None)
        and source.dim() >= 3
        and source.shape[0] <= _CUDNN_BATCH_NORM_LARGEST[training]
        and eps >= _CUDNN_BATCH_NORM_EPSILON
        and _cudnn_normalizes(source.dtype, weight.dtype)
    )
    if use_cudnn:
        return _aten.cudnn_batch_norm(
            source.contiguous(memory_format=suggested(source)),
            weight,
            bias,
            running_mean,
            running_var,
            training,
            momentum,
            eps,
        )[0]
    torch.empty(0, dtype=torch.uint8, device=source.device)  # torch makes it for cuDNN's reserve
    return _aten.native_batch_norm(
        source, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]


def _cudnn_normalizes(dtype: Any, weight_dtype: Any) -> bool:
    if torch.bfloat16 in (dtype, weight_dtype):
        return False
    return dtype is not torch.float16 or weight_dtype is torch.float32


def group_norm(
    source: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Group norm. CUDA's kernel needs contiguous input; the CPU's takes channels_last, too."""
    batch, channels = source.shape[:2]
    spatial = math.prod(source.shape[2:])
    return _aten.native_group_norm(
        source.contiguous(),
        None if weight is None else weight.contiguous(),
        None if bias is None else bias.contiguous(),
        batch,
        channels,
        spatial,
        num_groups,
        eps,
    )[0]


def rms_norm(source: Any, shape: list[int], weight: Any = None, eps: float | None = None) -> Any:
    """RMS norm: one fused kernel on CUDA if weight and input have the same dtype."""
    if weight is not None and weight.dtype is not source.dtype:
        return _aten._fused_rms_norm(source, shape, weight, eps)[0]  # torch splits it into ops
    return _FusedRmsNorm.apply(source, tuple(shape), weight, eps)


class _FusedRmsNorm(torch.autograd.Function):
    """`_fused_rms_norm` and its backward, called below autograd, because the CPU build splits
    them above it."""

    @staticmethod
    def forward(ctx: Any, source: Any, shape: tuple[int, ...], weight: Any, eps: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, rstd = _aten._fused_rms_norm(source, shape, weight, eps)
        ctx.save_for_backward(source, rstd, weight)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        source, rstd, weight = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        with torch._C._AutoDispatchBelowAutograd():
            d_source, d_weight = _aten._fused_rms_norm_backward(
                gradients[0], source, ctx.shape, rstd, weight, mask
            )
        return d_source, None, d_weight, None


@dataclass(frozen=True)
class Softmax:
    """`softmax` or `log_softmax` (aten/native/SoftMax.cpp)."""

    kernel: Any

    def __call__(self, source: Any, dim: int, dtype: Any = None) -> Any:
        """Call the kernel. CUDA's can cast float16 to float32; other types are cast before."""
        if source.is_cuda and source.dtype is torch.float16 and dtype is torch.float32:
            return self.kernel(source, dim, True)
        return self.kernel(source if dtype is None else source.to(dtype), dim, False)
