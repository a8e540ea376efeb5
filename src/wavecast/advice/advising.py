"""The search for changes that help: each is traced and predicted, then those that help together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavecast.advice.catalogue import (
    CHANGES,
    GRAPHED,
    StepVariants,
    TargetVariants,
    is_copy_to_gpu,
    is_read,
    variant,
    waiting_lines,
    why_not,
)
from wavecast.advice.proposals import (
    OtherGpus,
    Proposal,
    StepAdvice,
    Use,
    loader_advice,
    other_gpus,
    proposal,
)
from wavecast.errors import InvalidInput, WavecastError
from wavecast.hardware.devices import Device, device
from wavecast.planning.prices import Price, PriceBook, price
from wavecast.steps.request import predict
from wavecast.targets.targets import Target
from wavecast.traces.graphs import NOT_COMPILED
from wavecast.traces.step import Trace

_EXCLUSIVE = (
    {"bf16", "fp16", "tf32"},
    {"compile", "compile_graphs", "cuda_graph"},
    {"fused_optimizer", "foreach_optimizer"},
    {"checkpointing", "checkpointing_half"},
)
"""Changes of which a step has one at most."""
_PRECISIONS = _EXCLUSIVE[0]
_GRAPHS = ("compile_graphs", GRAPHED)
"""Changes that spare the host alone."""
SLOW_TO_TRACE = ("compile", "compile_graphs")
"""Changes whose traces take much longer than the others."""
_ENOUGH = 0.005
"""The least gain for which a further change is kept."""
_LINES = 5

Progress = Callable[[str], None]


def _waits(trace: Trace) -> int:
    """How often the host waits for the GPU."""
    return sum(call.syncs for call in trace)


def advise(
    make_step: Callable[[], Callable[[], Any]] | Trace,
    gpu: Device | str,
    *,
    samples: int | None = None,
    changes: Sequence[str] | None = None,
    host: str | None = None,
) -> StepAdvice:
    """What would make a training step faster or smaller on a GPU: changes, traced and predicted.

    ```python
    advice = wavecast.advise(make_step, "l4")
    for change in advice.faster:
        print(f"{change.gain:.0%}", change.title, change.code)
    ```

    Each change is made in the step's code while it is traced, as if a person had written it. What
    helps is then tried together.

    Args:
        make_step: builds model, optimizer and inputs as for `wavecast.trace`; or a trace, for which
            only changes are tried that need no code.
        gpu: the GPU.
        samples: how many samples one step takes.
        changes: the names of the changes to try. None for all.
        host: the host that issues the ops, as for `wavecast.predict`.

    Raises:
        InvalidInput: there is no such change.
    """
    chosen_gpu = device(gpu) if isinstance(gpu, str) else gpu
    if isinstance(make_step, Trace):
        target = Target("the step", trace=make_step, samples=make_step.samples)
    else:
        target = Target("the step", make_step=make_step, samples=samples)
    return advise_on(
        TargetVariants(target, chosen_gpu),
        chosen_gpu,
        price(chosen_gpu),
        changes=changes,
        host=host,
    )


def advise_on(
    variants: StepVariants,
    gpu: Device,
    offer: Price | None = None,
    *,
    changes: Sequence[str] | None = None,
    host: str | None = None,
    progress: Progress = lambda _: None,
    book: PriceBook | None = None,
    cores: int | None = None,
) -> StepAdvice:
    """The advice on a step from its variants.

    Args:
        variants: the step, and its variants with changes.
        offer: its cheapest offer. None when unknown.
        changes: the names of the changes to try. None for all.
        host: the host that issues the ops, as for `wavecast.predict`.
        progress: called with the change that is tried next.
        book: the prices, to look at other GPUs as well. None not to.
        cores: the cores of the machine with the GPU, for a script's data loader. None for those of
            this machine.
    """
    unknown = sorted(set(changes or ()) - set(CHANGES))
    if unknown:
        raise InvalidInput(f"there is no change {unknown[0]!r}; there are {', '.join(CHANGES)}")
    search = _ChangeSearch(variants, gpu, progress, host)
    names = (name for name in CHANGES if changes is None or name in changes)
    tried = [name for name in names if name not in variants.unsuitable]
    singles = tuple(search.single(name) for name in tried)
    together = search.together(singles)
    elsewhere: list[OtherGpus] = []
    if book is not None:
        progress("other GPUs")
        elsewhere = other_gpus(search.before, book, host)
    loader = loader_advice(variants.loading, search.before, cores)
    others = tuple(elsewhere)
    return StepAdvice(variants.name, search.before, singles, together, offer, others, loader)


@dataclass
class _ChangeSearch:
    variants: StepVariants
    gpu: Device
    progress: Progress
    host: str | None = None
    _known: dict[tuple[str, ...], Proposal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.progress("the step as it is")
        self.trace = self.variants.traced(())
        self.before = predict(self.trace, self.gpu, host=self.host)
        self._lines = tuple(
            f"{line} x {times}" if times > 1 else line
            for line, times in waiting_lines(self.trace).most_common(_LINES)
        )

    def single(self, name: str) -> Proposal:
        """One change, tried if it makes sense."""
        reason = why_not(name, self.trace, self.gpu)
        if not reason and name == "compile_graphs" and not self._is_bound_by_host(("compile",)):
            reason = "compiled code keeps the GPU busy without graphs"
        if not reason and name == GRAPHED:
            return self.tried((*self._without_waits(), GRAPHED))
        if not reason:
            return self.tried((name,))
        return proposal((name,), self.before, self.before, reason)

    def _without_waits(self) -> list[str]:
        """The changes without which a step that waits for the GPU is no CUDA graph."""
        kinds = {"fewer_waits": is_read, "async_copies": is_copy_to_gpu}
        return [name for name, test in kinds.items() if any(map(test, self.trace))]

    def tried(self, names: tuple[str, ...]) -> Proposal:
        """Some changes together, traced and predicted."""
        if names not in self._known:
            self._known[names] = self._try(names)
        return self._known[names]

    def _try(self, names: tuple[str, ...]) -> Proposal:
        self.progress(" + ".join(CHANGES[name].title for name in names))
        lines = self._lines if "fewer_waits" in names else ()
        try:
            trace = variant(self.variants, names)
            after = predict(trace, self.gpu, host=self.host, graphed=GRAPHED in names)
        except WavecastError as error:
            return proposal(names, self.before, reason=str(error), lines=lines)
        refused = next((n for n in trace.notes if NOT_COMPILED in n), "")
        if refused:
            return proposal(names, self.before, reason=refused)
        is_same = GRAPHED not in names and trace.counts == self.trace.counts
        is_same = is_same and trace.allocations == self.trace.allocations
        is_same = is_same and _waits(trace) == _waits(self.trace)
        reason = "it changes nothing in this step" if is_same else ""
        return proposal(names, self.before, after, reason, lines)

    def _is_bound_by_host(self, names: tuple[str, ...]) -> bool:
        after = self.tried(names).after
        return after is None or after.bound_by == "host"

    def together(self, singles: Sequence[Proposal]) -> Proposal | None:
        """The changes that help, added one by one as long as each helps beside the others.

        What does not help alone may help beside them: channels-last, compiling and padded sizes
        once the step runs in 16 bits, and what spares the host once the GPU is faster.
        """
        current = self._extended(None, self._in_order(singles))
        if current is not None:
            current = self._extended(current, self._others(current, singles))
        if self.before.fits is False:
            current = self._fitting(current, singles)
        return current if current is not None and len(current.changes) > 1 else None

    def _extended(self, current: Proposal | None, names: Iterator[str]) -> Proposal | None:
        """Some changes with those of further ones that help beside them."""
        for name in names:
            together = (name,) if current is None else self._added(current, name)
            if not together:
                continue
            tried = self.tried(together)
            if tried.gain is None or (tried.fits is False and self.before.fits is not False):
                continue
            if current is None or tried.gain > (current.gain or 0.0) + _ENOUGH:
                current = tried
        return current

    def _others(self, current: Proposal, singles: Sequence[Proposal]) -> Iterator[str]:
        """The changes that gain nothing alone, but are worth a try beside some that do."""
        after = current.after
        if after is None:
            return
        alone = [single for single in singles if single.verdict in (Use.SMALLER, Use.NO_USE)]
        further = [proposal.changes[-1] for proposal in alone]
        names = [c.name for c in further if c.same_training and not c.saves_memory]
        idle = () if after.bound_by == "host" else _GRAPHS
        for name in sorted(names, key=lambda name: name in SLOW_TO_TRACE):
            if name not in (*_PRECISIONS, *idle) and not why_not(name, after.trace, self.gpu):
                yield name

    def _in_order(self, singles: Sequence[Proposal]) -> Iterator[str]:
        """The changes that help, the greatest gain first; those that take long to trace last."""
        helping = [single for single in singles if single.verdict is Use.FASTER]
        ordered = sorted(helping, key=lambda proposal: -(proposal.gain or 0.0))
        names = [c.name for proposal in ordered for c in proposal.changes if c.same_training]
        yield from (name for name in dict.fromkeys(names) if name not in SLOW_TO_TRACE)
        yield from (name for name in dict.fromkeys(names) if name in SLOW_TO_TRACE)

    def _added(self, current: Proposal, name: str) -> tuple[str, ...]:
        """The names with one more; none if the new one excludes one of them."""
        names = [change.name for change in current.changes]
        if name == GRAPHED:
            names += self._without_waits()
        if any(name in group and group & set(names) for group in _EXCLUSIVE):
            return ()
        return tuple(known for known in CHANGES if known in (*names, name))

    def _fitting(self, current: Proposal | None, singles: Sequence[Proposal]) -> Proposal | None:
        """The changes with as many that save memory as it takes to fit."""
        savers = [
            single
            for single in singles
            if single.changes[0].saves_memory
            and single.changes[0].same_training
            and (single.saved_bytes or 0) > 0
        ]
        for saver in sorted(savers, key=lambda saver: -(saver.saved_bytes or 0)):
            if current is not None and current.fits is not False:
                break
            names = (saver.name,) if current is None else self._added(current, saver.name)
            tried = self.tried(names) if names else None
            if tried is not None and tried.after is not None:
                current = tried
        return current
