"""The ops that torch runs for a layer (`wavecast.predictors.mlp`), forward and backward."""

from __future__ import annotations

from lab.measured import op_makers as make
from wavecast.predictors.mlp import Bmm, Conv2d, Layer, Linear, Lstm
from wavecast.traces.step import Op


def op_of(layer: Layer, target: str = "forward") -> Op:
    """The op that the networks recognise as a layer (`wavecast.predictors.mlp.layer_of`).

    Args:
        layer: the layer.
        target: "forward" or "backward". Linear layers and batched products have no network for the
            backward pass; for them both targets return the forward op.
    """
    match layer:
        case Linear(bias, batch, inwards, out):
            added = (make.tensor(out),) if bias else ()
            operands = (*added, make.tensor(batch, inwards), make.tensor(inwards, out))
            name = "aten.addmm" if bias else "aten.mm"
            return Op(name, operands, (make.tensor(batch, out),), make.IEEE)
        case Bmm(batch, left, middle, right):
            return make.batched(batch, left, middle, right)
        case Conv2d():
            return _convolution(layer, target == "backward")
        case Lstm():
            return _lstm(layer, target == "backward")


def ops_of(layer: Layer, *, backward: bool) -> tuple[Op, ...]:
    """All ops that torch runs for one pass of a layer."""
    match layer:
        case Linear(bias, batch, inwards, out):
            if backward:
                return make.linear_backward(batch, inwards, out)
            return (make.linear(batch, inwards, out, bias=bias),)
        case Bmm(batch, left, middle, right):
            if backward:
                return make.batched_backward(batch, left, middle, right)
            return (make.batched(batch, left, middle, right),)
        case Conv2d():
            return (_convolution(layer, backward),)
        case Lstm():
            return (_lstm(layer, backward),)


def _convolution(layer: Conv2d, backward: bool) -> Op:
    return make.convolution(
        (layer.batch, layer.in_channels, layer.image, layer.image),
        (layer.out_channels, layer.in_channels, layer.kernel, layer.kernel),
        (layer.stride, layer.stride),
        (layer.padding, layer.padding),
        wanted=(True, True) if backward else None,
        bias=bool(layer.bias),
    )


def _lstm(layer: Lstm, backward: bool) -> Op:
    return make.recurrent(
        2,
        layer.sequence,
        layer.batch,
        layer.inputs,
        layer.hidden,
        layer.layers,
        bidirectional=bool(layer.bidirectional),
        bias=bool(layer.bias),
        wanted=(True, True) if backward else None,
    )
