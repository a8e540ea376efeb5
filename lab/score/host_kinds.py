"""Which kinds of steps does the host issue more slowly than predicted, the machine's speed apart?

    python -m lab score host_kinds [--cache FOLDER] [--write]

Needs torch and measurements/h200. Each step that waits for the host is predicted by the reference
host, and by the reference host times one factor of the machine: the median over the machine's
steps of other families. What is left over all machines is the bias of a kind of step. `--cache`
keeps traces of the later blind tests and of compiled steps, which are made if they are not there
(needs transformers); without it these steps are left out. `--write` puts the table into
docs/appendix/accuracy-hosts.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np

from lab import pages
from lab.fit.issued_steps import (
    IssuedStep,
    advised,
    by_iterations,
    decoders,
    later,
    machine_factor,
    of_blind_test,
)
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast import Trace, ops
from wavecast.hardware.hosts import COSTS, RECOMPUTED, REFERENCE_HOST, demands
from wavecast.ops import Kind
from wavecast.traces.graphs import CALL
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Phase

MARK = "begin: python -m lab score host_kinds"
FEWEST = 3
"""The fewest steps of other families that tell how fast a machine is."""
MANY_LISTS = 0.25
"""A step's optimizer is large if the reference host needs this share of its time for its lists."""
LISTS = ("other_s", "tensor_s")


@dataclass(frozen=True)
class HostError:
    """How far off the host's time of a step was predicted."""

    kind: str
    machine: str
    reference: float
    """The relative error with the reference host."""
    factored: float
    """The same, with a factor of the machine."""


def kind_of(trace: Trace) -> str:
    """The kind of a step, by its ops."""
    counts = trace.counts
    kinds = {ops.kind(op) for op in counts}
    phases = {call.phase for call in trace.calls}
    if any(op.name == CALL for op in counts):
        return "compiled"
    if Phase.BACKWARD not in phases:
        return "forward passes"
    if recomputed(trace.calls):
        return "checkpointed"
    if any("embedding_bag" in op.base for op in counts):
        return "recommenders"
    if Kind.RNN in kinds:
        return "recurrent networks"
    if sum(n for op, n in counts.items() if ops.kind(op) is Kind.CONVOLUTION) > 8:
        return "convolutional networks"
    attends = kinds & {Kind.ATTENTION, Kind.SOFTMAX}
    if attends and any(op.base == "aten.topk" for op in counts):
        return "mixtures of experts"
    if attends and Kind.EMBEDDING in kinds:
        return "language models"
    return "vision transformers" if attends else "others"


def lists_share(trace: Trace) -> float:
    """The share of the reference host's time that the lists of an optimizer take."""
    costs_s = np.array([getattr(REFERENCE_HOST, name) for name in COSTS])
    times_s = demands(trace.calls).sum(axis=0) * costs_s
    return float(sum(times_s[COSTS.index(name)] for name in LISTS) / times_s.sum())


def errors(steps: Iterable[IssuedStep]) -> Iterator[HostError]:
    """The error of each step whose machine issued enough steps of other families."""
    machines: dict[str, list[IssuedStep]] = defaultdict(list)
    for step in steps:
        machines[step.machine].append(step)
    for machine, own in machines.items():
        for step in own:
            others = [o for o in own if o.family != step.family and not o.again_s]
            if len(others) >= FEWEST:
                ratio = step.predicted_s(RECOMPUTED) / step.seconds
                kinds = [kind_of(step.trace)]
                if lists_share(step.trace) >= MANY_LISTS:
                    kinds.append("of all: large optimizers (lists of many tensors)")
                for kind in kinds:
                    yield HostError(kind, machine, ratio - 1, ratio * machine_factor(others) - 1)


def table(errors: Sequence[HostError]) -> Iterator[str]:
    """A line for each kind: its bias, and the mean error with the machine's factor."""
    yield from heading(
        "kind of step | machines | steps | bias, reference host | bias, machine's factor "
        "| median of machines | mean error"
    )
    kinds = sorted(
        {error.kind for error in errors}, key=lambda kind: (kind.startswith("of all"), kind)
    )
    for kind in kinds:
        own = [error for error in errors if error.kind == kind]
        by_machine = defaultdict(list)
        for error in own:
            by_machine[error.machine].append(error.factored)
        middles = median(median(some) for some in by_machine.values())
        yield (
            f"| {kind} | {len(by_machine)} | {len(own)} "
            f"| {median(error.reference for error in own):+.0%} "
            f"| {median(error.factored for error in own):+.0%} | {middles:+.0%} "
            f"| {mean(abs(error.factored) for error in own):.0%} |"
        )


def tables(cache: Path | None) -> Iterator[ScoreTable]:
    """The table of the page."""
    steps = (*by_iterations(), *of_blind_test(), *later(cache), *decoders(), *advised())
    yield ScoreTable(
        "\n".join(table(list(errors(steps)))), pages.APPENDIX / "accuracy-hosts.md", MARK
    )
