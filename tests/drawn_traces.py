"""Traces that hypothesis draws: any value that a trace file may hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

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

sizes = st.integers(0, 1 << 40)
times = st.floats(0, 1e6, allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
triples = st.none() | st.tuples(sizes, sizes, sizes)


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    shape = draw(st.lists(sizes, max_size=5))
    strides = draw(st.none() | st.lists(sizes, min_size=len(shape), max_size=len(shape)))
    dtype, device = (
        draw(st.sampled_from(sorted(DTYPE_BYTES))),
        draw(st.sampled_from(["cuda", "cpu"])),
    )
    return TensorSpec(tuple(shape), dtype, None if strides is None else tuple(strides), device)


scalars = (
    st.integers(-(1 << 62), 1 << 62)
    | finite
    | st.booleans()
    | st.text()
    | st.lists(st.integers(-(1 << 62), 1 << 62), max_size=4).map(tuple)
    | st.lists(finite, max_size=4).map(tuple)
)
attributes = st.lists(st.tuples(st.text(), scalars), max_size=3).map(tuple)
tensors = st.lists(specs(), max_size=3).map(tuple)
operators = st.builds(Op, st.text(), tensors, tensors, attributes)
kernels = st.builds(
    Kernel,
    name=st.text(),
    seconds=times,
    grid=triples,
    block=triples,
    registers=st.none() | sizes,
    shared_bytes=st.none() | sizes,
    stream=sizes,
    start_s=st.none() | times,
    flops=st.none() | times,
    dram_bytes=st.none() | times,
)
measurements = st.builds(
    Measurement,
    gpu=st.text(),
    seconds=st.none() | times,
    gpu_s=st.none() | times,
    host_s=st.none() | times,
    recorded_s=st.none() | times,
    repeats=st.integers(1, 1000),
    software=st.text(),
    cpu_s=st.none() | times,
    cores=st.none() | st.integers(1, 1000),
)
calls = st.builds(
    Call,
    op=operators,
    phase=st.sampled_from(Phase),
    module=st.text(),
    stream=sizes,
    syncs=st.booleans(),
    kernels=st.lists(kernels, max_size=2).map(tuple),
    host_s=st.none() | times,
    line=st.text(max_size=2),
    graph=st.none() | st.integers(0, 3),
)


@st.composite
def with_values(draw: st.DrawFn, trace: Trace) -> Trace:
    """The trace with values: each tensor is a new one, or an earlier one of the same spec."""
    values: list[Value] = []
    memory = st.none() | st.integers(0, max(len(trace.allocations) - 1, 0))

    def use(spec: TensorSpec) -> int:
        known = [number for number, value in enumerate(values) if value.spec == spec]
        reused: int | None = draw(st.none() | st.sampled_from(known)) if known else None
        if reused is not None:
            return reused
        base = draw(st.none() | st.integers(0, len(values) - 1)) if values else None
        place = draw(memory) if trace.allocations else None
        names = draw(st.tuples(st.text(max_size=3), st.text(max_size=3)))
        values.append(Value(spec, place, base, *names))
        return len(values) - 1

    used = []
    for call in trace:
        if draw(st.booleans()) or not (call.op.inputs or call.op.outputs):
            reads, writes = tuple(map(use, call.op.inputs)), tuple(map(use, call.op.outputs))
            call = replace(call, reads=reads, writes=writes)
        used.append(call)
    return replace(trace, calls=tuple(used), values=tuple(values))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    trace = draw(traces_without_values())
    return draw(with_values(trace)) if draw(st.booleans()) else trace


@st.composite
def traces_without_values(draw: st.DrawFn) -> Trace:
    made = draw(st.lists(calls, max_size=4))
    moments = st.tuples(st.integers(0, len(made)), st.integers(0, len(made))).map(sorted)
    spans = st.lists(st.tuples(moments, st.booleans(), st.booleans()), max_size=4)
    return Trace(
        calls=tuple(made),
        allocations=tuple(
            Allocation(
                draw(sizes),
                None if before else born,
                None if after else freed,
                draw(st.sampled_from(Role)),
                draw(st.text(max_size=2)) if before else "",
            )
            for (born, freed), before, after in draw(spans)
        ),
        framework=draw(st.text()),
        capability=draw(st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))),
        samples=draw(st.none() | st.integers(1, 1 << 40)),
        unit=draw(st.text()),
        notes=tuple(draw(st.lists(st.text(), max_size=2))),
        measurement=draw(st.none() | measurements),
    )
