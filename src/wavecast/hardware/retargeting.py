"""A traced step with the attention kernels of another GPU family, chosen again.

torch computes attention by one of several kernels, and the choice depends on the GPU. In a trace,
a kernel is one op forward and one op backward, so one kernel can take another's place. Plain
attention is several ops, and some kernels lay out their results differently, so that other ops
follow. Such steps must be traced again; a note says so.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from wavecast.hardware.attention_kernels import BACKENDS, EFFICIENT, FLASH, MATH, Query, choose
from wavecast.hardware.attention_ops import (
    AttentionRun,
    attention_in,
    backward_op,
    expansion,
    forward_op,
    has_layout_of,
)
from wavecast.hardware.device import Device
from wavecast.hardware.families import Family, family, family_of
from wavecast.ops import reading
from wavecast.traces.step import Allocation, Call, Op, TensorSpec, Trace

_PADDING_CALLS = 3
"""Query, key and value of a head size that flash attention does not take are padded before it."""
_CHOSEN_BELOW = ("aten._flash_attention", "aten._efficient_attention", "aten._cudnn_attention")
"""Kernels under the names that nested tensors use. They hold no facts for another choice."""


class Retargeted(NamedTuple):
    """A trace for one GPU."""

    trace: Trace
    """With the kernels of the GPU's family; as it was, if they could not be chosen again."""
    notes: tuple[str, ...] = ()
    """Why they could not."""


class _Inexact(Exception):
    """A kernel cannot take another's place: the ops around it would change."""


def retarget(trace: Trace, gpu: Device) -> Retargeted:
    """The trace with the attention kernels that a GPU chooses.

    A measured trace stays as it is: scaling accounts for its kernels.
    """
    made_for = trace.capability
    if made_for is None or trace.measurement is not None or family_of(made_for) == family(gpu):
        return Retargeted(trace)
    if not depends_on_family(trace):
        return Retargeted(trace)
    return _retarget(_Same(trace), family(gpu))


def depends_on_family(trace: Trace) -> bool:
    """Whether a step depends on the GPU: it has attention, is compiled, or asks for the GPU."""
    if trace.asks_capability or is_compiled(trace):
        return True
    # A GPU without a kernel for attention runs several ops instead, `_safe_softmax` among them.
    return any("attention" in op.name or _is_plain(op) for op in trace.counts)


def is_compiled(trace: Trace) -> bool:
    """Whether a step has kernels that torch's compiler made, for one GPU."""
    return any(op.name.startswith("inductor.") for op in trace.counts)


class _Same:
    """A trace that equals only itself, because hashing all its calls would take long."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.trace is self.trace

    def __hash__(self) -> int:
        return id(self.trace)


@lru_cache(maxsize=32)
def _retarget(same: _Same, wanted: Family) -> Retargeted:
    trace = same.trace
    made_for = trace.capability or wanted
    try:
        if any(_is_plain(op) for op in trace.counts):
            raise _Inexact("its attention is several ops, where this GPU may run one kernel")
        if any(op.base.startswith(_CHOSEN_BELOW) for op in trace.counts):
            raise _Inexact("it calls kernels below torch's choice, which this GPU may not run")
        return Retargeted(_Edit(trace, wanted).edited())
    except _Inexact as reason:
        note = (
            f"the trace was made for compute capability {made_for[0]}.{made_for[1]}: {reason}; "
            "time and memory may differ, so trace the step for this GPU (gpu= or gpus= of "
            "wavecast.trace)"
        )
        return Retargeted(trace, (note,))


def _is_plain(op: Op) -> bool:
    return op.base == "aten._safe_softmax"


class _Edit:
    """The replacement of the kernels of a trace by those of another GPU family."""

    def __init__(self, trace: Trace, wanted: Family) -> None:
        self._trace = trace
        self._wanted = wanted
        self._made_for = trace.capability or wanted
        self._attentions = [attention_in(call.op) for call in trace]
        self._ends = _ends(trace, self._attentions)
        self._born: dict[int, list[Allocation]] = {}
        for allocation in trace.allocations:
            if allocation.born is not None and self._at(allocation.born) is not None:
                self._born.setdefault(allocation.born, []).append(allocation)
        self._calls: dict[int, Call] = {}
        self._added: dict[int, Call] = {}
        self._removed: set[int] = set()
        self._results: dict[int, list[Allocation]] = {}
        self._masks: dict[TensorSpec, TensorSpec] = {}

    def edited(self) -> Trace:
        """The trace with all kernels replaced; raises _Inexact if one cannot be."""
        for position, attention in enumerate(self._attentions):
            if attention is not None:
                try:
                    backend = self._choice(position, attention)
                    if backend != attention.backend:
                        self._replace(position, attention, backend)
                except reading.ERRORS as error:  # a hand-made op
                    name = self._trace.calls[position].op.name
                    raise _Inexact(f"its {name} is not as torch calls it") from error
        if not self._calls:
            return self._trace  # the same object, so that what was computed for it is kept
        calls = []
        for position, call in enumerate(self._trace):
            calls += [self._added[position]] if position in self._added else []
            calls += [] if position in self._removed else [self._calls.get(position, call)]
        return replace(
            self._trace,
            calls=tuple(calls),
            allocations=self._allocations(),
            capability=self._wanted,
        )

    def _at(self, position: int) -> AttentionRun | None:
        return self._attentions[position] if position < len(self._attentions) else None

    def _choice(self, position: int, attention: AttentionRun) -> str:
        """The backend that the family chooses for an attention, with the step's own switches."""
        facts = attention.facts
        chosen = choose(facts, self._wanted, _enabled(attention, facts, self._made_for))
        if chosen == attention.backend:
            return chosen
        if chosen == MATH:
            raise _Inexact(
                f"its attention is one kernel ({attention.backend}), where this GPU runs several "
                "ops (math)"
            )
        before = self._trace.calls[max(0, position - _PADDING_CALLS) : position]
        padded = any(call.op.base == "aten.constant_pad_nd" for call in before)
        if (FLASH in (chosen, attention.backend)) and (padded or facts.head_dim % 8):
            raise _Inexact(
                f"flash attention pads a head, which this GPU's kernel ({chosen}) does not"
                if attention.backend == FLASH
                else f"this GPU's kernel (flash) pads a head of {facts.head_dim}"
            )
        return chosen

    def _replace(self, position: int, old: AttentionRun, backend: str) -> None:
        """Replace the kernel of one call."""
        call = self._trace.calls[position]
        attention = replace(old, backend=backend, mask=self._mask(position, old, backend))
        make = backward_op if old.is_backward else forward_op
        op = make(attention, self._ends[position])
        if not has_layout_of(op, call.op):
            raise _Inexact(
                f"this GPU's kernel ({backend}) lays out its results in another order than the "
                f"traced one ({old.backend})"
            )
        self._calls[position] = replace(call, op=op)
        if not self._trace.allocations:
            return
        results = self._born.get(position, [])
        if [result.nbytes for result in results] != [spec.nbytes for spec in call.op.outputs]:
            raise _Inexact("the memory of its attention was not recorded as one tensor each")
        if old.is_backward:
            if any(result.freed == position + 1 for result in results) or old.is_partial:
                raise _Inexact("its attention has no gradient for some of query, key and value")
            return
        unused = replace(results[0], freed=position + 1, nbytes=0)
        paired = [*results, unused][: len(op.outputs)]
        self._results[position] = [
            replace(result, nbytes=spec.nbytes)
            for result, spec in zip(paired, op.outputs, strict=True)
        ]

    def _mask(self, position: int, old: AttentionRun, backend: str) -> TensorSpec | None:
        """The mask as another kernel takes it: the efficient one wants it in its full shape."""
        if old.mask is None or EFFICIENT not in (backend, old.backend):
            return old.mask
        if backend == EFFICIENT:
            widened = expansion(old.mask, old.scores_shape)
            if not old.is_backward:
                self._added[position] = replace(self._trace.calls[position], op=widened)
            return widened.outputs[0]
        if old.is_backward:
            if old.mask not in self._masks:
                raise _Inexact("the mask of its attention is not known in its own shape")
            return self._masks[old.mask]
        before = self._trace.calls[position - 1].op if position else None
        if before is None or before.base != "aten.expand" or before.outputs != (old.mask,):
            raise _Inexact("the mask of its attention is not known in its own shape")
        if self._masks.setdefault(old.mask, before.inputs[0]) != before.inputs[0]:
            raise _Inexact("its attention has masks of several shapes")
        self._removed.add(position - 1)
        return before.inputs[0]

    def _allocations(self) -> tuple[Allocation, ...]:
        """All allocations, with the results of the new kernels and in the new positions."""
        added, removed = sorted(self._added), sorted(self._removed)
        edited: list[Allocation] = []
        done: set[int] = set()
        for allocation in self._trace.allocations:
            born = allocation.born
            if born is None or born not in self._results:
                edited.append(allocation)
            elif born not in done:
                done.add(born)
                edited += self._results[born]
        return tuple(_moved(allocation, added, removed) for allocation in edited)


def _moved(allocation: Allocation, added: Sequence[int], removed: Sequence[int]) -> Allocation:
    """An allocation at its new position, when calls before it were added and removed."""
    born, freed = allocation.born, allocation.freed
    if born is not None:
        born += bisect.bisect_right(added, born) - bisect.bisect_left(removed, born)
    if freed is not None:
        freed += bisect.bisect_left(added, freed) - bisect.bisect_left(removed, freed)
    return replace(allocation, born=born, freed=freed)


def _enabled(attention: AttentionRun, facts: Query, made_for: Family) -> frozenset[str]:
    """The backends that the step had not switched off, as far as the traced choice shows.

    Backends that the GPU of the trace would have preferred were switched off.
    """
    enabled = BACKENDS
    while (choice := choose(facts, made_for, enabled)) != attention.backend:
        if choice == MATH:
            return frozenset((attention.backend, MATH))
        enabled -= {choice}
    return enabled


def _ends(trace: Trace, attentions: Sequence[AttentionRun | None]) -> list[bool]:
    """Whether the gradient of each attention is computed, by its position; False for other calls.

    Raises:
        _Inexact: some of several equal ones have a gradient, and the trace does not say which.
    """

    def key(call: Call, attention: AttentionRun) -> tuple[str, TensorSpec, TensorSpec, TensorSpec]:
        return call.module, attention.query, attention.key, attention.value

    forward: Counter[object] = Counter()
    backward: Counter[object] = Counter()
    for call, attention in zip(trace, attentions, strict=True):
        if attention is not None:
            (backward if attention.is_backward else forward)[key(call, attention)] += 1
    ends = []
    for call, attention in zip(trace, attentions, strict=True):
        if attention is None:
            ends.append(False)
        elif attention.has_gradient is not None:
            ends.append(attention.has_gradient)
        else:
            runs = forward[key(call, attention)], backward[key(call, attention)]
            if 0 < runs[1] < runs[0]:
                raise _Inexact("only some of its equal attentions have a gradient")
            ends.append(runs[1] > 0)
    return ends
