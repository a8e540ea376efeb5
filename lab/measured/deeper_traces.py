"""Traces of deep models from traces of models with three equal blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace

TRACED = 3
"""Blocks of the traced model: the first, one that is repeated, and the last."""


@dataclass(frozen=True)
class _Stretch:
    """The calls of one block in one direction."""

    begin: int
    end: int


def deeper(trace: Trace, layers: int, blocks: str = "blocks") -> Trace:
    """The trace of the same model with more blocks, where the middle one of three is repeated.

    It is exact where blocks are equal. Of the memory, only what outlives the step is kept, and the
    gradients.

    Args:
        trace: the step of a model with three blocks.
        layers: how many blocks the other model has.
        blocks: the name of the list of blocks.
    """
    if layers == TRACED:
        return trace
    middle, last = f".{blocks}.1", f".{blocks}.{TRACED - 1}"
    forward = _stretch(trace, Phase.FORWARD, middle, last)
    backward = _stretch(trace, Phase.BACKWARD, middle, f".{blocks}.0")
    copies = range(2, layers - 1)

    def named(block: int, call: Call) -> Call:
        return replace(call, module=_renamed(call.module, middle, f".{blocks}.{block}"))

    def moved(call: Call) -> Call:
        return replace(call, module=_renamed(call.module, last, f".{blocks}.{layers - 1}"))

    trained = {a.module for a in trace.allocations if a.role is Role.OPTIMIZER_STATE}
    weights = [a for a in trace.allocations if a.role is Role.PARAMETER and a.module in trained]
    lengthen = _lengthened(weights, middle, layers)
    calls: list[Call] = []
    at: dict[int, list[int]] = {}
    for position, call in enumerate(trace):
        if position == forward.end:
            for block in copies:
                _copy(calls, at, trace, forward, partial(named, block))
        if position == backward.begin:
            for block in reversed(copies):
                _copy(calls, at, trace, backward, partial(named, block))
        at.setdefault(position, []).append(len(calls))
        later = call.phase in (Phase.OPTIMIZER, Phase.OTHER)
        calls.append(replace(call, op=lengthen(call.op)) if later else moved(call))
    memory = _memory(trace, calls, at, (middle, last), copies, layers, blocks)
    return replace(trace, calls=tuple(calls), allocations=memory)


def _stretch(trace: Trace, phase: Phase, block: str, following: str) -> _Stretch:
    """The calls from the first one of a block to the first one of the block that follows it."""
    places = [p for p, c in enumerate(trace) if c.phase is phase and _within(c.module, block)]
    after = [p for p, c in enumerate(trace) if c.phase is phase and _within(c.module, following)]
    return _Stretch(places[0], min(p for p in after if p > places[0]))


def _within(module: str, block: str) -> bool:
    return f"{module}.".find(f"{block}.") >= 0


def _renamed(module: str, old: str, new: str) -> str:
    return f"{module}.".replace(f"{old}.", f"{new}.")[:-1] if _within(module, old) else module


def _copy(
    calls: list[Call],
    at: dict[int, list[int]],
    trace: Trace,
    stretch: _Stretch,
    named: Callable[[Call], Call],
) -> None:
    for position in range(stretch.begin, stretch.end):
        at.setdefault(position, []).append(len(calls))
        calls.append(named(trace.calls[position]))


def _lengthened(weights: list[Allocation], middle: str, layers: int) -> Callable[[Op], Op]:
    """A function that lengthens the lists of an optimizer's op."""
    count = len(weights)
    inner = [i for i, weight in enumerate(weights) if _within(weight.module, middle)]
    first, end = inner[0], inner[-1] + 1
    total = count + (layers - TRACED) * len(inner)

    def lists(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        if len(tensors) < count:
            return tuple(replace(t, shape=(total,)) if t.shape == (count,) else t for t in tensors)
        longer: list[TensorSpec] = []
        listed = len(tensors) // count * count  # a scalar for all of them may follow
        for k in range(0, listed, count):
            own = tensors[k : k + count]
            longer += [*own[:end], *own[first:end] * (layers - TRACED), *own[end:]]
        return (*longer, *tensors[listed:])

    return lambda op: Op(op.name, lists(op.inputs), lists(op.outputs), op.attrs)


def _memory(
    trace: Trace,
    calls: list[Call],
    at: dict[int, list[int]],
    names: tuple[str, str],
    copies: range,
    layers: int,
    blocks: str,
) -> tuple[Allocation, ...]:
    middle, last = names
    memory: list[Allocation] = []
    held: list[Allocation] = []
    for allocation in trace.allocations:
        if allocation.born is not None:
            if allocation.role is Role.GRADIENT:
                memory += [
                    replace(allocation, born=p, freed=None, module=calls[p].module)
                    for p in at[allocation.born]
                ]
            continue
        if allocation.freed is not None:
            continue
        if held and not _within(allocation.module, middle):
            memory += _repeated(held, middle, copies, blocks)
            held = []
        if _within(allocation.module, middle):
            held.append(allocation)
        module = _renamed(allocation.module, last, f".{blocks}.{layers - 1}")
        memory.append(replace(allocation, module=module))
    return (*memory, *_repeated(held, middle, copies, blocks))


def _repeated(held: list[Allocation], middle: str, copies: range, blocks: str) -> list[Allocation]:
    return [
        replace(a, module=_renamed(a.module, middle, f".{blocks}.{block}"))
        for block in copies
        for a in held
    ]
