"""Calls of cuBLAS and cuDNN in HLO, as ops: matmuls, convolutions and attention."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavecast.frameworks.jax.hlo import DTYPES, Computation, Instruction, Shape, specs_of
from wavecast.ops.matmul import XLA_UNALIGNED
from wavecast.predictors.learned.autotuned import CHOSEN, MARK
from wavecast.traces.step import Op, Scalar, TensorSpec

MATMULS = ("__cublas$lt$matmul", "__cublas$gemm")
CONVOLUTIONS = {
    "__cudnn$convForward": "forward",
    "__cudnn$convBiasActivationForward": "forward",
    "__cudnn$convBackwardInput": "image",
    "__cudnn$convBackwardFilter": "weight",
}
ATTENTION = "__cudnn$fmha"
_TUNED: tuple[tuple[str, Scalar], ...] = ((MARK, True),)
_EXACT = ("HIGHEST", "ALG_DOT_F32_F32_F32")
"""Precisions in which float32 is not rounded to TF32."""


@dataclass(frozen=True)
class LibraryCall:
    """An op, and the operands of the instruction that are its inputs.

    None stands for the result, where an op names a tensor of which it only needs the shape.
    """

    op: Op
    reads: tuple[int | None, ...]


def _named(text: Any) -> tuple[int, ...]:
    return tuple(int(dim) for dim in text or ())


def matmul(instruction: Instruction, inputs: Sequence[Shape], padded: int = 0) -> LibraryCall:
    """A matmul of cuBLAS, with what is added to it.

    Where the rows of an operand begin at odd places, XLA pads it for cuBLAS; on a GPU it finds that
    a Triton kernel without padding is faster, which the op's name says (`XLA_UNALIGNED`).
    """
    config = instruction.backend.get("gemm_backend_config", {})
    numbers = config.get("dot_dimension_numbers", {})
    precision = config.get("precision_config", {})
    a = _matrix(inputs[0], numbers, "lhs", rows_first=True)
    b = _matrix(inputs[1], numbers, "rhs", rows_first=False)
    added = _added(config, inputs[2:], a.shape[-2] * b.shape[-1])
    attrs = _precision(inputs[0], precision)
    batched = len(a.shape) > 2
    name = {(0, 0): "mm", (0, 1): "addmm", (1, 0): "bmm", (1, 1): "baddbmm"}[batched, bool(added)]
    out = TensorSpec((*a.shape[:-1], b.shape[-1]), _dtype(instruction.shape))
    if padded and not added:
        return LibraryCall(Op(XLA_UNALIGNED, (a, b), (out,), attrs), (0, 1))
    tensors = (*(spec for spec, _ in added), a, b)
    reads = (*(position for _, position in added), 0, 1)
    return LibraryCall(Op(f"aten.{name}", tensors, (out,), attrs), reads)


def nested_matmul(body: Computation, fusion: Instruction) -> Op | None:
    """The matmul that XLA writes in Triton; None if the fusion has none."""
    dot = next(
        (instruction for instruction in body.instructions if instruction.opcode == "dot"), None
    )
    if dot is None:
        return None
    left, right = (body.by_name[name].shape for name in dot.operands[:2])
    numbers = {
        f"{side}_{kind}_dimensions": dot.numbers(f"{side}_{kind}_dims")
        for side in ("lhs", "rhs")
        for kind in ("batch", "contracting")
    }
    a = _matrix(left, numbers, "lhs", rows_first=True)
    b = _matrix(right, numbers, "rhs", rows_first=False)
    out = TensorSpec((*a.shape[:-1], b.shape[-1]), _dtype(fusion.shape))
    match = re.search(r"operand_precision=\{([^}]*)\}", dot.attributes)
    precision = {"operand_precision": match[1].upper().split(",") if match else []}
    name = "aten.bmm" if len(a.shape) > 2 else "aten.mm"
    return Op(name, (a, b), (out,), (*_precision(left, precision), (CHOSEN, True)))


def _matrix(shape: Shape, numbers: Mapping[str, Any], side: str, *, rows_first: bool) -> TensorSpec:
    """An operand as a matrix, (m, k) or (k, n), or as a batch of them."""
    batch = _named(numbers.get(f"{side}_batch_dimensions"))
    contracted = _named(numbers.get(f"{side}_contracting_dimensions"))
    free = [dim for dim in range(len(shape.dims)) if dim not in (*batch, *contracted)]
    k = math.prod(shape.dims[dim] for dim in contracted)
    other = math.prod(shape.dims[dim] for dim in free)
    count = math.prod(shape.dims[dim] for dim in batch)
    fastest = next((dim for dim in shape.order if shape.dims[dim] > 1), None)
    k_is_fast = fastest in contracted
    sizes = (other, k) if rows_first else (k, other)
    by_rows = k_is_fast == rows_first
    strides = None if by_rows else (1, sizes[0])
    if not batch:
        return TensorSpec(sizes, _dtype(shape), strides)
    return TensorSpec(
        (count, *sizes), _dtype(shape), None if by_rows else (sizes[0] * sizes[1], 1, sizes[0])
    )


def _added(
    config: Mapping[str, Any], more: Sequence[Shape], result: int
) -> list[tuple[TensorSpec, int]]:
    """The bias, or the matrix, that a matmul adds to its result, and its position."""
    if config.get("beta") or "BIAS" in str(config.get("epilogue", "")):
        for position, shape in enumerate(more[:1]):
            spec = shape.spec
            if spec is not None:
                flat = TensorSpec((spec.numel,), spec.dtype) if spec.numel < result else spec
                return [(flat, 2 + position)]
    return []


def _dtype(shape: Shape) -> str:
    return DTYPES[shape.element]


def _precision(shape: Shape, config: Mapping[str, Any]) -> tuple[tuple[str, Scalar], ...]:
    """TF32 for float32, unless the user asked for more: XLA's default on GPUs that have it."""
    asked = (*config.get("operand_precision", ()), config.get("algorithm", ""))
    if shape.element != "f32" or any(word in _EXACT for word in asked):
        return _TUNED
    return (("precision", "tf32"), *_TUNED)


def convolution(instruction: Instruction, inputs: Sequence[Shape]) -> LibraryCall:
    """A convolution of cuDNN, or the gradient of its image or its weight."""
    computes = CONVOLUTIONS[instruction.target]
    labels = re.split(r"_|->", instruction.attribute("dim_labels"))
    window = _window(instruction.attribute("window"), len(labels[1]) - 2)
    groups = int(instruction.attribute("feature_group_count") or 1)
    result = instruction.shape
    shapes = {
        "forward": (inputs[0], inputs[1], result),
        "image": (result, inputs[1], inputs[0]),
        "weight": (inputs[0], result, inputs[1]),
    }[computes]
    image, weight, out = (_laid_out(*pair) for pair in zip(shapes, labels, strict=True))
    attrs: dict[str, Scalar] = {
        **window,
        "transposed": False,
        "output_padding": (0,) * (len(labels[1]) - 2),
        "groups": groups,
        "benchmark": True,
        **dict(_precision(inputs[0], {})),
    }
    if computes == "forward":
        more = [(spec, 2 + n) for n, s in enumerate(inputs[2:]) if (spec := s.spec) is not None]
        tensors = (image, weight, *(spec for spec, _ in more))
        op = Op("aten.convolution", tensors, (out,), tuple(attrs.items()))
        return LibraryCall(op, (0, 1, *(position for _, position in more)))
    mask = (computes == "image", computes == "weight", False)
    attrs["output_mask"] = mask
    written = image if computes == "image" else weight
    op = Op("aten.convolution_backward", (out, image, weight), (written,), tuple(attrs.items()))
    return LibraryCall(op, (0, None, 1) if computes == "image" else (1, 0, None))


def _laid_out(shape: Shape, labels: str) -> TensorSpec:
    """A tensor with its dimensions as torch orders them: batch or outputs, channels, space."""
    outer, inner = ("b", "f") if "b" in labels else ("o", "i")
    space = sorted(label for label in labels if label.isdigit())
    order_in_torch = [labels.index(label) for label in (outer, inner, *space)]
    dims = tuple(shape.dims[dim] for dim in order_in_torch)
    strides = tuple(shape.strides[dim] for dim in order_in_torch)
    plain = tuple(math.prod(dims[at + 1 :]) for at in range(len(dims)))
    return TensorSpec(dims, _dtype(shape), None if strides == plain else strides)


def _window(text: str, dims: int) -> dict[str, Scalar]:
    """The stride, padding and dilation of `window={size=3x3 pad=1_1x1_1 stride=2x2}`."""
    parts = dict(part.split("=") for part in text.strip("{}").split() if "=" in part)

    def sizes(name: str, default: int) -> tuple[int, ...]:
        given = parts.get(name)
        if given is None:
            return (default,) * dims
        return tuple(int(size.split("_")[0]) for size in given.split("x"))

    return {
        "stride": sizes("stride", 1),
        "padding": sizes("pad", 0),
        "dilation": sizes("rhs_dilate", 1),
    }


def attention(instruction: Instruction, inputs: Sequence[Shape]) -> LibraryCall:
    """Attention of cuDNN. Operands are (batch, length, heads, width)."""
    config = instruction.backend.get("cudnn_fmha_backend_config", {})
    causal = "CAUSAL" in str(config.get("mask_type", ""))
    attrs: tuple[tuple[str, Scalar], ...] = (("is_causal", causal), *_TUNED)
    name = "aten._scaled_dot_product_cudnn_attention"
    q, k, v = (_by_heads(shape) for shape in inputs[:3])
    if "Backward" in instruction.target:
        count = min(len(inputs), 6)
        grad = _by_heads(inputs[4]) if len(inputs) > 4 else q
        rest = specs_of(inputs[3:count])
        op = Op(f"{name}_backward", (grad, q, k, v, *rest[:1]), (q, k, v), attrs)
        return LibraryCall(op, (4 if len(inputs) > 4 else 0, 0, 1, 2, 3)[: len(op.inputs)])
    outputs = specs_of(instruction.shapes)
    out = TensorSpec((*q.shape[:-1], v.shape[-1]), q.dtype)
    return LibraryCall(Op(name, (q, k, v), (out, *outputs[1:-1]), attrs), (0, 1, 2))


def _by_heads(shape: Shape) -> TensorSpec:
    batch, length, heads, width = shape.dims
    strides = (length * heads * width, width, heads * width, 1)
    return TensorSpec((batch, heads, length, width), _dtype(shape), strides)


def fourier(instruction: Instruction, inputs: Sequence[Shape]) -> LibraryCall:
    """A Fourier transform of cuFFT, over the last dimensions."""
    kind = {"RFFT": "r2c", "IRFFT": "c2r"}.get(instruction.attribute("fft_type"), "c2c")
    rank = len(instruction.shape.dims)
    dims = tuple(range(rank - len(instruction.numbers("fft_length")), rank))
    given, written = specs_of(inputs[:1]), specs_of([instruction.shape])
    return LibraryCall(Op(f"aten._fft_{kind}", given, written, (("dim", dims),)), (0,))
