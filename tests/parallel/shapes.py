"""Whether the shapes of an op fit each other, as PyTorch would check them."""

from __future__ import annotations

import math

from wavecast.traces.step import Op

_VIEWS = ("view", "_unsafe_view", "unsqueeze", "squeeze", "t", "transpose", "permute", "clone")
_POINTWISE = (
    *("add", "add_", "mul", "sub", "div", "gelu", "silu", "silu_backward", "gelu_backward"),
    *("native_dropout", "native_dropout_backward", "_to_copy", "where", "neg", "pow", "tanh"),
    *("_softmax", "_safe_softmax", "_log_softmax", "_softmax_backward_data"),
)


def misfit(op: Op) -> str | None:
    """What does not fit; None if all does, or if the op is not checked."""
    name = op.base.removeprefix("aten.")
    shapes = [tensor.shape for tensor in op.inputs]
    results = [tensor.shape for tensor in op.outputs]
    if name in ("mm", "addmm", "bmm"):
        left, right = shapes[-2:]
        if left[-1] != right[-2] or results[0][-2:] != (left[-2], right[-1]):
            return f"{op.name} {shapes} -> {results}"
        if name == "bmm" and not left[0] == right[0] == results[0][0]:
            return f"{op.name} {shapes} -> {results}"
        if name == "addmm" and shapes[0] != (right[-1],):
            return f"{op.name} {shapes} -> {results}"
    viewed = name not in _VIEWS or math.prod(shapes[0]) == math.prod(results[0])
    spread = name not in _POINTWISE or all(_broadcasts(shape, results[0]) for shape in shapes)
    return None if viewed and spread else f"{op.name} {shapes} -> {results}"


def _broadcasts(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    aligned = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(size in (1, other) for size, other in aligned)
