"""The variants of a step: its trace with some changes, from its code or from its trace alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from wavecast.advice.trace_changes import EDITS
from wavecast.errors import InvalidInput
from wavecast.frameworks.scripts import run_script
from wavecast.frameworks.step_source import traced_target
from wavecast.frameworks.targets import Target, resolve
from wavecast.hardware.device import Device
from wavecast.traces.step import Trace

GRAPHED = "cuda_graph"
"""The change that concerns the host alone: the trace stays as it is."""
_PRECISIONS = ("bf16", "fp16", "tf32")
_MODES: dict[str, bool | str] = {"compile": True, "compile_graphs": "reduce-overhead"}


class StepVariants(Protocol):
    """The traces of a step with changes."""

    name: str

    def traced(self, names: Sequence[str]) -> Trace:
        """The trace with changes to the code.

        Raises:
            WavecastError: the step cannot be changed so; the message says why.
        """
        ...


@dataclass(frozen=True)
class TargetVariants:
    """Variants of a target: a function, a model, or a saved trace, which is as it is."""

    target: Target
    gpu: Device

    @property
    def name(self) -> str:
        """The title of reports."""
        return self.target.name

    def traced(self, names: Sequence[str]) -> Trace:
        """The trace with changes to the code."""
        if self.target.trace is not None:
            if names:
                raise InvalidInput("it is a trace, which is fixed; name the step itself")
            return self.target.trace
        step = self.target
        for name in names:
            step = _changed(step, name)
        return traced_target(step, self.gpu)


def _changed(target: Target, name: str) -> Target:
    if name in _PRECISIONS and target.precision is not None:
        return target.changed(precision=name)
    if name in _MODES:
        return replace(target, compiled=_MODES[name])
    if name == "batch":
        if target.batch is None:
            raise InvalidInput("its batch is not known; give --batch, which the step then takes")
        return target.changed(batch=2 * target.batch)
    is_model = target.text.startswith("hf:")
    if name in ("lora", "qlora") or (name == "checkpointing" and is_model):
        return _with_options(target, name)
    return replace(target, changes=(*target.changes, name))


def _with_options(target: Target, name: str) -> Target:
    if not target.text.startswith("hf:"):
        raise InvalidInput("adapters are tried for hf: models only")
    options = {
        "lora": replace(target.options, lora="r=16"),
        "qlora": replace(target.options, qlora=True, weights=None, checkpointing=True),
        "checkpointing": replace(target.options, checkpointing=True),
    }[name]
    step = resolve(target.text, target.batch, target.precision, options)
    return replace(step, compiled=target.compiled, changes=target.changes)


@dataclass(frozen=True)
class ScriptVariants:
    """Variants of a training script, which runs once for each."""

    script: str
    arguments: tuple[str, ...]
    gpu: Device
    options: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The title of reports."""
        return self.script

    def traced(self, names: Sequence[str]) -> Trace:
        """The trace of the repeated step, with changes to the code."""
        if not set(names).isdisjoint(("lora", "qlora", "compile_graphs")):
            raise InvalidInput("this is not tried for scripts")
        changes = ["twice_the_batch" if name == "batch" else name for name in names]
        run: Callable[..., object] = run_script
        done = run(self.script, self.arguments, gpu=self.gpu, changes=changes, **self.options)
        trace: Trace = done.trace  # type: ignore[attr-defined]
        return trace


def variant(variants: StepVariants, names: Sequence[str]) -> Trace:
    """The trace of a step with changes, those of code before those of the trace.

    Raises:
        InvalidInput: a change has nothing to change.
    """
    trace = variants.traced([n for n in names if n not in EDITS and n != GRAPHED])
    for name in names:
        if name in EDITS:
            edited = EDITS[name](trace)
            if edited is None:
                raise InvalidInput("there is nothing to change")
            trace = edited
    return trace
