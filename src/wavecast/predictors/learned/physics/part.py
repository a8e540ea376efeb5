"""A part of an op, and the parts that are ops of their own: copies and other passes over memory."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from wavecast import ops
from wavecast.predictors.learned.physics import passes
from wavecast.predictors.learned.physics.columns import Row
from wavecast.traces.step import Op, TensorSpec


class Part(NamedTuple):
    """A piece of an op's work for which one model predicts the time."""

    model: str
    """The name of the model, a key of `columns.ROW_TYPES`."""
    row: Row
    """The columns that the model needs."""


def copied(tensor: TensorSpec, strides: tuple[int, ...] | None) -> Part:
    """The copy of a tensor to another layout; to a contiguous one if strides is None."""
    return alone(Op("aten.clone", (tensor,), (replace(tensor, strides=strides),)))


def alone(op: Op) -> Part:
    """A pass over memory that torch makes within another op."""
    cost = ops.cost_of(op)
    assert cost is not None
    return Part("stream", passes.row_of(op, cost))
