"""The cost of fused attention, whose scores and probabilities never reach GPU memory.

`flops` are counted as torch does, which ignores masks. `executed_flops` leaves out the pairs that
causal and windowed kernels skip.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.ops.registry import Cost, Kind, cost, executed, integer, read, written
from wavecast.traces.step import Op, TensorSpec

_SDPA = (
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_fused_attention_overrideable",
)
_RAW = ("aten._flash_attention", "aten._efficient_attention", "aten._cudnn_attention")
ATTENDED, LEAST_ATTENDED = "attended_pairs", "least_attended_pairs"
"""The attributes of `flex_attention`: the pairs of queries and keys that its mask leaves, and the
fewest that it may leave where data decide."""
_FORWARD = (*_SDPA, *(f"{name}_forward" for name in _RAW), "flex_attention")
_BACKWARD = (*(f"{name}_backward" for name in (*_SDPA, *_RAW)), "flex_attention_backward")


@dataclass(frozen=True)
class AttentionProblem:
    """The shapes of an attention op, with head sizes d of queries and keys, and d_v of values.

    Forward, `sequences` times: (q_len, d) @ (d, k_len) gives the scores, and scores @ (k_len, d_v)
    the output.
    """

    sequences: int
    """The number of sequences times the number of heads."""
    q_len: int
    k_len: int
    d: int
    d_v: int

    def flops(self, *, backward: bool) -> int:
        """The FLOPs without a mask: two matmuls forward; backward four gradients and the scores."""
        width = 3 * self.d + 2 * self.d_v if backward else self.d + self.d_v
        return 2 * self.sequences * self.q_len * self.k_len * width


def _operands(op: Op) -> tuple[TensorSpec, ...]:
    """Query, key and value. In aten's backward ops the gradient comes before them."""
    first = int("backward" in op.base and op.base.startswith("aten."))
    return op.inputs[first : first + 3]


def _is_raw(op: Op) -> bool:
    return op.base.startswith(_RAW)


def _packed_sequences(op: Op) -> int:
    """The number of sequences of unequal length packed into one tensor; 0 for a plain batch."""
    query = _operands(op)[0]
    if len(query.shape) == 4 and query.shape[0] != 1:
        return 0
    offsets = (t.shape[0] for t in op.inputs if len(t.shape) == 1 and t.dtype == "int32")
    return next(offsets, 1) - 1


def problem(op: Op, *, as_torch: bool) -> AttentionProblem:
    """The shapes of an attention op; packed sequences, of unknown length, count as the longest.

    With `as_torch`, heads and length change places, as in torch's FLOP counter, by mistake.
    """
    query, key, value = _operands(op)
    d, d_v = query.shape[-1], value.shape[-1]
    packed = _packed_sequences(op) if _is_raw(op) else 0
    if packed:
        q_len = integer(op, "max_q") or integer(op, "max_seqlen_q")
        k_len = integer(op, "max_k") or integer(op, "max_seqlen_k")
        return AttentionProblem(packed * query.shape[-2], q_len, k_len, d, d_v)
    heads, length = (2, 1) if _is_raw(op) and not as_torch else (1, 2)
    sequences = query.shape[0] * query.shape[heads]
    return AttentionProblem(sequences, query.shape[length], key.shape[length], d, d_v)


def _below(q_len: int, k_len: int, offset: int) -> int:
    """The number of pairs (i, j) with i < q_len, j < k_len and j <= i + offset.

    Row i has i + offset + 1 of them, but at least 0 and at most k_len. Their sum is the area of a
    triangle without the parts that lie outside of the rectangle.
    """

    def triangle(side: int) -> int:
        return side * (side + 1) // 2 if side > 0 else 0

    reach = triangle(q_len + offset) - triangle(offset)
    return reach - triangle(q_len + offset - k_len) + triangle(offset - k_len)


def least_share(op: Op) -> float:
    """The least share of an op's work that is done, if a mask depends on data; else 1."""
    most = integer(op, ATTENDED)
    return integer(op, LEAST_ATTENDED, most) / most if most else 1.0


def attended(op: Op, q_len: int, k_len: int) -> int:
    """The number of query-key pairs that the op's causal mask or window leaves.

    The diagonal of a causal mask starts at the top left. In `_flash_attention` and for mask type 2
    of `_efficient_attention` it ends at the bottom right. Windows are relative to it.
    """
    known = integer(op, ATTENDED, -1)
    if known >= 0:  # flex_attention, whose mask is a function of the user's
        return known
    mask = integer(op, "custom_mask_type")
    causal = bool(op.attr("is_causal", False)) or mask > 0
    bottom_right = op.base.startswith("aten._flash_attention") or mask == 2
    diagonal = k_len - q_len if bottom_right else 0
    left, right = integer(op, "window_size_left", -1), integer(op, "window_size_right", -1)
    right = 0 if causal else right
    pairs = _below(q_len, k_len, diagonal + right) if right >= 0 else q_len * k_len
    return pairs - (_below(q_len, k_len, diagonal - left - 1) if left >= 0 else 0)


@cost(*_FORWARD, *_BACKWARD, kind=Kind.ATTENTION)
def _attention(op: Op) -> Cost:
    flops = problem(op, as_torch=True).flops(backward="backward" in op.base)
    return Cost(flops, read(op.inputs), written(op.outputs))


@executed(*_FORWARD, *_BACKWARD)
def _executed(op: Op) -> int:
    shapes = problem(op, as_torch=False)
    pairs = shapes.q_len * shapes.k_len
    if not pairs:
        return 0
    flops = shapes.flops(backward="backward" in op.base)
    return flops * attended(op, shapes.q_len, shapes.k_len) // pairs
