"""The jitted calls of one step as one function, which hands on what each of them returned.

Barriers hold the calls apart, so that XLA compiles each as it would alone, and one module says what
memory they need together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wavecast.frameworks.jax import releases
from wavecast.frameworks.jax.script_calls import JittedCall
from wavecast.traces.graphs import XLA_CALL
from wavecast.traces.step import Call, Op, Phase, Trace


@dataclass
class JoinedCalls:
    """One or several jitted calls of a step, as a function of the arrays that they are given.

    Arrays that a call gets from an earlier one of the step are no arguments.
    """

    calls: Sequence[JittedCall]
    given: list[Any] = field(default_factory=list)
    """The arrays, each once."""
    names: list[str] = field(default_factory=list)
    """Where each of them is in the arguments: "state.params.Dense_0.kernel"."""
    donated: list[bool] = field(default_factory=list)
    """Whether a call takes over the memory of each of them."""
    counts: list[int] = field(default_factory=list)
    """How many arrays each call is given."""

    def __post_init__(self) -> None:
        made: set[int] = set()
        places: dict[int, int] = {}
        for call in self.calls:
            rows = releases.named_leaves(call.function.jitted, *_inputs(call))
            arrays = [leaf for _, leaf in rows if releases.is_array(leaf)]
            names = {id(leaf): name for name, leaf in rows}
            taken = releases.donated_leaves(call.function.jitted, call.arguments, call.named)
            self.counts.append(len(arrays))
            for leaf in arrays:
                if id(leaf) in made:
                    continue
                if id(leaf) not in places:
                    places[id(leaf)] = len(self.given)
                    self.given.append(leaf)
                    self.names.append(f"{names[id(leaf)]}#{len(self.names)}")
                    self.donated.append(False)
                self.donated[places[id(leaf)]] |= id(leaf) in taken
            made |= {id(leaf) for leaf in call.returned}

    def step(self) -> Any:
        """The function, jitted; it takes the arrays that are donated, and the others."""
        import jax

        def joined(taken: Mapping[str, Any], kept: Mapping[str, Any]) -> list[Any]:
            known = {
                id(leaf): taken[name] if name in taken else kept[name]
                for name, leaf in zip(self.names, self.given, strict=True)
            }

            def handed_on(leaf: Any) -> Any:
                return known.get(id(leaf), leaf)

            results = []
            for call in self.calls:
                arguments, named = jax.tree.map(handed_on, _inputs(call))
                result = call.function.jitted(*arguments, **named)
                result = jax.lax.optimization_barrier(result)
                leaves = releases.leaves(result)
                known.update(zip(map(id, call.returned), leaves, strict=True))
                results.append(leaves)
            return results

        return jax.jit(joined, donate_argnums=0)

    def arguments(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `step` is called with, by name."""
        rows = list(zip(self.names, self.given, self.donated, strict=True))
        return {n: a for n, a, taken in rows if taken}, {n: a for n, a, taken in rows if not taken}

    def with_dispatches(self, trace: Trace) -> Trace:
        """The trace of `step` with the host's work of each call: they are issued one by one."""
        first, *rest = trace.calls
        gpu = str(first.op.attr("gpu", ""))
        marks = [Op(XLA_CALL, (), (), (("inputs", n), ("gpu", gpu))) for n in self.counts]
        later = (Call(mark, Phase.FORWARD) for mark in marks[1:])
        return replace(
            trace,
            calls=(replace(first, op=marks[0]), *rest, *later),
            allocations=tuple(replace(a, module=_own(a.module)) for a in trace.allocations),
            values=tuple(replace(v, parameter=_own(v.parameter)) for v in trace.values),
        )


def _own(name: str) -> str:
    """The name of an argument in the script, from that of `step`."""
    return re.sub(r"^(taken|kept)(\.|$)|#\d+$", "", name)


def _inputs(call: JittedCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return call.arguments, call.named
