"""The sets of steps that `lab.collect.step_times` measures, by name.

The networks of blind tests that are done are not kept, but their traces and measurements are.
"""

from __future__ import annotations

from importlib import import_module

from lab.steps.compiled import CompiledStep

SETS = {
    "host": ("lab.steps.host_steps", "HOST_STEPS"),
    "revisited": ("lab.steps.revisited", "REVISITED"),
}
"""The module and the name of each set."""
NAMES = tuple(SETS)


def steps_of(which: str) -> tuple[CompiledStep, ...]:
    """The steps of a set."""
    module, name = SETS[which]
    steps: tuple[CompiledStep, ...] = getattr(import_module(module), name)
    return steps


def names_of(which: str) -> list[str]:
    """The names of a set's steps, in the order in which they are measured."""
    return [step.name for step in steps_of(which)]


def step_named(name: str) -> CompiledStep:
    """The step of a name, in whichever set."""
    return next(step for which in SETS for step in steps_of(which) if step.name == name)
