"""The cost of matmuls. FLOPs are as torch counts them: without bias and activation."""

from __future__ import annotations

import math

from wavecast.ops.registry import Cost, Kind, cost, integers, read, streaming, written
from wavecast.traces.step import Op, TensorSpec


def _product(a: TensorSpec, b: TensorSpec) -> int:
    """The FLOPs of (..., m, k) @ (..., k, n)."""
    return 2 * a.numel * b.shape[-1]


def _one_pass(op: Op, flops: int) -> Cost:
    """The cost when each tensor is read or written once."""
    return Cost(flops, read(op.inputs), written(op.outputs))


XLA_UNALIGNED = "xla.unaligned_mm"
"""A matmul that XLA writes in Triton, since the rows of an operand begin at odd places."""


@cost(XLA_UNALIGNED, kind=Kind.MATMUL)
@cost("aten.mm", "aten.bmm", "aten._int_mm", kind=Kind.MATMUL)
@cost("aten._scaled_mm", "aten._scaled_mm_v2", kind=Kind.MATMUL)
def _mm(op: Op) -> Cost:
    return _one_pass(op, _product(op.inputs[0], op.inputs[1]))


ADDING = ("aten.addmm", "aten.baddbmm", "aten.addbmm", "aten._addmm_activation")
"""Matmuls whose first input is added to their product."""


@cost(*ADDING, kind=Kind.MATMUL)
def _addmm(op: Op) -> Cost:
    """`self` is not read when `beta` is 0."""
    operands = op.inputs if op.attr("beta", 1) else op.inputs[1:]
    return Cost(_product(op.inputs[1], op.inputs[2]), read(operands), written(op.outputs))


@cost("aten.linear", kind=Kind.MATMUL)
def _linear(op: Op) -> Cost:
    return _one_pass(op, 2 * op.inputs[0].numel * op.inputs[1].shape[0])


GROUPED = ("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2")


@cost(*GROUPED, kind=Kind.MATMUL)
def _grouped_mm(op: Op) -> Cost:
    """Each row (or column, or inner element) belongs to one group, so groups add no FLOPs.

    2-D @ 3-D is (m, k) @ (g, k, n), where groups split the rows. In 3-D @ 2-D they split the
    columns, in 2-D @ 2-D the inner dimension. 3-D @ 3-D is a batched matmul.
    """
    a, b = op.inputs[:2]
    groups = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    return _one_pass(op, 2 * groups * math.prod(a.shape[-2:]) * b.shape[-1])


def groups(op: Op) -> tuple[int, float, float, float]:
    """The number of groups of a grouped matmul, and m, n and k of each.

    The sizes of groups are data, which a trace does not have, so all groups count as equally large.
    """
    a, b, out = *op.inputs[:2], op.outputs[0]
    m, k, n = float(a.shape[-2]), float(a.shape[-1]), float(b.shape[-1])
    match len(a.shape), len(b.shape):
        case 2, 2:
            return out.shape[0], m, n, k / max(out.shape[0], 1)
        case 2, 3:
            return b.shape[0], m / max(b.shape[0], 1), n, k
        case 3, 2:
            return a.shape[0], m, n / max(a.shape[0], 1), k
    return a.shape[0], m, n, k


@cost("aten._foreach_mm", kind=Kind.MATMUL)
def _foreach_mm(op: Op) -> Cost:
    half = len(op.inputs) // 2
    pairs = zip(op.inputs[:half], op.inputs[half:], strict=True)
    return _one_pass(op, sum(_product(a, b) for a, b in pairs))


# Matmuls with a vector read their matrix once and use no tensor core, so they are reductions.
streaming(Kind.REDUCTION, "mv addmv dot vdot", flops=2)


@cost("aten._cdist_forward", "aten._euclidean_dist", kind=Kind.REDUCTION)
def _cdist(op: Op) -> Cost:
    """A subtraction, a multiplication and an addition for each pair of points and coordinate."""
    return _one_pass(op, 3 * op.outputs[0].numel * op.inputs[0].shape[-1])


@cost("aten._cdist_backward", kind=Kind.REDUCTION)
def _cdist_backward(op: Op) -> Cost:
    grad, points = op.inputs[:2]
    return _one_pass(op, 4 * grad.numel * points.shape[-1])


@cost("aten._trilinear", kind=Kind.REDUCTION)
def _trilinear(op: Op) -> Cost:
    """Sums over three tensors, as in nn.Bilinear: a multiply-add for each combination."""
    shapes = []
    for number, tensor in enumerate(op.inputs, start=1):
        shape = list(tensor.shape)
        for dim in sorted(integers(op, f"expand{number}")):
            shape.insert(dim, 1)
        shapes.append(shape)
    return _one_pass(op, 2 * math.prod(map(max, zip(*shapes, strict=True))))


@cost("aten.linalg_solve_triangular", kind=Kind.LINEAR_ALGEBRA)
def _solve_triangular(op: Op) -> Cost:
    """n^2 FLOPs for each right-hand side, whichever side the matrix is on."""
    matrix, right = op.inputs[:2]
    return _one_pass(op, right.numel * matrix.shape[-1])


@cost("aten.linalg_cholesky_ex", "aten.cholesky", kind=Kind.LINEAR_ALGEBRA)
def _cholesky(op: Op) -> Cost:
    """n^3 / 3 FLOPs, as LAPACK counts."""
    matrix = op.inputs[0]
    return _one_pass(op, matrix.numel * matrix.shape[-1] // 3)


@cost("aten.linalg_inv_ex", kind=Kind.LINEAR_ALGEBRA)
def _inverse(op: Op) -> Cost:
    """2 n^3 FLOPs, as LAPACK counts."""
    matrix = op.inputs[0]
    return _one_pass(op, 2 * matrix.numel * matrix.shape[-1])


@cost("aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r", kind=Kind.FFT)
def _fft(op: Op) -> Cost:
    """5 N log2 n FLOPs, n the points of one transform; half of it when one side is real."""
    points = max(op.inputs[0], op.outputs[0], key=lambda t: t.numel)
    dims = op.attr("dim", ())
    length = math.prod(points.shape[int(d)] for d in dims) if isinstance(dims, tuple) else 1
    flops = 5 * points.numel * math.ceil(math.log2(max(length, 2)))
    return _one_pass(op, flops if op.base.endswith("c2c") else flops // 2)
