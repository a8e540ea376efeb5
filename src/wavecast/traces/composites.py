"""Views that an op written in C++ makes by itself: `linear` and `matmul` reshape what they get.

Python issues one op, and torch's dispatcher sees four or five. Views among them cost the host a
fraction of what a view in Python code costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from wavecast.traces.step import Call

_OF_LINEAR = ("aten.t", "aten.view")
_OF_MATMUL = ("aten.expand", "aten.view", "aten._unsafe_view")


def inner_views(calls: Sequence[Call]) -> list[int]:
    """The positions of views that are part of a `linear` or a `matmul`.

    `linear` runs t, view, mm, _unsafe_view without a bias, and view, t, addmm, view with one.
    `matmul` runs expand and view of both sides, bmm and _unsafe_view.
    """
    names = [call.op.base for call in calls]
    inner = {at for at, name in enumerate(names) if name == "aten._unsafe_view"}
    for at, name in enumerate(names):
        if name in ("aten.mm", "aten.addmm"):
            inner.update(_around_linear(names, at))
        elif name == "aten.bmm" and names[at + 1 : at + 2] == ["aten._unsafe_view"]:
            inner.update(_right_before(names, at, _OF_MATMUL))
    return sorted(inner)


def _around_linear(names: Sequence[str], at: int) -> list[int]:
    """The views around the matmul of a `linear`. Empty if its weight is not transposed there."""
    before = _right_before(names, at, _OF_LINEAR)[:2]
    if not any(names[position] == "aten.t" for position in before):
        return []
    has_bias = names[at] == "aten.addmm"
    return [*before, at + 1] if has_bias and names[at + 1 : at + 2] == ["aten.view"] else before


def _right_before(names: Sequence[str], at: int, views: Collection[str]) -> list[int]:
    """The positions of the views right before a call, the nearest first."""
    first = at
    while first > 0 and names[first - 1] in views:
        first -= 1
    return list(range(at - 1, first - 1, -1))
