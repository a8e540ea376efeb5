"""Fit what checkpointing costs the host for each block that is computed again.

    python -m lab fit recomputed

Needs torch and measurements/h200. Prints how many forward ops a block costs beside its own ops, by
each checkpointed step, and `wavecast.hardware.hosts.RECOMPUTED`: the median over machines of the
median over their steps, so that a machine with many steps counts once. Then the errors of these
steps with the machine left out.

The speed of a machine is taken out: its factor is the median over its steps without checkpointing.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from lab import needs
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
from wavecast.hardware.hosts import RECOMPUTED


@dataclass(frozen=True)
class CheckpointedStep:
    """A checkpointed step, and how fast the machine issues steps without checkpointing."""

    step: IssuedStep
    factor: float

    @property
    def needed(self) -> float:
        """How many forward ops a block that is computed again costs beside its own."""
        return (self.step.seconds / self.factor - self.step.reference_s) / self.step.again_s

    def error(self, hooks: float) -> float:
        """The relative error of the host's time."""
        return self.step.predicted_s(hooks) * self.factor / self.step.seconds - 1


def read() -> list[CheckpointedStep]:
    """The checkpointed steps that were measured, in the order of machines."""
    steps = (*by_iterations(), *of_blind_test(), *later(), *decoders(), *advised())
    return list(checkpointed(steps))


def checkpointed(steps: Iterable[IssuedStep]) -> Iterator[CheckpointedStep]:
    """The checkpointed steps among some, each with the factor of its machine."""
    machines: dict[str, list[IssuedStep]] = defaultdict(list)
    for step in steps:
        machines[step.machine].append(step)
    for own in machines.values():
        plain = [step for step in own if not step.again_s]
        for step in own:
            if step.again_s and plain:
                yield CheckpointedStep(step, machine_factor(plain))


def fit(steps: Sequence[CheckpointedStep]) -> float:
    """The median over machines of the median over their steps."""
    by_machine = _by_machine(steps).values()
    return statistics.median(statistics.median(s.needed for s in own) for own in by_machine)


def left_out(steps: Sequence[CheckpointedStep]) -> dict[str, list[float]]:
    """The errors of each machine's steps, with the machine left out of the fit."""
    errors = {}
    for machine, own in _by_machine(steps).items():
        hooks = fit([step for step in steps if step.step.machine != machine])
        errors[machine] = [step.error(hooks) for step in own]
    return errors


def _by_machine(steps: Iterable[CheckpointedStep]) -> Mapping[str, list[CheckpointedStep]]:
    machines: dict[str, list[CheckpointedStep]] = defaultdict(list)
    for step in steps:
        machines[step.step.machine].append(step)
    return machines


def table(steps: Sequence[CheckpointedStep]) -> Iterator[str]:
    """A line for each step."""
    yield from heading("step | machine | factor | host | forward ops for a block | error")
    for step in steps:
        yield (
            f"| {step.step.name} | {step.step.machine} | {step.factor:.2f} "
            f"| {step.step.seconds * 1e3:.1f} ms | {step.needed:.0f} "
            f"| {step.error(RECOMPUTED):+.0%} |"
        )


def main(given: Sequence[str] = ()) -> None:
    """Print what each step says, the fit, and the errors with the machine left out."""
    needs.parser(__doc__).parse_args(given)
    steps = read()
    print("\n".join(table(steps)), "\n")
    print(f"fitted: {fit(steps):.1f}; shipped: {RECOMPUTED}")
    by_machine = left_out(steps).values()
    for title, errors in (
        ("shipped", [[s.error(RECOMPUTED) for s in o] for o in _by_machine(steps).values()]),
        ("machine left out", list(by_machine)),
    ):
        sizes = mean(mean(abs(error) for error in own) for own in errors)
        bias = mean(mean(own) for own in errors)
        print(f"{title}: mean error {sizes:.1%}, bias {bias:+.1%}, each machine counting once")
