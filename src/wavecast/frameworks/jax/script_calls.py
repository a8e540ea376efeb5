"""The calls of jitted functions that a script makes, none of which is computed.

A call of a jitted function is evaluated by its shapes alone, and what it returns is made up: arrays
of the right shapes, those of its arguments where they fit. So a script runs on without a GPU, as
far as its course does not depend on values. Its training step is the function that is given back
what it returned before.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from wavecast.errors import CaptureError
from wavecast.frameworks.jax import releases
from wavecast.frameworks.stages import Watched
from wavecast.traces.graphs import XLA_CALL
from wavecast.traces.step import Call, Op, Phase, Trace

REPEATS = 3
"""A step is found when it was called so often with the same shapes."""
MOST_CALLS = 200
"""A function that was called so often, and ended no step that repeats, ends none."""
LARGE = 1 << 16
"""Elements from which an op outside of jitted functions counts as work."""
MOST_SMALL = 16
"""So many different small ops outside of jitted functions are neglected, and named."""


class Repeated(BaseException):
    """Raised inside a script to stop it. It is no `Exception`, so that scripts do not catch it."""


@dataclass(frozen=True)
class OutsideOp:
    """An op that a script computed outside of its jitted functions."""

    name: str
    size: int
    """The elements of its largest argument."""
    on_results: bool
    """Whether it works on what a jitted function returned; others prepare a batch."""


@dataclass(frozen=True, eq=False)
class JittedCall:
    """A call of a jitted function."""

    function: WatchedFunction
    shapes: Hashable
    """Its arguments, without the values of arrays."""
    line: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    returned: tuple[Any, ...]
    """The arrays that it returned."""
    outside: list[OutsideOp] = field(default_factory=list)
    """The ops that ran after it outside of jitted functions."""


@dataclass
class JittedCalls(Watched):
    """The calls that a script made, in order."""

    line: Callable[[], str]
    boundaries: list[JittedCall] = field(default_factory=list)
    """The calls; to who watches a script, they are the ends of its steps."""
    step: JittedCall | None = None
    """The call at which the step had repeated itself."""
    cut_short: str = ""
    _of_results: dict[int, Any] = field(default_factory=dict)
    """What jitted functions returned, and what was made of it."""

    @property
    def calls(self) -> list[JittedCall]:
        """All calls so far."""
        return self.boundaries

    def cut(self, why: str) -> None:
        """Stop the script."""
        self.cut_short = self.cut_short or why
        raise Repeated

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Replace `jax.jit` inside the block, and look at all ops that are computed."""
        import jax

        own, own_pmap = jax.jit, jax.pmap

        def jit(function: Any = None, /, **options: Any) -> Any:
            if function is None:
                return partial(jit, **options)
            return WatchedFunction(own(function, **options), self)

        def pmap(*_: Any, **__: Any) -> Any:
            return refuse_pmap

        def refuse_pmap(*_: Any, **__: Any) -> Any:
            raise CaptureError(
                f"the script calls a function of jax.pmap at {self.line()}, and such steps are not "
                "followed; write it with jax.jit and arrays that are spread over a mesh, and say "
                "--ranks (docs: Predict a JAX step, Several devices)"
            )

        jax.jit, jax.pmap = jit, pmap
        self.running = True
        try:
            with releases.ops_watched(self._note_outside):
                yield
        finally:
            self.running = False
            jax.jit, jax.pmap = own, own_pmap

    def _note_outside(self, name: str, arrays: Sequence[Any], results: Sequence[Any]) -> None:
        if self.calls and self.running:
            size = max((int(getattr(array, "size", 1)) for array in arrays), default=1)
            on_results = any(id(array) in self._of_results for array in arrays)
            self.calls[-1].outside.append(OutsideOp(name, size, on_results))
            if on_results:
                self._of_results |= {id(result): result for result in results}

    def note(self, call: JittedCall) -> None:
        """Note a call, and stop the script where its step has repeated itself."""
        alike = [c for c in self.calls if (c.function, c.shapes) == (call.function, call.shapes)]
        self.calls.append(call)
        self._of_results |= {id(leaf): leaf for leaf in call.returned}
        given = {id(leaf) for leaf in releases.leaves((call.arguments, call.named))}
        is_updated = bool(alike) and any(id(leaf) in given for leaf in alike[-1].returned)
        if len(alike) + 1 >= REPEATS and is_updated and self._repeats(call):
            self.step = call
            raise Repeated
        if len(alike) + 1 >= MOST_CALLS:
            raise Repeated

    def _repeats(self, call: JittedCall) -> bool:
        """Whether a call ends a step: the last two had the same calls, and passed something on.

        A function that only adds up the gradients of parts of a batch passes nothing on to the
        others: the parameters stay as they are.
        """
        before, step = self._periods(call)
        if [(c.function, c.shapes) for c in before] != [(c.function, c.shapes) for c in step]:
            return False
        returned = {id(leaf) for earlier in before for leaf in earlier.returned}
        return len(step) == 1 or any(
            id(leaf) in returned
            for earlier in step[:-1]
            for leaf in releases.leaves((earlier.arguments, earlier.named))
        )

    def _periods(self, call: JittedCall) -> tuple[list[JittedCall], list[JittedCall]]:
        """The calls up to the last but one call like this, from the one before, and up to this."""
        key = call.function, call.shapes
        ends = [at for at, other in enumerate(self.calls) if (other.function, other.shapes) == key]
        first, second, last = (at + 1 for at in ends[-3:])
        return self.calls[first:second], self.calls[second:last]

    def between(self) -> tuple[JittedCall, ...]:
        """The calls of one step: from after the step's last but one call to its last."""
        assert self.step is not None
        return tuple(self._periods(self.step)[1])

    def outside(self) -> list[OutsideOp]:
        """The ops of one step outside of its jitted functions."""
        calls = self.between()
        at = self.calls.index(calls[0])
        before = self.calls[at - 1].outside if at else []
        return [*before, *(op for call in calls[:-1] for op in call.outside)]

    def samples(self) -> int | None:
        """The samples of a step: the length that all arrays have that are new in each call."""
        if self.step is None:
            return None
        step = self.between()
        known = {id(leaf) for call in self.calls for leaf in call.returned}
        for call in self.calls:
            if call not in step:
                known |= {id(leaf) for leaf in releases.leaves((call.arguments, call.named))}
        lengths = {
            leaf.shape[0]
            for call in step
            for leaf in releases.leaves((call.arguments, call.named))
            if getattr(leaf, "ndim", 0) and id(leaf) not in known
            if not releases.is_random_key(leaf)
        }
        return int(lengths.pop()) if len(lengths) == 1 else None


class WatchedFunction:
    """A jitted function whose calls are noted and not computed."""

    def __init__(self, jitted: Any, calls: JittedCalls) -> None:
        self.jitted, self._calls = jitted, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        return self if owner is None else partial(self, owner)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function returns, by its shapes."""
        if not self._calls.running or releases.is_tracing((arguments, named)):
            return self.jitted(*arguments, **named)
        shapes = self.jitted.eval_shape(*arguments, **named)
        self._calls.running = False  # what follows is not the script's
        result = _made_up(shapes, (arguments, named))
        self._calls.running = True
        call = JittedCall(
            self,
            releases.shapes_of((arguments, named)),
            self._calls.line(),
            arguments,
            named,
            tuple(releases.leaves(result)),
        )
        self._calls.note(call)
        releases.forget_compiled()
        return result

    @property
    def name(self) -> str:
        """The name of the function in the script."""
        return str(getattr(self.jitted, "__name__", "a jitted function"))


def _made_up(shapes: Any, given: Any) -> Any:
    """Arrays of these shapes: those that were given, in their order, and zeros."""
    import jax

    left: dict[Hashable, list[Any]] = defaultdict(list)
    for leaf in releases.leaves(given):
        if isinstance(leaf, jax.Array):
            left[leaf.shape, leaf.dtype].append(leaf)

    def made(shape: Any) -> Any:
        known = left[shape.shape, shape.dtype]
        return releases.same_array(known.pop(0)) if known else releases.zeros(shape)

    return jax.tree.map(made, shapes)


# The jitted calls of one step as one function, which hands on what each of them returned.
#
# Barriers hold the calls apart, so that XLA compiles each as it would alone, and one module says
# what memory they need together.


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
        returned: set[int] = set()
        places: dict[int, int] = {}
        for call in self.calls:
            rows = releases.named_leaves(call.function.jitted, *_inputs(call))
            arrays = [leaf for _, leaf in rows if releases.is_array(leaf)]
            names = {id(leaf): name for name, leaf in rows}
            taken = releases.donated_leaves(call.function.jitted, call.arguments, call.named)
            self.counts.append(len(arrays))
            for leaf in arrays:
                if id(leaf) in returned:
                    continue
                if id(leaf) not in places:
                    places[id(leaf)] = len(self.given)
                    self.given.append(leaf)
                    self.names.append(f"{names[id(leaf)]}#{len(self.names)}")
                    self.donated.append(False)
                self.donated[places[id(leaf)]] |= id(leaf) in taken
            returned |= {id(leaf) for leaf in call.returned}

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
