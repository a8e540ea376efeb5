"""The products of a step with weights: which tensors of which calls belong to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wavecast.parallel.splits import Split, Splits
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

Part = Literal["forward", "input", "weight"]
"""What a product computes: an output, or the gradient of an input or of a weight."""
Side = Literal["columns", "rows"]
"""The features of a weight that are divided: those of its output, or those of its input."""

_AROUND = frozenset(
    f"aten.{name}"
    for name in (
        *("t", "view", "_unsafe_view", "reshape", "_reshape_alias", "_to_copy", "alias", "detach"),
        *("clone", "transpose", "expand", "sum", "add", "add_", "mm", "addmm"),
    )
)
_PRODUCTS = ("aten.mm", "aten.addmm")
_VIEWS = ("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias")


@dataclass(frozen=True)
class Layer:
    """One use of a weight: `rows` inputs of `wide_in` features give `wide_out` features each."""

    module: str
    position: int
    """The position of its product in the forward pass."""
    rows: int
    wide_in: int
    wide_out: int
    transposed: bool
    """Whether the weight is stored as (out, in), as in `nn.Linear`."""

    def units(self, side: Side) -> int:
        """The features that are divided: of queries, keys and values, each by itself."""
        if side == "rows":
            return self.wide_in
        return self.wide_in if self.wide_out == 3 * self.wide_in else self.wide_out


@dataclass(frozen=True)
class LayerPass:
    """The calls of one pass of a layer: its products and the casts and views around them."""

    layer: Layer
    start: int
    end: int
    forward: bool
    parts: tuple[tuple[int, Part], ...]
    """The positions of its products."""

    def position_of(self, part: Part) -> int | None:
        """The position of a product; None if the run has none of this kind."""
        return next((position for position, which in self.parts if which == part), None)

    def reads(self, trace: Trace) -> TensorSpec:
        """What the layer reads: its input, or the gradient of its output."""
        wide = self.layer.wide_in if self.forward else self.layer.wide_out
        tensors = [t for call in trace.calls[self.start : self.end] for t in call.op.inputs]
        of_width = [
            t for t in tensors if t.shape[-1:] == (wide,) and t.numel == self.layer.rows * wide
        ]
        deep = [t for t in of_width if len(t.shape) > 2]
        return (deep or of_width or tensors)[0]

    def passes_on(self, position: int, tensor: TensorSpec) -> bool:
        """Whether a tensor written there can be what the run gives to the calls that follow."""
        layer = self.layer
        wide = layer.wide_out if self.forward else layer.wide_in
        turn = self.position_of("forward" if self.forward else "input")
        made = turn is not None and position >= turn and position != self.position_of("weight")
        return made and tensor.shape[-1:] == (wide,) and tensor.numel == layer.rows * wide


def layers_of(trace: Trace) -> list[Layer]:
    """The layers of the forward pass, in order."""
    layers = []
    for position, call in enumerate(trace):
        if call.phase is Phase.FORWARD and call.op.base in _PRODUCTS:
            left, right = call.op.inputs[-2:]
            rows, wide_in = left.shape
            layers.append(
                Layer(
                    call.module,
                    position,
                    rows,
                    wide_in,
                    right.shape[1],
                    right.strides is not None or call.op.base == "aten.mm",
                )
            )
    return layers


def runs_of(trace: Trace, layers: Sequence[Layer]) -> list[LayerPass]:
    """The passes of each layer through the step: forward, backward and recomputed ones."""
    by_module: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        by_module[layer.module].append(layer)
    at = {layer.position: layer for layer in layers}
    taken: set[tuple[int, Part]] = set()
    runs: list[LayerPass] = []
    for position, call in enumerate(trace):
        if call.op.base not in _PRODUCTS or call.phase in (Phase.OPTIMIZER, Phase.OTHER):
            continue
        if position in at:
            matched: tuple[Layer, Part] | None = at[position], "forward"
        else:
            matched = _matched(call.op, by_module[call.module], taken)
        if matched is None:
            continue
        layer, part = matched
        if part != "forward":
            taken.add((layer.position, part))
        if runs and runs[-1].layer is layer and not runs[-1].forward and position < runs[-1].end:
            last = runs.pop()
            parts = (*last.parts, (position, part))
            runs.append(LayerPass(layer, last.start, last.end, False, parts))
            continue
        floor = runs[-1].end if runs else 0
        runs.append(_run(trace.calls, layer, position, part, floor))
    return runs


def _matched(
    op: Op, layers: Sequence[Layer], taken: set[tuple[int, Part]]
) -> tuple[Layer, Part] | None:
    """The layer that a product of the backward pass belongs to: the last that fits."""
    for layer in reversed(layers):
        part = _part(op, layer)
        if part == "forward" or (part is not None and (layer.position, part) not in taken):
            return layer, part
    return None


def _part(op: Op, layer: Layer) -> Part | None:
    left, right = op.inputs[-2:]
    sizes = (*left.shape, right.shape[1])
    rows, wide_in, wide_out = layer.rows, layer.wide_in, layer.wide_out
    gradient = left.shape[1] == rows and {left.shape[0], right.shape[1]} == {wide_in, wide_out}
    if op.base == "aten.addmm":
        return "forward" if sizes == (rows, wide_in, wide_out) else None
    if gradient and (left.strides is not None or rows not in (wide_in, wide_out)):
        return "weight"
    # The gradient of the input takes the weight as it is stored, or turned if it was not before.
    if sizes == (rows, wide_out, wide_in) and (right.strides is None) == layer.transposed:
        return "input"
    if sizes == (rows, wide_in, wide_out):
        return "forward"
    return "weight" if gradient else None


def _run(calls: Sequence[Call], layer: Layer, position: int, part: Part, floor: int) -> LayerPass:
    """The calls around a product that only cast, view or sum its tensors."""
    start = position
    while start > floor and _belongs(calls[start - 1], calls[position], layer):
        if part == "forward" and calls[start - 1].op.base in _PRODUCTS:
            break
        start -= 1
    end = position + 1
    if part == "forward":
        if end < len(calls) and _belongs(calls[end], calls[position], layer):
            end += calls[end].op.base in _VIEWS
        return LayerPass(layer, start, end, True, ((position, part),))
    while end < len(calls) and _belongs(calls[end], calls[position], layer):
        end += 1
    return LayerPass(layer, start, end, False, ((position, part),))


def _belongs(call: Call, product: Call, layer: Layer) -> bool:
    if call.module != product.module or call.phase is not product.phase:
        return False
    if call.op.base not in _AROUND:
        return False
    return all(_explained(t, layer) for t in (*call.op.inputs, *call.op.outputs))


def _explained(tensor: TensorSpec, layer: Layer) -> bool:
    """Whether a tensor can be an input, output, weight or bias of a layer."""
    shape = tensor.shape
    if tensor.numel == layer.wide_out and shape[-1:] == (layer.wide_out,):
        return True
    if len(shape) == 2 and sorted(shape) == sorted((layer.wide_in, layer.wide_out)):
        return True
    return any(
        tensor.numel == layer.rows * wide
        and (shape[-1] == wide or (len(shape) == 2 and shape[0] == wide))
        for wide in (layer.wide_in, layer.wide_out)
    )


def splits_in_run(run: LayerPass, position: int, op: Op, side: Side) -> tuple[Splits, Splits]:
    """The divisions of the inputs and outputs of a call in a run of a divided layer."""
    part = next((which for at, which in run.parts if at == position), None)
    layer = run.layer
    if part is not None:
        splits = _product_splits(layer, part, side, op)
        return splits[:-1], splits[-1:]
    if op.base == "aten.t":
        return _turned(run, position, op.inputs[0], side)
    if op.base == "aten.sum":
        count = layer.units(side)
        out = Split(len(op.outputs[0].shape) - 1, count) if side == "columns" else None
        of = Split(len(op.inputs[0].shape) - 1, count) if side == "columns" else None
        return (of,), (out,)
    turn = run.position_of("forward" if run.forward else "input")
    passed = turn is not None and position > turn
    return (
        tuple(_split_of(t, run, op, passed, side) for t in op.inputs),
        tuple(_split_of(t, run, op, passed, side) for t in op.outputs),
    )


def _product_splits(layer: Layer, part: Part, side: Side, op: Op) -> Splits:
    """The divisions of the two factors and the result."""
    columns = side == "columns"
    count = layer.units(side)
    first, second = Split(0, count), Split(1, count)
    if part == "forward":
        bias: Splits = (Split(0, count) if columns else None,) if len(op.inputs) == 3 else ()
        if columns:
            return (*bias, None, second, second)
        return (*bias, second, first, None)
    if part == "input":
        return (second, first, None) if columns else (None, second, second)
    # The gradient of the weight is (out, in) or (in, out), as the weight is stored.
    if op.outputs[0].shape == (layer.wide_out, layer.wide_in) and layer.transposed:
        return (first, None, first) if columns else (None, second, second)
    return (None, second, second) if columns else (first, None, first)


def _turned(run: LayerPass, position: int, tensor: TensorSpec, side: Side) -> tuple[Splits, Splits]:
    """The divisions of a matrix that is turned: a weight, or rows before their gradient."""
    layer = run.layer
    columns = side == "columns"
    count = layer.units(side)
    made = run.position_of("weight")
    waiting = not run.forward and made is not None and position < made
    if waiting and tensor.strides is None:
        if layer.transposed and tensor.shape == (layer.rows, layer.wide_out):
            return ((Split(1, count),), (Split(0, count),)) if columns else ((None,), (None,))
        if not layer.transposed and tensor.shape == (layer.rows, layer.wide_in):
            return ((None,), (None,)) if columns else ((Split(1, count),), (Split(0, count),))
    stored = tensor.strides is None  # else it was turned before
    out_first = layer.transposed == stored
    dim = int(columns != out_first)
    return (Split(dim, count),), (Split(1 - dim, count),)


def _split_of(tensor: TensorSpec, run: LayerPass, op: Op, passed: bool, side: Side) -> Split | None:
    """The division of a tensor that is cast, viewed or added around a product."""
    layer = run.layer
    columns = side == "columns"
    shape, last = tensor.shape, len(tensor.shape) - 1
    is_matrix = sorted(shape) == sorted((layer.wide_in, layer.wide_out)) and len(shape) == 2
    if is_matrix and op.base not in _VIEWS:
        stored_out_first = layer.transposed == (tensor.strides is None)
        dim = int(columns != stored_out_first)
        return Split(dim, layer.units(side))
    if tensor.numel == layer.wide_out and layer.rows > 1:
        return Split(last, layer.units(side)) if columns else None
    if layer.wide_in != layer.wide_out:
        is_output = shape[-1] == layer.wide_out
    else:
        is_output = passed == run.forward
    if is_output:
        return Split(last, layer.units(side)) if columns else None
    return None if columns else Split(last, layer.wide_in)
