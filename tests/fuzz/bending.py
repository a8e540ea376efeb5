"""Valid traces in which single fields are bent: plausible to a reader of files, odd to a formula.

A bent trace still loads: what calls read and write has the shape that their ops say, and memory is
freed after it was allocated. So the functions that take traces are reached, not only the reader.
Every function takes the random numbers that it uses, so that an input can be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from fuzz import forms
from fuzz.mutation import HOSTILE, TEXTS, json_text

from wavecast.traces.encoding import decode, encode
from wavecast.traces.step import (
    DTYPE_BYTES,
    Allocation,
    Call,
    Kernel,
    Measurement,
    Op,
    Phase,
    Role,
    TensorSpec,
    Trace,
    Value,
)

Bend = Callable[[Trace, Random], Trace]

_DIMENSIONS = (0, 0, 1, 1, 2, 3, 7, 64, 1000, 1 << 20, 1 << 31, 1 << 40, 1 << 48)
_COUNTS = (0, 1, 2, 3, 1023, 1 << 31, 1 << 40, 1 << 62)
_TIMES_S = (0.0, 5e-324, 1e-300, 1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e9, 1e100, 1e300, 1.7e308)
_ODD = (*TEXTS[9:13], *HOSTILE)
_NAMES = ("", ".", "a", "a.b.c", "..", "net.0", "layers.1.attention", *_ODD, "x" * 300)
_ATTRIBUTE_VALUES: tuple[Any, ...] = (
    *(0, 1, 2, -1, 7, 1 << 40, -(1 << 62), True, False, 0.5, 0.0, -1.0, 1e300, "", "mean", "a"),
    *((), (0,), (1,), (1, 1), (0, 0), (2, 2, 2), (-1,), (1 << 40,), (True, False), (0.5,)),
)


def bent(trace: Trace, random: Random) -> Trace:
    """A trace with one to three fields bent; it can be written and read."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        trace = random.choice(BENDS)(trace, random)
    return trace


def bent_file(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A trace file with one to three fields bent, and a right checksum."""
    return written(bent(_read(data), random))


def written(trace: Trace) -> bytes:
    """The trace as the content of a file."""
    return forms.signed(json_text(encode(trace)))


_KNOWN: dict[bytes, Trace] = {}


def _read(data: bytes) -> Trace:
    if data not in _KNOWN:
        document = forms.document(data)
        _KNOWN[data] = decode(document["trace"], document["version"])
    return _KNOWN[data]


def _bend_tensor(trace: Trace, random: Random) -> Trace:
    """Another spec of one tensor, in all calls that use it."""
    if not trace.values:
        return _bend_op_tensor(trace, random)
    number = random.randrange(len(trace.values))
    value = trace.values[number]
    spec = _other_spec(value.spec, random)
    values = _replaced(trace.values, number, replace(value, spec=spec))
    calls = [_with_values(call, values, number) for call in trace.calls]
    return replace(trace, calls=tuple(calls), values=values)


def _with_values(call: Call, values: Sequence[Value], changed: int) -> Call:
    if changed not in call.reads and changed not in call.writes:
        return call
    op = Op(
        call.op.name,
        tuple(values[number].spec for number in call.reads),
        tuple(values[number].spec for number in call.writes),
        call.op.attrs,
    )
    return replace(call, op=op)


def _bend_op_tensor(trace: Trace, random: Random) -> Trace:
    """Another spec of one argument of one call, whose values are then not known."""

    def change(call: Call) -> Call:
        inputs, outputs = list(call.op.inputs), list(call.op.outputs)
        some = random.choice([side for side in (inputs, outputs) if side] or [inputs])
        choice = random.random()
        if some and choice < 0.7:
            place = random.randrange(len(some))
            some[place] = _other_spec(some[place], random)
        elif some and choice < 0.85:
            del some[random.randrange(len(some))]
        else:
            some.append(_other_spec(TensorSpec((2, 3), "float32"), random))
        op = Op(call.op.name, tuple(inputs), tuple(outputs), call.op.attrs)
        return replace(call, op=op, reads=(), writes=())

    return _with_call(trace, random, change)


def _other_spec(spec: TensorSpec, random: Random) -> TensorSpec:
    choice = random.randrange(10)
    if choice == 0:
        return replace(spec, dtype=random.choice(sorted(DTYPE_BYTES)))
    if choice == 1:
        return replace(spec, device="cpu" if spec.device == "cuda" else "cuda")
    if choice == 2:
        strides = tuple(random.choice(_DIMENSIONS) for _ in spec.shape)
        return replace(spec, strides=random.choice((None, strides)))
    shape = list(spec.shape)
    if choice in (3, 4) or not shape:
        place = random.randrange(len(shape) + 1)
        if choice == 3 and shape:
            del shape[place - 1]
        else:
            shape.insert(place, random.choice(_DIMENSIONS))
        return replace(spec, shape=tuple(shape), strides=None)
    place = random.randrange(len(shape))
    near = (shape[place] + 1, max(shape[place] - 1, 0), 2 * shape[place], shape[place] // 2)
    shape[place] = random.choice((*_DIMENSIONS, *near, *near))
    return replace(spec, shape=tuple(shape))


def _bend_name(trace: Trace, random: Random) -> Trace:
    """Another op with the tensors of one call."""

    def change(call: Call) -> Call:
        names = random.choice((forms.op_names(), [other.op.name for other in trace.calls]))
        name = random.choice((*names[:1], *names))
        return replace(call, op=Op(name, call.op.inputs, call.op.outputs, call.op.attrs))

    return _with_call(trace, random, change)


def _bend_attribute(trace: Trace, random: Random) -> Trace:
    """Another attribute of one call: one value changed, one removed, or one added."""

    def change(call: Call) -> Call:
        attributes = list(call.op.attrs)
        place = random.randrange(len(attributes) + 1)
        value = random.choice(_ATTRIBUTE_VALUES)
        if place == len(attributes):
            attributes.append((random.choice(forms.ATTRIBUTES), value))
        elif random.random() < 0.25:
            del attributes[place]
        else:
            attributes[place] = (attributes[place][0], value)
        return replace(
            call, op=Op(call.op.name, call.op.inputs, call.op.outputs, tuple(attributes))
        )

    return _with_call(trace, random, change)


def _bend_call(trace: Trace, random: Random) -> Trace:
    """Another phase, module, stream, wait, host time, line or graph of one call."""
    changes: dict[str, Any] = {
        "phase": random.choice(list(Phase)),
        "module": random.choice((*_NAMES, random.choice(trace.calls).module))
        if trace.calls
        else "",
        "stream": random.choice(_COUNTS),
        "syncs": random.random() < 0.5,
        "host_s": random.choice((None, *_TIMES_S)),
        "line": random.choice(("", "a.py:1", *_ODD)),
        "graph": random.choice((None, 0, 1, 1 << 62)),
    }
    name = random.choice(list(changes))
    return _with_call(trace, random, lambda call: replace(call, **{name: changes[name]}))


def _bend_all_calls(trace: Trace, random: Random) -> Trace:
    """One field of all calls: a step without modules, of one phase, or on one other stream."""
    changes: dict[str, Any] = {
        "phase": random.choice(list(Phase)),
        "module": random.choice(_NAMES),
        "stream": random.choice(_COUNTS),
        "graph": random.choice((None, 0)),
        "syncs": True,
    }
    name = random.choice(list(changes))
    calls = (replace(call, **{name: changes[name]}) for call in trace.calls)
    return replace(trace, calls=tuple(calls))


def _bend_order(trace: Trace, random: Random) -> Trace:
    """Calls that are left out, repeated or swapped. Memory keeps its place among the calls."""
    calls = list(trace.calls)
    if not calls:
        return trace
    place, other = random.randrange(len(calls)), random.randrange(len(calls))
    choice = random.randrange(5)
    if choice == 0:
        del calls[place]
    elif choice == 1:
        calls.insert(other, calls[place])
    elif choice == 2:
        calls[place], calls[other] = calls[other], calls[place]
    elif choice == 3:
        del calls[min(place, other) : max(place, other)]
    else:
        calls[other:other] = calls[min(place, other) : max(place, other)][:50]
    count = len(calls)
    memory = tuple(
        replace(
            one,
            born=None if one.born is None else min(one.born, count),
            freed=None if one.freed is None else min(one.freed, count),
        )
        for one in trace.allocations
    )
    return replace(trace, calls=tuple(calls), allocations=memory)


def _bend_kernels(trace: Trace, random: Random) -> Trace:
    """Other kernels of one call: none, one that is bent, or the same one twice."""

    def change(call: Call) -> Call:
        kernels = list(call.kernels) or [Kernel("k", 1e-6, start_s=0.0)]
        place = random.randrange(len(kernels))
        choice = random.randrange(4)
        if choice == 0:
            kernels = []
        elif choice == 1:
            kernels.append(kernels[place])
        else:
            kernels[place] = _other_kernel(kernels[place], random)
        return replace(call, kernels=tuple(kernels))

    return _with_call(trace, random, change)


def _other_kernel(kernel: Kernel, random: Random) -> Kernel:
    triple = random.choice((None, tuple(random.choice(_COUNTS) for _ in range(3))))
    changes: dict[str, Any] = {
        "name": random.choice(("", "Memcpy HtoD", "ncclKernel", "volta_sgemm", *_ODD)),
        "seconds": random.choice(_TIMES_S),
        "grid": triple,
        "block": triple,
        "registers": random.choice((None, *_COUNTS)),
        "shared_bytes": random.choice((None, *_COUNTS)),
        "stream": random.choice(_COUNTS),
        "start_s": random.choice((None, *_TIMES_S)),
        "flops": random.choice((None, *_TIMES_S)),
        "dram_bytes": random.choice((None, *_TIMES_S)),
    }
    name = random.choice(list(changes))
    return replace(kernel, **{name: changes[name]})


def _bend_memory(trace: Trace, random: Random) -> Trace:
    """Another size, lifetime, role or module of one allocation, or of all of them."""
    if not trace.allocations:
        return trace
    places = [random.randrange(len(trace.allocations))]
    if random.random() < 0.15:
        places = list(range(len(trace.allocations)))
    count, choice = len(trace.calls), random.randrange(4)
    nbytes, role = random.choice(_COUNTS), random.choice(list(Role))
    module, moments = random.choice(_NAMES), sorted(random.randrange(count + 1) for _ in "ab")
    before, after = random.random() < 0.3, random.random() < 0.3

    def change(one: Allocation) -> Allocation:
        if choice == 0:
            return replace(one, nbytes=nbytes)
        if choice == 1:
            return replace(one, role=role)
        if choice == 2:
            return replace(one, module=module)
        born, freed = None if before else moments[0], None if after else moments[1]
        return replace(one, born=born, freed=freed)

    memory = list(trace.allocations)
    for place in places:
        memory[place] = change(memory[place])
    return replace(trace, allocations=tuple(memory))


def _bend_value(trace: Trace, random: Random) -> Trace:
    """Another memory, base, parameter or gradient of one tensor."""
    if not trace.values:
        return trace
    number, choice = random.randrange(len(trace.values)), random.randrange(4)
    value = trace.values[number]
    named = [other.parameter for other in trace.values if other.parameter]
    name = random.choice((*_NAMES, *named))
    if choice == 0:
        place = random.randrange(len(trace.allocations)) if trace.allocations else None
        value = replace(value, allocation=random.choice((None, place)))
    elif choice == 1:
        # A base comes before its views, so that none is a view of itself.
        value = replace(value, view_of=random.randrange(number) if number else None)
    elif choice == 2:
        value = replace(value, parameter=name)
    else:
        value = replace(value, gradient_of=name)
    return replace(trace, values=_replaced(trace.values, number, value))


def _bend_trace(trace: Trace, random: Random) -> Trace:
    """Another field of the trace itself, or of its measurement."""
    changes: dict[str, Any] = {
        "samples": random.choice((None, 1, 2, 3, 1 << 40, 1 << 62)),
        "unit": random.choice(("", "tokens", "samples", *_ODD, "x" * 300)),
        "framework": random.choice(("", "torch", "torch 2.11.0", "jax 0.5", TEXTS[11])),
        "capability": random.choice((None, (0, 0), (3, 5), (7, 5), (9, 0), (99, 99))),
        "notes": random.choice(((), ("",), (TEXTS[11],), ("x" * 300,) * 3)),
        "asks_capability": random.random() < 0.5,
        "allocations": (),
        "values": (),
        "measurement": _other_measurement(trace.measurement, random),
    }
    name = random.choice(list(changes))
    if name in ("values", "allocations"):
        # Neither has a meaning without the other one.
        calls = tuple(replace(call, reads=(), writes=()) for call in trace.calls)
        trace = replace(trace, calls=calls, values=())
    return replace(trace, **{name: changes[name]})


def _other_measurement(whole: Measurement | None, random: Random) -> Measurement | None:
    if whole is None or random.random() < 0.1:
        return random.choice((None, Measurement("Tesla T4", 1e-3)))
    names = ("seconds", "gpu_s", "host_s", "recorded_s", "cpu_s")
    changes: dict[str, Any] = {name: random.choice((None, *_TIMES_S)) for name in names}
    changes["gpu"] = random.choice(("", "Tesla V100-SXM2-16GB", "NVIDIA H100", *_ODD))
    changes["cores"] = random.choice((None, 1, 1 << 62))
    changes["repeats"] = random.choice((1, 1 << 62))
    name = random.choice(list(changes))
    return replace(whole, **{name: changes[name]})


def _with_call(trace: Trace, random: Random, change: Callable[[Call], Call]) -> Trace:
    """The trace with one call changed."""
    if not trace.calls:
        return trace
    place = random.randrange(len(trace.calls))
    return replace(trace, calls=_replaced(trace.calls, place, change(trace.calls[place])))


def _replaced(items: Sequence[Any], place: int, item: Any) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])


BENDS: tuple[Bend, ...] = (
    *(_bend_tensor, _bend_tensor, _bend_tensor, _bend_op_tensor, _bend_name, _bend_attribute),
    *(_bend_attribute, _bend_call, _bend_call, _bend_all_calls, _bend_order, _bend_kernels),
    *(_bend_memory, _bend_memory, _bend_value, _bend_trace),
)
