"""Hypothesis strategies: steps of known ops on any tensors, and profiles of any events.

`drawn_traces` draws any value that a trace may hold; here the names are those that formulas know,
so that the formulas are reached.
"""

from __future__ import annotations

import json
from typing import Any

from drawn_traces import calls, specs
from fuzz import forms
from fuzz.mutation import NUMBERS, TEXTS
from hypothesis import strategies as st

from wavecast.traces.step import Op, Phase, Trace

values = st.sampled_from([*NUMBERS[:20], True, False, "mean", (), (0,), (1, 1), (2, 2, 2), (-1,)])


@st.composite
def odd_ops(draw: st.DrawFn) -> Op:
    """An op whose cost is known by its name, with tensors and attributes that need not fit it."""
    return Op(
        draw(st.sampled_from(forms.op_names())) + draw(st.sampled_from(["", ".default"])),
        tuple(draw(st.lists(specs(), max_size=5))),
        tuple(draw(st.lists(specs(), max_size=2))),
        tuple(draw(st.lists(st.tuples(st.sampled_from(forms.ATTRIBUTES), values), max_size=4))),
    )


@st.composite
def odd_steps(draw: st.DrawFn) -> Trace:
    """A traced step of one to six odd ops."""
    made = draw(st.lists(st.builds(lambda call, op: (call, op), calls, odd_ops()), min_size=1))
    return Trace(
        tuple(
            type(call)(op, Phase.FORWARD, call.module, syncs=call.syncs) for call, op in made[:6]
        ),
        samples=draw(st.none() | st.integers(1, 1 << 40)),
    )


numbers = st.sampled_from(NUMBERS) | st.integers(0, 10_000) | st.floats(0, 1e7)
shapes = st.lists(st.lists(st.integers(-1, 1 << 40), max_size=4), max_size=4)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.integers(0, 3),
        "stream": numbers,
        "device": numbers,
        "grid": st.lists(numbers, max_size=4),
        "block": st.lists(numbers, max_size=4),
        "Input Dims": shapes,
        "Input type": st.lists(st.sampled_from(["float", "c10::Half", "", "Scalar"]), max_size=4),
        "Concrete Inputs": st.lists(st.sampled_from(TEXTS), max_size=4),
        "Sequence number": numbers,
        "External id": numbers,
    },
)


@st.composite
def odd_events(draw: st.DrawFn) -> dict[str, Any]:
    """An event of a profile; most have a time and a category that is known."""
    categories = ["kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "user_annotation", "ac2g", ""]
    bare = [name.split(".")[1] for name in forms.op_names() if name.startswith("aten.")]
    names = [f"aten::{name}" for name in bare]
    names += ["cudaLaunchKernel", "ProfilerStep#1", "ProfilerStep#2", "k", *TEXTS[:12]]
    return {
        "ph": draw(st.sampled_from(["X", "X", "X", "i", "s", "f", "M"])),
        "cat": draw(st.sampled_from(categories)),
        "name": draw(st.sampled_from(names)),
        "pid": draw(st.integers(0, 2) | numbers),
        "tid": draw(st.integers(0, 2) | st.sampled_from(TEXTS[:10]) | st.just([])),
        "ts": draw(numbers),
        "dur": draw(numbers),
        "args": draw(arguments),
    }


@st.composite
def odd_profiles(draw: st.DrawFn) -> bytes:
    """A profile as text of JSON."""
    events = draw(st.lists(odd_events(), max_size=12))
    gpu = {"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0}
    properties: Any = draw(st.sampled_from([[gpu], [], [{}], None, [{**gpu, "name": 7}]]))
    return json.dumps({"deviceProperties": properties, "traceEvents": events}).encode()
