"""CUDA's choice of kernels, for operators that choose by device.

Composite operators such as `batch_norm`, `dropout`, `lstm` or `scaled_dot_product_attention` check
the device of their input and call one of several kernels. While tracing, their implementations in
torch's dispatcher are replaced by ones that choose as on CUDA.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

import torch
from torch.nn.modules.adaptive import _ASMoutput
from torch.optim import optimizer as optimizer_hooks

from wavecast.frameworks.pytorch.capture.fake_ops import (
    CUDNN_MODES,
    RecurrentLayer,
    gru_cell,
    lstm_cell,
)
from wavecast.frameworks.pytorch.capture.pretended.threads import only_when_traced
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.host_values import known_values
from wavecast.frameworks.pytorch.capture.values.places import suggested
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.predictors.attention_kernels import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    Query,
    choose,
)

_aten = torch.ops.aten

# The largest batch that cuDNN takes, in training (True) and evaluation (False)
# (aten/native/Normalization.cpp).
_CUDNN_BATCH_NORM_LARGEST = {True: 880_801, False: 65_535}
_CUDNN_BATCH_NORM_EPSILON = 1e-5


Kernel = Callable[..., Any]

_active: dict[tuple[str, str], list[Kernel]] = {}
"""The replacements of the traces under way, the innermost last, by op and dispatch key."""


@contextmanager
def aten_kernels(key: str, kernels: Iterable[tuple[str, Kernel]]) -> Iterator[None]:
    """Replace the kernels of these aten ops for a dispatch key, inside the block."""
    library = torch.library.Library("aten", "IMPL")
    with ExitStack() as stack:
        stack.callback(library._destroy)
        for name, kernel in kernels:
            replacements = _active.setdefault((name, key), [])
            if not replacements:
                _register(library, name, key, kernel)
            replacements.append(kernel)
            stack.callback(replacements.pop)
        yield


def _register(library: Any, name: str, key: str, kernel: Kernel) -> None:
    replacements = _active[name, key]

    def call(*args: Any, **kwargs: Any) -> Any:
        return replacements[-1](*args, **kwargs)

    is_fallthrough = kernel is torch.library.fallthrough_kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of replaced kernels
        library.impl(name, kernel if is_fallthrough else call, key)


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
    yield "scaled_dot_product_attention", partial(attention, capability)
    yield "softmax.int", partial(softmax, _aten._softmax)
    yield "log_softmax.int", partial(softmax, _aten._log_softmax)
    yield "lstm_cell", lstm_cell
    yield "gru_cell", gru_cell
    yield "ctc_loss.IntList", partial(ctc_loss, assumptions)
    yield "ctc_loss.Tensor", partial(ctc_loss, assumptions)
    yield "pad_sequence", pad_sequence
    yield "_pad_packed_sequence", pad_packed_sequence
    yield "_pack_padded_sequence_backward", pack_padded_sequence_backward
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
        and torch.bfloat16 not in (source.dtype, weight.dtype)
        and (source.dtype is not torch.float16 or weight.dtype is torch.float32)
    )
    settings = (weight, bias, running_mean, running_var, training, momentum, eps)
    if use_cudnn:
        ordered = source.contiguous(memory_format=suggested(source))
        return _aten.cudnn_batch_norm(ordered, *settings)[0]
    torch.empty(0, dtype=torch.uint8, device=source.device)  # torch makes it for cuDNN's reserve
    return _aten.native_batch_norm(source, *settings)[0]


def group_norm(
    source: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Group norm. CUDA's kernel needs contiguous input; the CPU's takes channels_last, too."""
    weight, bias = (t if t is None else t.contiguous() for t in (weight, bias))
    sizes = (*source.shape[:2], math.prod(source.shape[2:]), num_groups)
    return _aten.native_group_norm(source.contiguous(), weight, bias, *sizes, eps)[0]


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


def softmax(kernel: Any, source: Any, dim: int, dtype: Any = None) -> Any:
    """`softmax` or `log_softmax` (aten/native/SoftMax.cpp) by a kernel.

    CUDA's can cast float16 to float32; other types are cast before.
    """
    if source.is_cuda and source.dtype is torch.float16 and dtype is torch.float32:
        return kernel(source, dim, True)
    return kernel(source if dtype is None else source.to(dtype), dim, False)


# Attention while a step is traced: the call of the kernel that a GPU would run.


_MASK_ALIGNMENT = 8
"""The efficient kernel reads rows of a mask from multiples of this many elements."""


def attention(
    capability: tuple[int, int],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`scaled_dot_product_attention` by the chosen kernel (native/transformers/attention.cpp)."""
    facts = _facts(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    backend = choose(facts, capability, _enabled())
    if backend == FLASH:
        return _run_flash(query, key, value, dropout_p, is_causal, scale)
    if backend == MATH:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return _aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, **options
        )[0]
    mask = _additive_mask(query, attn_mask)
    needs_logsumexp = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if backend == EFFICIENT:
        if mask is not None:
            mask = _aligned(mask).expand(*query.shape[:3], key.shape[2])
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs_logsumexp, dropout_p, is_causal, scale=scale
        )[0]
    return _aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, needs_logsumexp, dropout_p, is_causal, False, scale=scale
    )[0]


def _enabled() -> frozenset[str]:
    """The backends that are not switched off, by flags or `torch.nn.attention.sdpa_kernel`."""
    switches = {
        FLASH: torch.backends.cuda.flash_sdp_enabled,
        EFFICIENT: torch.backends.cuda.mem_efficient_sdp_enabled,
        CUDNN: torch.backends.cuda.cudnn_sdp_enabled,
        MATH: torch.backends.cuda.math_sdp_enabled,
    }
    return frozenset(name for name, is_enabled in switches.items() if is_enabled())


def _facts(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, gqa: bool
) -> Query:
    return Query(
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
        q_length=query.shape[-2],
        kv_length=key.shape[-2],
        mask=mask is not None,
        mask_needs_grad=mask is not None and mask.requires_grad,
        dropout=dropout,
        causal=causal,
        grouped=gqa and query.dim() == 4 and query.shape[1] != key.shape[1],
        four_d=query.dim() == key.dim() == value.dim() == 4,
        mask_strided=mask is not None and mask.stride(-1) != 1,
        uneven=not gqa and not query.shape[:-2] == key.shape[:-2] == value.shape[:-2],
    )


def _run_flash(
    query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: float | None
) -> Any:
    """Flash attention. A head size that is not a multiple of 8 is padded, and the result cut."""
    head_dim = query.shape[-1]
    scale = scale if scale is not None else 1 / math.sqrt(head_dim)
    missing = -head_dim % 8
    if missing:
        query, key, value = (_aten.constant_pad_nd(t, [0, missing]) for t in (query, key, value))
    out = _aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return out.narrow(-1, 0, head_dim) if missing else out


def _aligned(mask: Any) -> Any:
    """A mask whose rows begin at multiples of 8 elements; padded if need be (`preprocess_mask`)."""
    if all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    missing = _MASK_ALIGNMENT - length % _MASK_ALIGNMENT
    return _aten.constant_pad_nd(mask, [0, missing]).narrow(-1, 0, length)


def _additive_mask(query: Any, mask: Any) -> Any:
    """A boolean mask as one to add to the scores (`convert_boolean_attn_mask`)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    never = torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device)
    return torch.where(mask, 0.0, never)


# CTC loss and packed sequences, whose lengths the host must know.


def ctc_loss(
    assumptions: Assumptions,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    """`ctc_loss` with torch's own kernel (aten/native/LossCTC.cpp).

    Torch copies lengths to the host and targets to the GPU. It chooses cuDNN's kernel by values:
    for int32 targets on the host, if all inputs are as long as the longest. That is not modelled,
    and a note says so.
    """
    if targets.dtype is torch.int32 and blank == 0:
        assumptions.note("CTC loss was assumed to run torch's own kernel, not cuDNN's")
    if isinstance(input_lengths, torch.Tensor):
        longest = log_probs.shape[0], targets.shape[-1]
        on_host = input_lengths.to("cpu", torch.int64)
        input_lengths = assumptions.lengths(on_host, longest[0], "CTC inputs")
        on_host = target_lengths.to("cpu", torch.int64)
        target_lengths = assumptions.lengths(on_host, longest[1], "CTC targets")
    targets = targets.to(log_probs.device)
    targets.to(torch.int32)  # torch makes this copy to ask whether MIOpen can run it
    targets = targets.to(torch.int64)
    lengths = (input_lengths, target_lengths)
    loss = _aten._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)[0]
    if zero_infinity:
        zero = torch.zeros((), dtype=loss.dtype, device=loss.device)
        loss = torch.where(loss == math.inf, zero, loss)
    if reduction == 1:
        divisors = torch.tensor(target_lengths, dtype=loss.dtype).to(loss.device)
        return (loss / divisors.clamp_min(1)).mean()
    return loss.sum() if reduction == 2 else loss


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, side: str = "right"
) -> Any:
    """`pad_sequence`: one copy per sequence (native/PackedSequence.cpp).

    Torch's C++ code would make the result on the host, because it sees the sequences there.
    """
    first, longest = sequences[0], max(len(sequence) for sequence in sequences)
    shape = (len(sequences), longest) if batch_first else (longest, len(sequences))
    padded = torch.full(
        (*shape, *first.shape[1:]), padding_value, dtype=first.dtype, device=first.device
    )
    for index, sequence in enumerate(sequences):
        row = padded.select(0 if batch_first else 1, index)
        start = 0 if side == "right" else longest - len(sequence)
        row.narrow(0, start, len(sequence)).copy_(sequence)
    return padded


def pad_packed_sequence(
    data: Any, batch_sizes: Any, batch_first: bool, padding_value: Any, total_length: int
) -> Any:
    """`_pad_packed_sequence`: one copy per run of equal batch sizes (native/PackedSequence.cpp)."""
    sizes = known_values(batch_sizes).tolist()
    shape = (max(len(sizes), total_length), sizes[0], *data.shape[1:])
    output = torch.full(shape, padding_value, dtype=data.dtype, device=data.device)
    lengths: list[int] = []
    offset = start = 0
    for end, (size, following) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True), 1):
        if following == size:
            continue
        count = size * (end - start)
        part = data.narrow(0, offset, count).view(end - start, size, *data.shape[1:])
        output[start:end, :size].copy_(part)
        lengths[:0] = [end] * (size - following)
        offset, start = offset + count, end
    return output.transpose(0, 1) if batch_first else output, torch.tensor(lengths)


def pack_padded_sequence_backward(
    grad: Any, input_size: Any, batch_sizes: Any, batch_first: bool
) -> Any:
    """`_pack_padded_sequence_backward`: one copy per time step (native/PackedSequence.cpp)."""
    shape = list(input_size)
    if batch_first:
        shape[0], shape[1] = shape[1], shape[0]
    padded = torch.zeros(shape, dtype=grad.dtype, device=grad.device)
    offset = 0
    for step, size in enumerate(known_values(batch_sizes).tolist()):
        padded[step][:size].copy_(grad[offset : offset + size])
        offset += size
    return padded.transpose(0, 1) if batch_first else padded


# The adaptive softmax, whose clusters of classes each take a part of the batch.
#
# Which rows of the batch belong to a cluster depends on the targets. If they are unknown, each
# cluster is assumed to take all rows, which torch's own forward pass would report as an error.


def adaptive_log_softmax(layer: Any, source: Any, target: Any) -> Any:
    """The forward pass of `AdaptiveLogSoftmaxWithLoss`, without the check of the targets."""
    batched = target.dim() > 0
    rows = source if batched else source.unsqueeze(0)
    targets = target if batched else target.unsqueeze(0)
    output = rows.new_zeros(targets.shape[0])
    positions = targets.new_empty(targets.shape[0])
    for cluster, (low, high) in enumerate(pairwise([0, *layer.cutoffs])):
        mask = (targets >= low) & (targets < high)
        chosen = mask.nonzero().squeeze()
        if chosen.numel() == 0:
            continue
        if cluster == 0:
            positions.index_copy_(0, chosen, targets[mask])
            continue
        inside = targets[mask] - low
        scores = layer.tail[cluster - 1](rows.index_select(0, chosen))
        positions.index_fill_(0, chosen, layer.shortlist_size + cluster - 1)
        probabilities = torch.log_softmax(scores, dim=1).gather(1, inside.unsqueeze(1))
        output.index_copy_(0, chosen, probabilities.squeeze(1))
    head = torch.log_softmax(layer.head(rows), dim=1)
    output += head.gather(1, positions.unsqueeze(1)).squeeze()
    loss = (-output).mean()
    return _ASMoutput(output if batched else output.squeeze(0), loss)


# LBFGS while a step is traced: it takes all of its iterations.
#
# Its inner loop ends early where loss or gradient hardly change, and assumed values never do.


_TOLERANCES = ("tolerance_grad", "tolerance_change")


@contextmanager
def all_iterations(assumptions: Assumptions) -> Iterator[None]:
    """End the steps of LBFGS inside the block by its numbers of iterations and evaluations only."""
    given: list[dict[str, Any]] = []

    def enter(optimizer: Any, *_: Any) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            [group] = optimizer.param_groups
            given.append({name: group[name] for name in _TOLERANCES})
            group.update(dict.fromkeys(_TOLERANCES, -inf))
            assumptions.note(
                f"LBFGS at {user_line()} is assumed to take all of its {group['max_iter']} "
                f"iterations, at most {group['max_eval']} evaluations; it takes fewer where the "
                "loss converges"
            )

    def leave(optimizer: Any, *_: Any) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.param_groups[0].update(given.pop())

    with (
        optimizer_hooks.register_optimizer_step_pre_hook(enter),
        optimizer_hooks.register_optimizer_step_post_hook(leave),
    ):
        yield
