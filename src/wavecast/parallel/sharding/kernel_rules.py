"""The rules of fused attention and of convolutions."""

from __future__ import annotations

from wavecast.parallel.sharding.dims import Dims, Labels
from wavecast.traces.step import Op, TensorSpec


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
    made = {x.shape: ins, weight.shape: weights}
    mask = op.attr("output_mask", (True, True, True))
    kept = [which for which, wanted in zip((ins, weights, (channels[1],)), mask, strict=True)]  # type: ignore[arg-type]
    listed = [labels for labels, wanted in zip(kept, mask, strict=True) if wanted]  # type: ignore[arg-type]
    if len(listed) != len(op.outputs):
        listed = [made.get(t.shape, (channels[1],)) for t in op.outputs]
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
        made = (of("o"), *(other(t, op.outputs[0]) for t in op.outputs[1:]))
        return Dims(inputs, made, whole, repeats=repeats)
    out = op.inputs[0]
    inputs = (of("o"), of("q"), of("k"), of("v"), *(other(t, out) for t in op.inputs[4:]))
    made = (of("q"), of("k"), of("v"), *(other(t, out) for t in op.outputs[3:]))
    return Dims(inputs, made[: len(op.outputs)], whole, repeats=repeats)
