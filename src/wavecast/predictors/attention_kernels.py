"""The attention kernel that a GPU runs, chosen as in torch's `sdp_utils.cpp`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

from wavecast.ops.registry import has_possible_tensors, reading
from wavecast.traces.step import Call, Op, Scalar, TensorSpec

FLASH, EFFICIENT, CUDNN, MATH = "flash", "efficient", "cudnn", "math"
BACKENDS = frozenset((FLASH, EFFICIENT, CUDNN, MATH))
"""All of torch's ways to compute attention. "math" is several ops, the others are one kernel."""

_HALF = ("float16", "bfloat16")
_FLASH_LARGEST_HEAD = 256


@dataclass(frozen=True)
class Query:
    """The facts that the choice of the kernel depends on."""

    dtype: str
    """The data type of query, key and value, one of `DTYPE_BYTES`."""
    head_dim: int
    value_dim: int
    q_length: int
    kv_length: int
    mask: bool
    mask_needs_grad: bool
    dropout: float
    causal: bool
    grouped: bool
    four_d: bool
    mask_strided: bool = False
    """Whether the mask's last dimension has another stride than 1, as an expanded one has."""
    uneven: bool = False
    """Whether keys have fewer heads than queries without being told so, and are expanded."""


def choose(query: Query, capability: tuple[int, int], enabled: frozenset[str] = BACKENDS) -> str:
    """The backend that torch chooses on a GPU of this capability, among the enabled ones."""
    for backend in _order(capability):
        if backend in enabled and supports(backend, query, capability):
            return backend
    return MATH


def supports(backend: str, query: Query, capability: tuple[int, int]) -> bool:
    """Whether a backend can compute this attention on a GPU of this capability."""
    if backend == MATH:
        return True
    # `check_last_dim_stride_equals_1_dense`, for all kernels
    # and `check_batch_size_and_num_heads_dense`
    return not (query.mask_strided or query.uneven) and _SUPPORTS[backend](query, capability)


def has_own(backend: str, query: Query, capability: tuple[int, int]) -> bool:
    """Whether a framework that calls a kernel itself has it for this attention.

    cuDNN has DeepSeek's heads, 192 and 128, on Hopper and Blackwell (its own documentation), which
    torch does not ask it for on Blackwell.
    """
    if backend == CUDNN and capability >= (9, 0) and _is_latent(query):
        return not query.mask and query.dtype in _HALF
    return supports(backend, query, capability)


def _is_latent(query: Query) -> bool:
    return (query.head_dim, query.value_dim) == (192, 128)


def _order(capability: tuple[int, int]) -> tuple[str, ...]:
    # `check_prefer_cudnn_attention`: cuDNN comes first on Hopper and data-centre Blackwell
    # (observed on an H200 with torch 2.11).
    if capability in ((9, 0), (10, 0)):
        return (CUDNN, FLASH, EFFICIENT)
    return (FLASH, EFFICIENT, CUDNN)


def _flash(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and query.four_d
        and query.dtype in _HALF
        and not query.mask
        and query.head_dim == query.value_dim
        and query.head_dim <= _FLASH_LARGEST_HEAD
        and not (query.causal and query.q_length != query.kv_length and query.grouped)
    )


def _efficient(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (5, 0)
        and query.four_d
        and query.dtype in ("float32", *_HALF)
        and not (query.dtype == "bfloat16" and capability < (8, 0))
        and not query.grouped
        and not (query.mask and query.causal)
        and _aligned(query, capability)
    )


def _aligned(query: Query, capability: tuple[int, int]) -> bool:
    """Whether the last dimensions are whole numbers of aligned loads (`check_head_dim_size`)."""
    if query.dtype in _HALF and capability >= (7, 5):
        alignment = 8
    elif query.dtype in _HALF or capability >= (8, 0):
        alignment = 4
    else:
        alignment = 1
    return query.head_dim % alignment == 0 and query.value_dim % alignment == 0


def _cudnn(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and query.four_d
        and query.dtype in _HALF
        and query.head_dim % 8 == 0
        and query.head_dim <= (256 if capability[0] == 9 else 128)
        and not query.mask_needs_grad
    )


_SUPPORTS = {FLASH: _flash, EFFICIENT: _efficient, CUDNN: _cudnn}

FEWER_KERNELS: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (5, 0): ((7, 0), (7, 5)),
    (7, 0): ((5, 0), (7, 5)),
    (8, 0): ((10, 0),),
    (9, 0): ((8, 0), (10, 0)),
    (10, 0): ((8, 0),),
}
"""By GPU family: others that support an attention by a kernel only if this family does as well. So
what runs as several ops here runs so there."""


# Attention kernels as ops of a trace: read as facts, and written for another kernel.


_PREFIX, _SUFFIX = "aten._scaled_dot_product_", "_attention"
_EFFICIENT_ROWS = 32
"""The efficient kernel rounds the number of its sums up to a multiple of this."""
_ALL_GRADIENTS = (True, True, True, False)
"""Gradients of query, key and value, and none of the mask."""

Attributes = list[tuple[str, Scalar]]


@dataclass(frozen=True)
class AttentionRun:
    """One call of an attention kernel."""

    backend: str
    is_backward: bool
    gradient: TensorSpec | None
    """The gradient of the output, in a backward call."""
    query: TensorSpec
    key: TensorSpec
    value: TensorSpec
    mask: TensorSpec | None
    output: TensorSpec
    dropout: float
    causal: bool
    scale: float | None
    """The factor of the scores. None if the step named none, as far as the op shows."""
    has_gradient: bool | None
    """Whether a gradient will be computed. None if the op does not say."""
    is_partial: bool
    """Whether a backward call computes not all of the three gradients."""

    @property
    def facts(self) -> Query:
        """The facts that the choice of the kernel depends on."""
        return Query(
            dtype=self.query.dtype,
            head_dim=self.query.shape[-1],
            value_dim=self.value.shape[-1],
            q_length=self.query.shape[-2],
            kv_length=self.key.shape[-2],
            mask=self.mask is not None,
            mask_needs_grad=False,  # if it did, `is_partial` would tell
            dropout=self.dropout,
            causal=self.causal,
            grouped=self.query.shape[1] != self.key.shape[1],
            four_d=True,
        )

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """The shape of the scores: one row for each query, one column for each key."""
        return (*self.query.shape[:3], self.key.shape[2])


def attention_in(op: Op) -> AttentionRun | None:
    """The attention that an op computes; None if it is no attention kernel of torch's choice.

    None also for an op of such a name whose tensors are not those of attention.
    """
    return reading(_attention_in, None, op) if has_possible_tensors(op) else None


def _attention_in(op: Op) -> AttentionRun | None:
    name = op.base.removeprefix(_PREFIX)
    backward = name.endswith("_backward")
    backend = name.removesuffix("_backward").removesuffix(_SUFFIX)
    if name == op.base or backend not in (FLASH, EFFICIENT, CUDNN):
        return None
    gradient = op.inputs[0] if backward else None
    query, key, value, *others = op.inputs[backward:]
    if any(len(tensor.shape) != 4 for tensor in (query, key, value)):
        return None
    expected = len(others) - (4 if backward else 0)  # output, sums and two random numbers
    if expected not in (0, 1):
        return None
    at = 0 if backend == EFFICIENT else len(others) - 1
    mask = others.pop(at) if expected else None
    scale = cast(float | None, op.attr("scale"))
    # Flash attention is always given a factor, so the step may have named the usual one or none.
    usual = backend == FLASH and math.isclose(scale or 0.0, 1 / math.sqrt(query.shape[-1]))
    return AttentionRun(
        backend=backend,
        is_backward=backward,
        gradient=gradient,
        query=query,
        key=key,
        value=value,
        mask=mask,
        output=others[0] if backward else op.outputs[0],
        dropout=cast(float, op.attr("dropout_p", 0.0)),
        causal=bool(op.attr("is_causal", False)),
        scale=None if usual else scale,
        has_gradient=backward or cast(bool | None, op.attr("compute_log_sumexp")),
        is_partial=op.attr("grad_input_mask", _ALL_GRADIENTS) != _ALL_GRADIENTS,
    )


def forward_op(attention: AttentionRun, has_gradient: bool) -> Op:
    """The op of an attention's forward pass, as torch calls it."""
    backend = attention.backend
    tensors = [attention.query, attention.key, attention.value, attention.mask]
    attributes: Attributes = []
    if backend != FLASH:
        attributes.append(("compute_log_sumexp", has_gradient))
    if attention.dropout or attention.causal:
        attributes.append(("dropout_p", attention.dropout))
    if attention.causal:
        attributes.append(("is_causal", True))
    outputs = [_result(attention, attention.query), *_kept(attention, has_gradient)]
    if backend == FLASH:
        outputs.append(TensorSpec((0,), attention.query.dtype))
    return Op(
        f"{_PREFIX}{backend}{_SUFFIX}",
        tuple(tensor for tensor in tensors if tensor is not None),
        tuple(outputs),
        (*attributes, *_scale(attention)),
    )


def backward_op(attention: AttentionRun, has_gradient: bool = True) -> Op:
    """The op of an attention's backward pass, as torch calls it."""
    inner = [attention.query, attention.key, attention.value]
    results = [attention.output, *_kept(attention, has_gradient)]
    mask = [] if attention.mask is None else [attention.mask]
    efficient = attention.backend == EFFICIENT
    tensors = [attention.gradient, *inner, *(mask + results if efficient else results + mask)]
    attributes: Attributes
    if efficient:
        attributes = [("dropout_p", attention.dropout), ("grad_input_mask", _ALL_GRADIENTS)]
        attributes += [("is_causal", True)] if attention.causal else []
    else:
        attributes = [
            ("max_q", attention.query.shape[2]),
            ("max_k", attention.key.shape[2]),
            ("dropout_p", attention.dropout),
            ("is_causal", attention.causal),
        ]
    return Op(
        f"{_PREFIX}{attention.backend}{_SUFFIX}_backward",
        tuple(tensor for tensor in tensors if tensor is not None),
        tuple(_laid_out(attention.backend, tensor) for tensor in inner),
        (*attributes, *_scale(attention)),
    )


def mask_of(reads: tuple[int, ...], attention: AttentionRun) -> int | None:
    """The value of the mask among those that a call reads."""
    return _split(reads, attention)[1]


def output_of(call: Call, attention: AttentionRun) -> int:
    """The value of an attention's output, which its backward call reads."""
    if not attention.is_backward:
        return call.writes[0]
    return _split(call.reads, attention)[2][0]


def operands(
    reads: tuple[int, ...], attention: AttentionRun, backend: str, mask: int | None
) -> tuple[int, ...]:
    """The values that another backend's kernel reads, in its order: the mask has its own place."""
    first, _, results = _split(reads, attention)
    masks = () if mask is None else (mask,)
    if backend == EFFICIENT:
        return (*first, *masks, *results)
    return (*first, *results, *masks)


def _split(
    reads: tuple[int, ...], attention: AttentionRun
) -> tuple[tuple[int, ...], int | None, tuple[int, ...]]:
    """What a call reads: query, key and value (after their gradient), the mask, and results."""
    count = 3 + attention.is_backward
    first, others = reads[:count], list(reads[count:])
    mask = None
    if attention.mask is not None:
        mask = others.pop(0 if attention.backend == EFFICIENT else len(others) - 1)
    return first, mask, tuple(others)


def expansion(mask: TensorSpec, shape: tuple[int, ...]) -> Op:
    """The view of a mask in a larger shape, in which it repeats."""
    missing = len(shape) - len(mask.shape)
    sizes = (*(1,) * missing, *mask.shape)
    steps = (*(0,) * missing, *(mask.strides or _contiguous(mask.shape)))
    strides = tuple(
        step if size == length and index >= missing else 0
        for index, (size, step, length) in enumerate(zip(sizes, steps, shape, strict=True))
    )
    widened = replace(mask, shape=shape, strides=_or_none(shape, strides))
    return Op("aten.expand", (mask,), (widened,), (("size", shape),))


def has_layout_of(op: Op, other: Op) -> bool:
    """Whether the results that later ops read have the same shape and order in both ops."""
    count = 3 if op.base.endswith("_backward") else 1
    return op.outputs[:count] == other.outputs[:count]


def _scale(attention: AttentionRun) -> Attributes:
    """The attribute with the factor of the scores: flash attention is always given one."""
    if attention.backend == FLASH and attention.scale is None:
        return [("scale", 1 / math.sqrt(attention.query.shape[-1]))]
    return [] if attention.scale is None else [("scale", attention.scale)]


def _kept(attention: AttentionRun, has_gradient: bool) -> list[TensorSpec]:
    """What the forward pass keeps for the backward: sums, and the state of random numbers."""
    batch, heads, rows, _ = attention.query.shape
    if attention.backend == FLASH:
        numbers = [TensorSpec((2,), "uint64"), TensorSpec((), "uint64")]
        return [TensorSpec((batch, heads, rows), "float32"), *numbers]
    if attention.backend == CUDNN:
        shape: tuple[int, ...] = (batch, heads, rows, 1)
    else:
        padded = -(-rows // _EFFICIENT_ROWS) * _EFFICIENT_ROWS
        shape = (batch, heads, padded if has_gradient else 0)
    return [TensorSpec(shape, "float32"), *[TensorSpec((), "int64")] * 2]


def _result(attention: AttentionRun, like: TensorSpec) -> TensorSpec:
    shape = (*like.shape[:3], attention.value.shape[3])
    return _laid_out(attention.backend, replace(like, shape=shape))


def _laid_out(backend: str, tensor: TensorSpec) -> TensorSpec:
    """A new tensor as a kernel lays it out.

    The efficient kernel puts heads after rows. The others keep the order of dimensions that the
    tensor has in memory.
    """
    steps = tensor.strides or _contiguous(tensor.shape)
    order = [0, 2, 1, 3] if backend == EFFICIENT else sorted(range(4), key=lambda d: -steps[d])
    strides = [0] * 4
    step = 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= tensor.shape[dimension]
    return replace(tensor, strides=_or_none(tensor.shape, tuple(strides)))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _or_none(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides, or None if the tensor is contiguous: dimensions of size 1 do not matter."""
    pairs = zip(shape, strides, _contiguous(shape), strict=True)
    contiguous = all(size == 1 or step == usual for size, step, usual in pairs)
    return None if contiguous else strides
