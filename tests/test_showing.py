"""Results show themselves briefly, whatever they hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from made import call, mm, step
from numpy.typing import NDArray

import wavecast
from wavecast.results import Brief
from wavecast.traces.step import Op, Trace

LONGEST = 400


@dataclass(frozen=True, repr=False)
class _Thing(Brief):
    name: str = ""
    sizes: tuple[int, ...] = ()
    values: NDArray[np.float64] | None = None
    hidden: str = field(default="", repr=False)
    inner: object = None


def test_only_what_says_something_is_shown() -> None:
    assert repr(_Thing()) == "_Thing()"
    assert repr(_Thing("x", (1, 2), hidden="y")) == "_Thing(name='x', sizes=(1, 2))"


def test_long_values_are_counted_or_cut() -> None:
    shown = repr(_Thing("n" * 500, tuple(range(9)), np.zeros(4), inner={"a": 1}))
    assert "<9 items>" in shown
    assert "values=<4 items>" in shown
    assert "inner=<1 item>" in shown
    assert len(shown) < LONGEST


def test_what_is_inside_goes_by_its_name() -> None:
    assert "<Device l4>" in repr(_Thing(inner=wavecast.device("l4")))
    assert "<object" in repr(_Thing(inner=object()))


def test_a_nameless_thing_goes_by_its_type() -> None:
    inner = _Thing(sizes=(10**25, 10**25), inner=10**20)
    assert "inner=<_Thing>" in repr(_Thing(inner=inner))


def test_every_result_is_a_short_line() -> None:
    trace = Trace(step().calls * 200, step().allocations, "torch 2.13.0", samples=4)
    wide = Op("aten._foreach_add_", mm().inputs * 1000, mm().outputs)
    results = (
        *(trace, trace.arrays, trace.calls[0], wide, call(wide)),
        *(wavecast.predict(step(), "t4"), wavecast.memory(step(), "t4"), wavecast.device("t4")),
        wavecast.FamilyTraces((trace, trace)),
    )
    for result in results:
        text = repr(result)
        assert len(text) < LONGEST, text
        assert "\n" not in text
    assert repr(trace).startswith("Trace(calls=<2000 items>")
