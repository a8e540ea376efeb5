"""One rule for each kind of op: which dimensions of its tensors are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from wavecast import ops
from wavecast.ops import Kind
from wavecast.parallel.sharding.placements import dim_of
from wavecast.traces.step import Op, TensorSpec

# Fused attention and convolutions.


def convolution(op: Op) -> Dims | None:
    """Channels in and out; each channel by itself in a depthwise convolution."""
    backward = op.base.endswith("backward")
    x, weight = (op.inputs[1], op.inputs[2]) if backward else op.inputs[:2]
    groups, spatial = op.attr("groups", 1), len(x.shape) - 2
    transposed = bool(op.attr("transposed", False))
    depthwise = groups == x.shape[1] == weight.shape[0]
    if groups != 1 and not depthwise:
        return None
    channels = ("c", "c") if depthwise else ("i", "o")
    image = tuple(f"s{dim}" for dim in range(spatial))
    taps = ("",) * spatial
    whole = frozenset(image)
    ins, outs = ("b", channels[0], *image), ("b", channels[1], *(f"z{d}" for d in range(spatial)))
    filters = ("c", "") if depthwise else (("i", "o") if transposed else ("o", "i"))
    weights: Labels = (*filters, *taps)
    whole |= frozenset(outs[2:])
    if not backward:
        bias = ((channels[1],),) if len(op.inputs) == 3 else ()
        return Dims((ins, weights, *bias), (outs,), whole, factors=(0, 1))
    by_shape = {x.shape: ins, weight.shape: weights}
    mask = op.attr("output_mask", (True, True, True))
    kept = [which for which, computed in zip((ins, weights, (channels[1],)), mask, strict=True)]  # type: ignore[arg-type]
    listed = [labels for labels, computed in zip(kept, mask, strict=True) if computed]  # type: ignore[arg-type]
    if len(listed) != len(op.outputs):
        listed = [by_shape.get(t.shape, (channels[1],)) for t in op.outputs]
    return Dims((outs, ins, weights), tuple(listed), whole)


def attention(op: Op) -> Dims | None:
    """Fused attention: heads and samples are independent of each other."""
    backward = "backward" in op.base
    order = "bhtd" if "scaled_dot" in op.base else "bthd"
    query, key = op.inputs[1:3] if backward else op.inputs[:2]
    if len(query.shape) != 4:
        return None
    heads = order.index("h")
    groups = key.shape[heads]
    few = "h" if groups == query.shape[heads] else "g" if groups > 1 else ""
    names = {"q": "bhtd", "k": f"b{few or ' '}sd", "v": f"b{few or ' '}se", "o": "bhte"}

    def of(which: str) -> Labels:
        own = dict(zip("bhtd", names[which], strict=True))
        return tuple(own[letter].strip() for letter in order)

    def other(tensor: TensorSpec, out: TensorSpec) -> Labels:
        if tensor.shape == out.shape:
            return of("o")
        if len(tensor.shape) == 4 and tensor.shape[-1] != 1:  # a bias
            sizes = (query.shape[0], query.shape[heads])
            bias = tuple(
                label if n == m else ""
                for label, n, m in zip("bh", tensor.shape[:2], sizes, strict=True)
            )
            return (*bias, "t" if tensor.shape[2] > 1 else "", "s")
        if len(tensor.shape) in (3, 4) and tensor.shape[:2] == (query.shape[0], query.shape[heads]):
            length = "t" if tensor.shape[2] == query.shape[order.index("t")] else ""
            return ("b", "h", length, "")[: len(tensor.shape)]
        return ("",) * len(tensor.shape)

    times = query.shape[heads] // max(groups, 1)
    repeats = (("h", "g", times),) if few == "g" else ()
    whole = frozenset("dets")
    if not backward:
        inputs = (of("q"), of("k"), of("v"), *(other(t, op.outputs[0]) for t in op.inputs[3:]))
        results = (of("o"), *(other(t, op.outputs[0]) for t in op.outputs[1:]))
        return Dims(inputs, results, whole, repeats=repeats)
    out = op.inputs[0]
    inputs = (of("o"), of("q"), of("k"), of("v"), *(other(t, out) for t in op.inputs[4:]))
    results = (of("q"), of("k"), of("v"), *(other(t, out) for t in op.outputs[3:]))
    return Dims(inputs, results[: len(op.outputs)], whole, repeats=repeats)


# Labels of an op's dimensions. Equal labels go together: they are sharded alike or not at all. A
# label of inputs that an output lacks is summed there, so that a shard of it gives partial sums. An
# empty label is a dimension of size 1 that is broadcast, or one that nothing depends on.


Labels = tuple[str, ...]


@dataclass(frozen=True)
class Dims:
    """The labels of an op's dimensions."""

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    whole: frozenset[str] = frozenset()
    linear: bool = False
    """Whether partial sums of its inputs give partial sums of its outputs."""
    looked_up: str = ""
    """The dimension of a table whose rows are chosen by index."""
    repeats: tuple[tuple[str, str, int], ...] = ()
    """Labels (many, few, times): so many of the first share one of the second, as grouped heads."""
    vocabulary: str = ""
    """The dimension over which a loss normalises. A shard of it takes all-reduces of its rows."""
    reductions: int = 0
    """How many such all-reduces."""
    rows: bool = False
    """Whether `whole` dimensions of tokens are local: a rank sorts and picks its own tokens."""
    factors: tuple[int, ...] = ()
    """The two inputs of a matmul or convolution."""
    sums_all: bool = False
    """Whether an output without labels is a sum, not a seed or a count."""


def _labels(shape: tuple[int, ...], prefix: str = "d") -> Labels:
    return tuple(f"{prefix}{dim}" for dim in range(len(shape)))


def _broadcast(tensor: TensorSpec, shape: tuple[int, ...]) -> Labels | None:
    """The labels of a tensor that is broadcast to a shape; None if it cannot be."""
    offset = len(shape) - len(tensor.shape)
    if offset < 0:
        return None
    labels = []
    for dim, size in enumerate(tensor.shape):
        if size == shape[dim + offset]:
            labels.append(f"d{dim + offset}")
        elif size == 1:
            labels.append("")
        else:
            return None
    return tuple(labels)


def _pointwise(op: Op) -> Dims | None:
    shapes = [tensor.shape for tensor in (*op.inputs, *op.outputs)]
    shape = max(op.outputs, key=lambda t: (t.numel, len(t.shape))).shape
    if not shape:
        shape = max(shapes, key=len)
    inputs = [_broadcast(tensor, shape) for tensor in op.inputs]
    outputs = [_broadcast(tensor, shape) for tensor in op.outputs]
    if None in inputs or None in outputs:
        return None
    linear = op.base.removesuffix("_") in _LINEAR
    return Dims(tuple(i or () for i in inputs), tuple(o or () for o in outputs), linear=linear)


_LINEAR = frozenset(
    f"aten.{name}" for name in ("add", "sub", "neg", "mul", "div", "rsub", "copy", "masked_fill")
)


def _like(op: Op) -> Dims:
    """A new tensor, sized after another one: sharded as that where sizes are equal."""
    source, shape = op.inputs[0].shape, op.outputs[0].shape
    offset = len(shape) - len(source)
    labels = tuple(
        f"d{dim}" if dim - offset >= 0 and source[dim - offset] == size and source == shape else ""
        for dim, size in enumerate(shape)
    )
    inputs = (_labels(source) if source == shape else ("",) * len(source),)
    return Dims((*inputs, *(("",) * len(t.shape) for t in op.inputs[1:])), (labels,))


def _matmul(op: Op) -> Dims:
    batch = ("b",) if len(op.outputs[0].shape) == 3 else ()
    left, right = (*batch, "m", "k"), (*batch, "k", "n")
    if op.base in ("aten.mv", "aten.dot"):
        vectors = (("m", "k"), ("k",)) if op.base == "aten.mv" else (("k",), ("k",))
        return Dims(vectors, (("m",) if op.base == "aten.mv" else (),), sums_all=True)
    result = (*batch, "m", "n")
    bias: tuple[Labels, ...] = ()
    if len(op.inputs) == 3:
        added, offset = op.inputs[0], len(result) - len(op.inputs[0].shape)
        bias = (
            tuple(result[d + offset] if size > 1 else "" for d, size in enumerate(added.shape)),
        )
    return Dims((*bias, left, right), (result,), factors=(len(bias), len(bias) + 1))


def _grouped(op: Op) -> Dims:
    """Rows of each group times the weight of its expert."""
    left, right = op.inputs[0].shape, op.inputs[1].shape
    ends = tuple(("e",) for _ in op.inputs[2:])
    if len(left) == len(right) == 2:  # the gradient of the weights
        return Dims((("k", "t"), ("t", "n"), *ends), (("e", "k", "n"),))
    if len(left) == 3:
        return Dims((("e", "m", "k"), ("k", "t"), *ends), (("m", "t"),), factors=(0, 1))
    return Dims((("t", "k"), ("e", "k", "n"), *ends), (("t", "n"),), factors=(0, 1))


def _normalized(op: Op) -> Dims:
    """Layer and RMS norms: the last dimensions are whole; weights lack the others."""
    x = op.inputs[0].shape
    size = op.attr("normalized_shape", ())
    last = len(size) if isinstance(size, tuple) else 1
    labels = _labels(x)
    whole = frozenset(labels[len(x) - last :])

    def of(tensor: TensorSpec) -> Labels:
        if len(tensor.shape) == len(x):
            return tuple(
                label if n == m else "" for label, n, m in zip(labels, tensor.shape, x, strict=True)
            )
        if tensor.shape == x[len(x) - last :]:
            return labels[len(x) - last :]
        return tuple(
            label if n == m else "" for label, n, m in zip(labels, tensor.shape, x, strict=False)
        )

    return Dims(tuple(map(of, op.inputs)), tuple(map(of, op.outputs)), whole)


def _batch_norm(op: Op) -> Dims:
    """A norm of each channel over samples and places."""
    rank = max(len(t.shape) for t in op.inputs)
    channels = next(t.shape[1] for t in op.inputs if len(t.shape) == rank)
    image = ("b", "c", *(f"s{dim}" for dim in range(rank - 2)))

    def of(tensor: TensorSpec) -> Labels:
        if len(tensor.shape) == rank:
            return image
        return ("c",) if tensor.shape == (channels,) else ("",) * len(tensor.shape)

    whole = frozenset(image) - {"c"}
    return Dims(tuple(map(of, op.inputs)), tuple(map(of, op.outputs)), whole)


def _softmax(op: Op) -> Dims | None:
    dims = _pointwise(op)
    if dims is None:
        return None
    label = f"d{dim_of(op, len(op.outputs[0].shape), default=-1)}"
    if "log_softmax" in op.base:
        forward = "backward" not in op.base
        return Dims(dims.inputs, dims.outputs, vocabulary=label, reductions=2 * forward)
    return Dims(dims.inputs, dims.outputs, frozenset({label}))


def _nll_loss(op: Op) -> Dims:
    forward = op.base.endswith("forward")
    x = op.inputs[0 if forward else 1]
    labels: Labels = ("c",) if len(x.shape) == 1 else ("n", "c", *_labels(x.shape[2:], "s"))
    rows = tuple(label for label in labels if label != "c")

    def of(tensor: TensorSpec) -> Labels:
        if len(tensor.shape) == len(labels):
            return labels
        if len(tensor.shape) == len(rows):
            return rows
        return ("",) * len(tensor.shape)

    return Dims(
        tuple(map(of, op.inputs)),
        tuple(map(of, op.outputs)),
        vocabulary="c",
        reductions=int(forward),
        sums_all=True,
    )


_SUMS = ("aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.max", "aten.min", "aten.any")


def _reduced(op: Op) -> Dims | None:
    if op.name in ("aten.max.other", "aten.min.other"):
        return _pointwise(op)
    x, result = op.inputs[0].shape, op.outputs[0].shape
    dims = op.attr("dim")
    listed = dims if isinstance(dims, tuple) else (dims,) if isinstance(dims, int) else ()
    reduced = {int(dim) % len(x) for dim in listed if x} or set(range(len(x)))
    labels = _labels(x)
    if len(result) == len(x):
        kept = tuple("" if dim in reduced else label for dim, label in enumerate(labels))
    else:
        kept = tuple(label for dim, label in enumerate(labels) if dim not in reduced)
    summed = op.base in _SUMS
    whole = frozenset() if summed else frozenset(f"d{dim}" for dim in reduced)
    linear = op.base in ("aten.sum", "aten.mean")
    rest = tuple(("",) * len(t.shape) for t in op.inputs[1:])
    outputs = tuple(kept if len(t.shape) == len(kept) else ("",) * len(t.shape) for t in op.outputs)
    return Dims((labels, *rest), outputs, whole, linear, sums_all=True)


def _sorted(op: Op) -> Dims:
    """Sorts, top values and running sums: the dimension in question is whole."""
    x = op.inputs[0].shape
    dim = dim_of(op, len(x), default=-1)
    labels = _labels(x)
    whole = frozenset(labels[dim : dim + 1])

    def of(tensor: TensorSpec) -> Labels:
        if len(tensor.shape) != len(x):
            return ("",) * len(tensor.shape)
        return tuple(
            label if n == m else "" for label, n, m in zip(labels, tensor.shape, x, strict=True)
        )

    return Dims(tuple(map(of, op.inputs)), tuple(map(of, op.outputs)), whole, rows=True)


def _embedding(op: Op) -> Dims:
    if op.base == "aten.embedding":
        index = _labels(op.inputs[1].shape, "i")
        return Dims((("v", "c"), index), ((*index, "c"),), looked_up="v")
    index = _labels(op.inputs[1].shape, "i")
    rest = tuple(("",) * len(t.shape) for t in op.inputs[2:])
    return Dims(((*index, "c"), index, *rest), (("v", "c"),), looked_up="v")


def _picked(op: Op) -> Dims | None:
    """`index`, `index_put` and their kind: rows chosen by tensors of indices."""
    puts = "put" in op.base
    x = op.inputs[0]
    indices = op.inputs[1:-1] if puts and len(op.inputs) > 2 else op.inputs[1:]
    moved = op.inputs[-1] if puts and len(op.inputs) > 2 else op.outputs[0]
    shape: tuple[int, ...] = ()
    for index in indices:
        shape = max(shape, index.shape, key=len)
    for kept in range(len(x.shape) - len(indices) + 1):
        rest = x.shape[kept + len(indices) :]
        if len(moved.shape) != kept + len(shape) + len(rest):
            continue
        if moved.shape[:kept] == x.shape[:kept] and _ends(moved.shape, rest):
            labels = _labels(x.shape)
            chosen = tuple(f"i{dim}" for dim in range(len(shape)))
            rows = (*labels[:kept], *chosen, *labels[kept + len(indices) :])
            whole = frozenset(labels[kept : kept + len(indices)])
            listed = [chosen[len(shape) - len(t.shape) :] for t in indices]
            if puts:
                rows_put = labels
                inputs = (labels, *listed, rows) if moved is op.inputs[-1] else (labels, *listed)
                return Dims(inputs, (rows_put,), whole, linear=True, rows=True)
            return Dims((labels, *listed), (rows,), whole, linear=True, rows=True)
    return None


def _ends(shape: tuple[int, ...], rest: tuple[int, ...]) -> bool:
    return shape[len(shape) - len(rest) :] == rest


def _along(op: Op) -> Dims | None:
    """`gather`, `scatter`, `index_select` and `index_add` along one dimension."""
    x = op.inputs[0].shape
    dim = dim_of(op, len(x))
    labels = _labels(x)
    chosen = tuple("i" if d == dim else label for d, label in enumerate(labels))
    is_flat = "index_" in op.base

    def of(tensor: TensorSpec, as_input: bool) -> Labels:
        if is_flat and len(tensor.shape) == 1 and as_input and len(x) > 1:
            return ("i",)
        if len(tensor.shape) != len(x):
            return ("",) * len(tensor.shape)
        sizes = enumerate(zip(chosen, tensor.shape, strict=True))
        return tuple(name if d == dim or n == x[d] else "" for d, (name, n) in sizes)

    adds = "add" in op.base or "scatter" in op.base or "copy" in op.base
    inputs = (labels, *(of(tensor, True) for tensor in op.inputs[1:]))
    outputs = (labels,) if adds else (of(op.outputs[0], False),)
    whole = frozenset({labels[dim]}) if labels else frozenset()
    return Dims(inputs, outputs, whole, linear=True, rows=True)


def _padded(op: Op) -> Dims:
    """Padding, and the gradient of a slice: dimensions of equal size are the same."""
    x, result = op.inputs[0].shape, op.outputs[0].shape
    labels = _labels(result)
    kept = tuple(label if n == m else "" for label, n, m in zip(labels, x, result, strict=True))
    whole = tuple(label or f"w{dim}" for dim, label in enumerate(kept))
    changed = frozenset(label for label in whole if label.startswith("w"))
    return Dims((whole,), (tuple(kept),), changed, linear=True, rows=True)


_Rule = Callable[[Op], Dims | None]
_RULES: dict[str, _Rule] = {
    f"aten.{name}": rule
    for rule, names in (
        (_matmul, "mm addmm bmm baddbmm mv dot"),
        (_grouped, "_grouped_mm"),
        (convolution, "convolution convolution_backward cudnn_convolution"),
        (_normalized, "native_layer_norm native_layer_norm_backward"),
        (_normalized, "_fused_rms_norm _fused_rms_norm_backward"),
        (_batch_norm, "native_batch_norm native_batch_norm_backward cudnn_batch_norm"),
        (_batch_norm, "cudnn_batch_norm_backward _native_batch_norm_legit"),
        (_softmax, "_softmax _softmax_backward_data _safe_softmax"),
        (_softmax, "_log_softmax _log_softmax_backward_data"),
        (_nll_loss, "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"),
        (_reduced, "sum mean amax amin any all var var_mean std prod argmax argmin logsumexp"),
        (_reduced, "linalg_vector_norm norm max min"),
        (_sorted, "sort topk argsort cumsum cumprod histc bincount kthvalue"),
        (_embedding, "embedding embedding_dense_backward"),
        (_picked, "index index_put index_put_ _index_put_impl_ _unsafe_index"),
        (_along, "gather scatter scatter_ scatter_add scatter_add_ index_select index_add"),
        (_along, "index_add_ index_copy scatter_reduce"),
        (_like, "zeros_like ones_like empty_like full_like rand_like randn_like new_zeros"),
        (_padded, "constant_pad_nd"),
        (_like, "new_empty new_empty_strided new_ones new_full"),
    )
    for name in names.split()
}
_POINTWISE_KINDS = (Kind.ELEMENTWISE, Kind.COPY, Kind.FILL, Kind.RANDOM, Kind.VIEW, Kind.LOSS)


@lru_cache(maxsize=16384)
def dims_of(op: Op) -> Dims | None:
    """The labels of an op's dimensions; None if no rule is known."""
    if not op.inputs or not op.outputs:
        return Dims((), tuple(("",) * len(t.shape) for t in op.outputs))
    if "attention" in op.base:
        return attention(op)
    rule = _RULES.get(op.base)
    if rule is not None:
        return rule(op)
    return _pointwise(op) if ops.kind(op) in _POINTWISE_KINDS else None
