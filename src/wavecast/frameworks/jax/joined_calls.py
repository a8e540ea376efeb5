"""The jitted calls of one step as one function, which hands on what each of them returned.

Barriers hold the calls apart, so that XLA compiles each as it would alone, and one module says what
memory they need together.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    donated: list[bool] = field(default_factory=list)
    """Whether a call takes over the memory of each of them."""
    counts: list[int] = field(default_factory=list)
    """How many arrays each call is given."""

    def __post_init__(self) -> None:
        made: set[int] = set()
        places: dict[int, int] = {}
        for call in self.calls:
            arrays = [leaf for leaf in releases.leaves(_inputs(call)) if releases.is_array(leaf)]
            taken = releases.donated_leaves(call.function.jitted, call.arguments, call.named)
            self.counts.append(len(arrays))
            for leaf in arrays:
                if id(leaf) in made:
                    continue
                if id(leaf) not in places:
                    places[id(leaf)] = len(self.given)
                    self.given.append(leaf)
                    self.donated.append(False)
                self.donated[places[id(leaf)]] |= id(leaf) in taken
            made |= {id(leaf) for leaf in call.returned}

    def step(self) -> Any:
        """The function, jitted; it takes the arrays that are donated, and the others."""
        import jax

        def joined(taken: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
            rows = iter(taken), iter(kept)
            known = {
                id(leaf): next(rows[0] if is_taken else rows[1])
                for leaf, is_taken in zip(self.given, self.donated, strict=True)
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

    def arguments(self) -> tuple[list[Any], list[Any]]:
        """What `step` is called with."""
        rows = list(zip(self.given, self.donated, strict=True))
        return [leaf for leaf, is_taken in rows if is_taken], [a for a, taken in rows if not taken]

    def with_dispatches(self, trace: Trace) -> Trace:
        """The trace of `step` with the host's work of each call: they are issued one by one."""
        first, *rest = trace.calls
        gpu = str(first.op.attr("gpu", ""))
        marks = [Op(XLA_CALL, (), (), (("inputs", n), ("gpu", gpu))) for n in self.counts]
        later = (Call(mark, Phase.FORWARD) for mark in marks[1:])
        return replace(trace, calls=(replace(first, op=marks[0]), *rest, *later))


def _inputs(call: JittedCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return call.arguments, call.named
