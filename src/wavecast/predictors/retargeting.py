"""A traced step with the attention kernels of another GPU family, chosen again.

torch computes attention by one of several kernels, and the choice depends on the GPU. In a trace,
a kernel is one op forward and one op backward, so one kernel can take another's place. Plain
attention is several ops, and some kernels lay out their results differently, so that other ops
follow. Such steps must be traced again; a note says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device, Family, family, family_of
from wavecast.ops import registry
from wavecast.predictors.attention_kernels import (
    BACKENDS,
    EFFICIENT,
    FEWER_KERNELS,
    FLASH,
    MATH,
    AttentionRun,
    Query,
    attention_in,
    backward_op,
    choose,
    expansion,
    forward_op,
    has_layout_of,
    has_own,
    mask_of,
    operands,
    output_of,
)
from wavecast.results import Shown
from wavecast.traces.editing import Edit, compacted, with_op
from wavecast.traces.graphs import compiled_gpu, has_compiled_kernels
from wavecast.traces.kept import Same
from wavecast.traces.step import Call, Op, TensorSpec, Trace, Value

_PADDING_CALLS = 3
"""Query, key and value of a head size that flash attention does not take are padded before it."""
_CHOSEN_BELOW = ("aten._flash_attention", "aten._efficient_attention", "aten._cudnn_attention")
"""Kernels under the names that nested tensors use. They hold no facts for another choice."""


_COMPILED = (
    "XLA compiled the step for {}, and may write other kernels for this GPU; time and memory may "
    "differ, so trace the step for this GPU (gpu= or gpus= of wavecast.trace_jax)"
)


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
    if trace.capability is None or trace.measurement is not None or made_for(trace, gpu):
        return Retargeted(trace)
    if not depends_on_family(trace):
        return Retargeted(trace)
    if (compiled := compiled_gpu(trace)) is not None:
        return Retargeted(trace, (_COMPILED.format(compiled),))
    return _retarget(Same(trace), family(gpu))


def with_kernel(trace: Trace, backend: str) -> Retargeted:
    """The trace with one kernel for all fused attention: a framework's own, not torch's choice.

    Args:
        trace: a trace that was made for a GPU, not measured on one.
        backend: one of `attention_kernels.BACKENDS`, but not several ops ("math").
    """
    if trace.capability is None:
        return Retargeted(trace)
    try:
        return Retargeted(_Retarget(trace, family_of(trace.capability), backend).trace())
    except _Inexact as reason:
        return Retargeted(trace, (str(reason),))


def made_for(trace: Trace, gpu: Device) -> bool:
    """Whether a step was traced for the family of a GPU; for the GPU itself if XLA compiled it."""
    compiled = compiled_gpu(trace)
    if compiled is not None:
        return compiled == gpu.id
    return trace.capability is not None and family_of(trace.capability) == family(gpu)


def serves(trace: Trace, gpu: Device) -> bool:
    """Whether a trace is exact for a GPU, with its attention kernels chosen again where needed."""
    if not depends_on_family(trace) or made_for(trace, gpu):
        return True
    fixed = trace.asks_capability or has_compiled_kernels(trace)
    return not fixed and not retarget(trace, gpu).notes


def depends_on_family(trace: Trace) -> bool:
    """Whether a step depends on the GPU: it has attention, is compiled, or asks for the GPU."""
    if trace.asks_capability or has_compiled_kernels(trace):
        return True
    # A GPU without a kernel for attention runs several ops instead, `_safe_softmax` among them.
    return any("attention" in op.name or _is_plain(op) for op in trace.counts)


@lru_cache(maxsize=32)
def _retarget(same: Same[Trace], target: Family) -> Retargeted:
    trace = same.value
    traced_for = trace.capability or target
    try:
        stays_plain = target in FEWER_KERNELS.get(family_of(traced_for), ())
        if any(_is_plain(op) for op in trace.counts) and not stays_plain:
            raise _Inexact("its attention is several ops, where this GPU may run one kernel")
        if any(op.base.startswith(_CHOSEN_BELOW) for op in trace.counts):
            raise _Inexact("it calls kernels below torch's choice, which this GPU may not run")
        return Retargeted(_Retarget(trace, target).trace())
    except _Inexact as reason:
        note = (
            f"the trace was made for compute capability {traced_for[0]}.{traced_for[1]}: {reason}; "
            "time and memory may differ, so trace the step for this GPU (gpu= or gpus= of "
            "wavecast.trace)"
        )
        return Retargeted(trace, (note,))


def _is_plain(op: Op) -> bool:
    return op.base == "aten._safe_softmax"


class _Retarget:
    """The replacement of the kernels of a trace by those of another GPU family."""

    def __init__(self, trace: Trace, target: Family, backend: str | None = None) -> None:
        self._trace = trace
        self._target = target
        self._backend = backend
        self._made_for = trace.capability or target
        self._attentions = [attention_in(call.op) for call in trace]
        self._ends = _ends(trace, self._attentions)
        self._born: dict[int, list[int]] = defaultdict(list)
        for number, allocation in enumerate(trace.allocations):
            if allocation.born is not None:
                self._born[allocation.born].append(number)
        self._edit = Edit(trace)
        self._memory = [[number] for number in range(len(trace.allocations))]
        self._wide: dict[int, int] = {}
        self._is_changed = False
        self._masks: dict[TensorSpec | int, tuple[TensorSpec, int | None]] = {}

    def trace(self) -> Trace:
        """The trace with all kernels replaced; raises _Inexact if one cannot be."""
        for position, attention in enumerate(self._attentions):
            if attention is not None:
                try:
                    backend = self._choice(position, attention)
                    if backend != attention.backend:
                        self._replace(position, attention, backend)
                except registry.ERRORS as error:  # a hand-made op
                    name = self._trace.calls[position].op.name
                    raise _Inexact(f"its {name} is not as torch calls it") from error
        if not self._is_changed:
            return self._trace  # the same object, so that what was computed for it is kept
        self._edit.keep_memory(number for memory in self._memory for number in memory)
        return replace(compacted(self._edit.trace()), capability=self._target)

    def _choice(self, position: int, attention: AttentionRun) -> str:
        """The backend that the family chooses for an attention, with the step's own switches."""
        facts = attention.facts
        if self._backend is not None:
            if not has_own(self._backend, facts, self._target):
                raise _Inexact(
                    f"{self._backend} has no kernel for heads of {facts.head_dim} and "
                    f"{facts.value_dim} in {facts.dtype} on this GPU"
                )
            return self._backend
        chosen = choose(facts, self._target, _enabled(attention, facts, self._made_for))
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
        mask, mask_value = self._mask(position, old, backend)
        attention = replace(old, backend=backend, mask=mask)
        make = backward_op if old.is_backward else forward_op
        op = make(attention, self._ends[position])
        if self._backend is not None:  # it reads and writes tensors as they lie
            same = 3 if old.is_backward else 1
            op = replace(op, outputs=(*call.op.outputs[:same], *op.outputs[same:]))
        elif not has_layout_of(op, call.op):
            raise _Inexact(
                f"this GPU's kernel ({backend}) lays out its results in another order than the "
                f"traced one ({old.backend})"
            )
        self._is_changed = True
        reads = operands(call.reads, old, backend, mask_value) if call.reads else None
        if old.is_backward:
            results = self._memory_of_results(position)
            unread = any(self._trace.allocations[n].freed == position + 1 for n in results)
            # The efficient kernel leaves out gradients that nobody reads, the others do not.
            if EFFICIENT in (backend, old.backend) and (unread or old.is_partial) and results:
                raise _Inexact("its attention has no gradient for some of query, key and value")
            self._edit.replace_op(position, op, reads)
            return
        kept = call.writes[: len(op.outputs)]
        for value, spec in zip(kept, op.outputs, strict=False):
            self._edit.reshape(value, spec)
        memory = self._results(position, op)
        added = [
            self._edit.add_value(Value(spec, number))
            for spec, number in zip(op.outputs[len(kept) :], memory[len(kept) :], strict=False)
            if call.writes
        ]
        self._edit.replace_op(position, op, reads, (*kept, *added))

    def _memory_of_results(self, position: int) -> list[int]:
        """The allocations of a call's results. Empty if the step's memory was not recorded."""
        results, outputs = self._born[position], self._trace.calls[position].op.outputs
        sizes = [self._trace.allocations[number].nbytes for number in results]
        if self._trace.allocations and sizes != [spec.nbytes for spec in outputs]:
            raise _Inexact("the memory of its attention was not recorded as one tensor each")
        return results

    def _results(self, position: int, op: Op) -> list[int]:
        """The allocations of a new kernel's results."""
        memory = self._memory_of_results(position)
        if not self._trace.allocations:
            return memory
        for number, spec in zip(memory, op.outputs, strict=False):
            self._edit.resize(number, spec.nbytes)
        for number in memory[len(op.outputs) :]:
            self._memory[number] = []
        role = self._trace.allocations[memory[0]].role
        added = [
            self._edit.allocate(spec.nbytes, role, position, position + 1)
            for spec in op.outputs[len(memory) :]
        ]
        self._memory[memory[-1]] += added
        return memory + added

    def _mask(
        self, position: int, old: AttentionRun, backend: str
    ) -> tuple[TensorSpec | None, int | None]:
        """The mask as another kernel takes it, and its value.

        The efficient kernel wants it in its full shape.
        """
        call = self._trace.calls[position]
        value = mask_of(call.reads, old) if call.reads else None
        if old.mask is None or EFFICIENT not in (backend, old.backend):
            return old.mask, value
        key = old.mask if value is None else value
        if backend == EFFICIENT:
            widened = expansion(old.mask, old.scores_shape)
            if not old.is_backward:
                self._masks[key] = widened.outputs[0], self._expand(position, widened, value)
            return self._masks.get(key, (widened.outputs[0], value))
        if old.is_backward:
            if key not in self._masks:
                raise _Inexact("the mask of its attention is not known in its own shape")
            return self._masks[key]
        before = self._trace.calls[position - 1] if position else None
        if before is None or before.op.base != "aten.expand" or before.op.outputs != (old.mask,):
            raise _Inexact("the mask of its attention is not known in its own shape")
        narrow = before.op.inputs[0], before.reads[0] if before.reads else None
        if self._masks.setdefault(key, narrow) != narrow:
            raise _Inexact("its attention has masks of several shapes")
        self._edit.remove([position - 1])
        return narrow

    def _expand(self, position: int, op: Op, mask: int | None) -> int | None:
        """Insert the expansion of a mask before a call, and return the value of its result."""
        call = self._trace.calls[position]
        if mask is None:
            self._edit.insert(position, [with_op(call, op, (), ())], after_frees=True)
            return None
        if mask not in self._wide:
            place = self._trace.values[mask].allocation
            is_wide = op.inputs == op.outputs
            view = Value(op.outputs[0], place, mask)
            self._wide[mask] = mask if is_wide else self._edit.add_value(view)
        expand = with_op(call, op, (mask,), (self._wide[mask],))
        self._edit.insert(position, [expand], after_frees=True)
        return self._wide[mask]


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

    def key(call: Call, attention: AttentionRun) -> tuple[object, ...]:
        if call.reads:  # a backward call reads the output of its forward call
            return (output_of(call, attention),)
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


# The traces of one step for several GPU families.


@dataclass(frozen=True, repr=False)
class FamilyTraces(Shown):
    """The traces of one step for several GPU families; `wavecast.trace` makes them.

    GPU families have different kernels for attention, and code may ask for the compute capability.
    A trace stands for all families in which its kernels can be chosen again.

    ```python
    traces = wavecast.trace(make_step, gpus=["h100-sxm-80gb", "t4"])
    wavecast.predict(traces, "t4").seconds
    traces.on(wavecast.device("t4")).save("step-t4.json.gz")
    ```
    """

    traces: tuple[Trace, ...]

    def __post_init__(self) -> None:
        if not self.traces:
            raise InvalidInput("FamilyTraces has no traces; name at least one GPU (gpus=[...])")

    def on(self, gpu: Device | None) -> Trace:
        """The trace with the kernels of a GPU's family; the first as it is if none is exact."""
        if gpu is None:
            return self.traces[0]
        own = [trace for trace in self.traces if made_for(trace, gpu)]
        exact = own or [trace for trace in self.traces if serves(trace, gpu)]
        return retarget((exact or self.traces)[0], gpu).trace


def trace_on(trace: Trace | FamilyTraces, gpu: Device | None) -> Trace:
    """The trace for a GPU: a single one as it is, else that of the GPU's family."""
    return trace.on(gpu) if isinstance(trace, FamilyTraces) else trace
