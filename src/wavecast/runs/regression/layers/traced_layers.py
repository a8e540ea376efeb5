"""The layers of a traced or measured step, read from its ops; no model code is needed.

Each op is one layer, under the path of the module that called it. Functions such as `F.relu` are
layers, too, under the path of the module whose `forward` calls them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from wavecast.errors import InvalidInput
from wavecast.ops import cost_of
from wavecast.ops.attention import attended, problem
from wavecast.ops.registry import ERRORS
from wavecast.runs.regression.layers.complexities import (
    LayerCategory,
    Network,
    NetworkLayer,
    Pass,
    Shape,
)
from wavecast.traces.step import Call, Op, Phase, Scalar, Trace

_SAMPLES = ("samples", "images")
"""The units in which a trace counts samples."""

Builder = Callable[[str, Op, int], NetworkLayer | None]


def network_of_trace(trace: Trace, *, batch: int | None = None, name: str = "") -> Network:
    """The layers of a step in the order in which its forward pass runs them.

    Args:
        trace: a step, traced without a GPU or measured.
        batch: the samples of the step; by default those of the trace.
        name: the name of the network.

    Raises:
        InvalidInput: the batch is unknown, or the step has no layer with a formula.
    """
    size = samples_of(trace, batch)
    layers: list[NetworkLayer] = []
    others: list[Call] = []
    for call in trace:
        if call.phase is Phase.FORWARD:
            layer = _layer(call, size)
            if layer is not None:
                layers.append(layer)
            else:
                others.append(call)
    if not layers:
        raise InvalidInput(
            f"none of the {len(trace)} calls of this trace is a layer with a formula in its "
            "forward pass"
        )
    return Network(
        name, _first_inputs(layers), tuple(layers), unknown=_unknown(others, layers, size)
    )


def samples_of(trace: Trace, batch: int | None = None) -> int:
    """The samples of a step: those given, or those of its trace."""
    size = batch if batch is not None else trace.samples
    if size is None or size < 1:
        raise InvalidInput("this trace does not say its batch: pass batch=... (--batch)")
    if batch is None and not counts_samples(trace):
        raise InvalidInput(
            f"this trace counts {trace.unit}, which do not say its batch: pass batch=... (--batch)"
        )
    return size


def counts_samples(trace: Trace) -> bool:
    """Whether a trace says how many samples its step has, and not tokens or seconds of audio."""
    return trace.samples is not None and trace.unit in _SAMPLES


def family_of(op: Op) -> LayerCategory | None:
    """The kind of layer that runs an op, forward or backward. None if several kinds might.

    Fully connected layers and convolutions are one family, `LayerCategory.CONV`.
    """
    if op.attr("transposed"):
        return LayerCategory.TRANSPOSED
    return _FAMILIES.get(op.base.removesuffix("_backward").removesuffix("_"))


def _layer(call: Call, batch: int) -> NetworkLayer | None:
    """The layer of a call of the forward pass. None without a formula."""
    build = _BUILDERS.get(call.op.base.removesuffix("_"))
    if build is None:
        return None
    try:
        layer = build(call.module, call.op, batch)
    except ERRORS:  # its tensors are not those of such a layer, or no whole number for a sample
        return None
    if layer is None or any(layer.ops(which) < 0 for which in Pass):
        return None  # an op that cannot be, such as a pool over -1 values
    return layer


def _unknown(calls: Iterable[Call], layers: Sequence[NetworkLayer], batch: int) -> tuple[str, ...]:
    """Ops without a formula. Those of a module that is a layer belong to it, as counters do."""
    paths = {layer.name for layer in layers}
    names: dict[str, None] = {}
    for call in calls:
        cost = cost_of(call.op)
        free = cost is not None and not any(cost.amounts)
        small = max((spec.numel for spec in call.op.outputs), default=0) < batch
        if call.module and call.module not in paths and not free and not small:
            names[f"{call.module} ({call.op.base})"] = None
    return tuple(names)


def _first_inputs(layers: Sequence[NetworkLayer]) -> Shape:
    first = layers[0]
    return first.inputs if first.kind is not LayerCategory.EMBEDDING else (1, *first.inputs[1:])


def _whole(count: int, batch: int) -> int:
    """A count for one sample."""
    if count % batch:
        raise ValueError(f"{count} values are no whole number for each of {batch} samples")
    return count // batch


def _channels_second(sizes: Sequence[int], batch: int) -> Shape:
    """One sample of (batch, channels, ...)."""
    if sizes[0] == batch and len(sizes) > 2:
        return sizes[1], sizes[2], math.prod(sizes[3:])
    return sizes[1], _whole(math.prod(sizes) // sizes[1], batch), 1


def _channels_last(sizes: Sequence[int], batch: int) -> Shape:
    """One sample of (batch, ..., channels)."""
    return sizes[-1], _whole(math.prod(sizes[:-1]), batch), 1


def _values(sizes: Sequence[int], batch: int) -> Shape:
    return (_channels_second if len(sizes) >= 4 else _channels_last)(sizes, batch)


def _numbers(value: Scalar | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if value is None or value == ():
        return default
    return tuple(int(n) for n in value) if isinstance(value, tuple) else (int(value),)


def _convolution(path: str, op: Op, batch: int) -> NetworkLayer:
    image, weight = op.inputs[0].shape, op.inputs[1].shape
    transposed = bool(op.attr("transposed"))
    return NetworkLayer(
        path,
        LayerCategory.TRANSPOSED if transposed else LayerCategory.CONV,
        _channels_second(image, batch),
        _channels_second(op.outputs[0].shape, batch),
        weight[2:],
        min(_numbers(op.attr("stride"), (1,))),
        groups=_numbers(op.attr("groups"), (1,))[0],
        bias=len(op.inputs) > 2,
    )


def _product(path: str, op: Op, batch: int) -> NetworkLayer:
    bias = op.base != "aten.mm" and (op.base != "aten.linear" or len(op.inputs) > 2)
    rows = op.inputs[1 if op.base in ("aten.addmm", "aten._addmm_activation") else 0].shape
    inputs, outputs = _channels_last(rows, batch), _channels_last(op.outputs[0].shape, batch)
    kind = LayerCategory.FC if outputs[1] == 1 else LayerCategory.CONV
    return NetworkLayer(path, kind, inputs, outputs, bias=bias)


def _pool(path: str, op: Op, batch: int) -> NetworkLayer | None:
    image, written = op.inputs[0].shape, op.outputs[0].shape
    kernel = _numbers(op.attr("kernel_size"), ())
    if op.base == "aten.avg_pool3d" and image[1] == 1 and kernel[1:] == (1, 1):
        # torch sums over neighbouring channels in this way for a local response normalization.
        shape = (written[2], written[3], written[4])
        return NetworkLayer(path, LayerCategory.NORM, shape, shape, local_size=kernel[0])
    if op.base == "aten._adaptive_avg_pool2d":
        if any(before % after for before, after in zip(image[2:], written[2:], strict=True)):
            return None
        kernel = tuple(n // m for n, m in zip(image[2:], written[2:], strict=True))
        stride = 1 if set(written[2:]) == {1} else min(kernel)
    else:
        stride = min(_numbers(op.attr("stride"), kernel))
    inputs, outputs = _channels_second(image, batch), _channels_second(written, batch)
    return NetworkLayer(path, LayerCategory.POOL, inputs, outputs, kernel, stride)


def _mean(path: str, op: Op, batch: int) -> NetworkLayer | None:
    """A global average pool, written as the mean over height and width."""
    image = op.inputs[0].shape
    dims = {n % len(image) for n in _numbers(op.attr("dim"), ())}
    if len(image) != 4 or dims != {2, 3}:
        return None
    channels, height, width = _channels_second(image, batch)
    return NetworkLayer(
        path, LayerCategory.POOL, (channels, height, width), (channels, 1, 1), (height, width)
    )


def _pointwise(kind: LayerCategory) -> Builder:
    def build(path: str, op: Op, batch: int) -> NetworkLayer:
        shape = _values(op.outputs[0].shape, batch)
        # As in Caffe, dropout counts as no new memory; torch keeps its output and a mask.
        in_place = kind is LayerCategory.DROPOUT or op.base.endswith("_")
        return NetworkLayer(path, kind, shape, shape, in_place=in_place)

    return build


def _dropout(path: str, op: Op, batch: int) -> NetworkLayer | None:
    if op.attr("train") is False or op.attr("p") == 0:
        return None
    return _pointwise(LayerCategory.DROPOUT)(path, op, batch)


def _sum(path: str, op: Op, batch: int) -> NetworkLayer | None:
    if len(op.inputs) < 2 or len(op.outputs[0].shape) < 2:
        return None
    return _pointwise(LayerCategory.SUM)(path, op, batch)


def _concat(path: str, op: Op, batch: int) -> NetworkLayer:
    shape = _values(op.outputs[0].shape, batch)
    return NetworkLayer(path, LayerCategory.CONCAT, shape, shape)


def _batch_norm(path: str, op: Op, batch: int) -> NetworkLayer:
    shape = _channels_second(op.inputs[0].shape, batch)
    return _normalization(path, LayerCategory.BATCH_NORM, shape, len(op.inputs) - 2)


def _group_norm(path: str, op: Op, batch: int) -> NetworkLayer:
    shape = _channels_second(op.inputs[0].shape, batch)
    return _normalization(path, LayerCategory.LAYER_NORM, shape, len(op.inputs))


def _layer_norm(path: str, op: Op, batch: int) -> NetworkLayer:
    channels = math.prod(_numbers(op.attr("normalized_shape"), op.inputs[0].shape[-1:]))
    shape = (channels, _whole(op.inputs[0].numel // channels, batch), 1)
    return _normalization(path, LayerCategory.LAYER_NORM, shape, len(op.inputs))


def _normalization(path: str, kind: LayerCategory, shape: Shape, tensors: int) -> NetworkLayer:
    return NetworkLayer(path, kind, shape, shape, bias=tensors > 2, weighted=tensors > 1)


def _attention(path: str, op: Op, batch: int) -> NetworkLayer:
    shapes = problem(op, as_torch=False)
    heads = op.inputs[0].shape[2 if "_attention_forward" in op.base else 1]
    positions = _whole(shapes.sequences // heads * shapes.q_len, batch)
    keys = -(-attended(op, shapes.q_len, shapes.k_len) // shapes.q_len)
    return NetworkLayer(
        path,
        LayerCategory.ATTENTION,
        (heads * shapes.d, positions, 1),
        (heads * shapes.d_v, positions, 1),
        (keys,),
    )


def _embedding(path: str, op: Op, batch: int) -> NetworkLayer:
    rows, channels = op.inputs[0].shape
    positions = _whole(math.prod(op.outputs[0].shape[:-1]), batch)
    return NetworkLayer(
        path, LayerCategory.EMBEDDING, (rows, positions, 1), (channels, positions, 1)
    )


_KINDS: dict[LayerCategory, tuple[Builder, tuple[str, ...]]] = {
    LayerCategory.CONV: (_product, ("mm", "addmm", "linear", "_addmm_activation")),
    LayerCategory.POOL: (
        _pool,
        (
            *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
            *("max_pool2d", "_adaptive_avg_pool2d"),
        ),
    ),
    LayerCategory.RELU: (_pointwise(LayerCategory.RELU), ("relu",)),
    LayerCategory.DROPOUT: (_dropout, ("native_dropout",)),
    LayerCategory.ACTIVATION: (
        _pointwise(LayerCategory.ACTIVATION),
        (
            *("gelu", "silu", "mish", "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid"),
            *("tanh", "sigmoid", "softplus", "glu"),
        ),
    ),
    LayerCategory.SUM: (_sum, ("add",)),
    LayerCategory.CONCAT: (_concat, ("cat",)),
    LayerCategory.BATCH_NORM: (
        _batch_norm,
        ("cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit", "batch_norm"),
    ),
    LayerCategory.LAYER_NORM: (_layer_norm, ("native_layer_norm", "_fused_rms_norm")),
    LayerCategory.EMBEDDING: (_embedding, ("embedding", "_embedding_bag")),
    LayerCategory.ATTENTION: (
        _attention,
        (
            *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
            *("_scaled_dot_product_cudnn_attention", "_flash_attention_forward"),
            "_efficient_attention_forward",
        ),
    ),
}
_BUILDERS: dict[str, Builder] = {
    "aten.convolution": _convolution,
    "aten.mean": _mean,
    "aten.native_group_norm": _group_norm,
    **{f"aten.{op}": build for build, ops in _KINDS.values() for op in ops},
}
_FAMILIES: dict[str, LayerCategory] = {
    **{f"aten.{op}": kind for kind, (_, ops) in _KINDS.items() for op in ops},
    "aten.convolution": LayerCategory.CONV,
    "aten.threshold": LayerCategory.RELU,
    "aten.native_group_norm": LayerCategory.LAYER_NORM,
    "aten.mean": LayerCategory.POOL,
    "aten.embedding_dense": LayerCategory.EMBEDDING,
    "aten._flash_attention": LayerCategory.ATTENTION,
    "aten._efficient_attention": LayerCategory.ATTENTION,
}
