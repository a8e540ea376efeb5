"""The variants of a step: its trace with some changes, from its code or from its trace alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from wavecast.advice.catalogue import CHANGES, OF_JAX
from wavecast.advice.trace_changes import EDITS
from wavecast.errors import InvalidInput
from wavecast.frameworks.decoders import is_decoder
from wavecast.frameworks.step_source import run_target, traced_target
from wavecast.frameworks.targets import Target, resolve
from wavecast.hardware.device import Device
from wavecast.traces.script import Loading, ScriptRun
from wavecast.traces.step import Trace

GRAPHED = "cuda_graph"
"""The change that concerns the host alone: the trace stays as it is."""
_ADAPTERS = ("lora", "qlora")
_PRECISIONS = ("bf16", "fp16", "tf32")
_MODES: dict[str, bool | str] = {"compile": True, "compile_graphs": "reduce-overhead"}


class StepVariants(Protocol):
    """The traces of a step with changes."""

    @property
    def name(self) -> str:
        """The title of reports."""
        ...

    @property
    def unsuitable(self) -> frozenset[str]:
        """The changes that have no meaning for such a step."""
        ...

    def traced(self, names: Sequence[str]) -> Trace:
        """The trace with changes to the code.

        Raises:
            WavecastError: the step cannot be changed so; the message says why.
        """
        ...

    @property
    def loading(self) -> Loading | None:
        """The data loader of a script that was traced before; None without one."""
        ...


@dataclass(frozen=True)
class TargetVariants:
    """Variants of a target: a function, a script, a model, or a trace, which is as it is."""

    target: Target
    gpu: Device
    _first: list[ScriptRun] = field(default_factory=list)
    """The run of a script as it is, once it was traced."""

    @property
    def name(self) -> str:
        """The title of reports."""
        return self.target.name

    @property
    def unsuitable(self) -> frozenset[str]:
        """All that need code for a trace; adapters for all but Hugging Face models."""
        if self.target.trace is not None:
            return frozenset(CHANGES) - {*EDITS, GRAPHED}
        if self.target.jax:
            return frozenset(CHANGES) - {*OF_JAX, "batch"}
        if self.target.script is not None:
            return OF_JAX | {*_ADAPTERS, "compile_graphs"}
        is_model = self.target.text.startswith("hf:")
        if not is_model or self.target.options.lora or self.target.options.qlora:
            return OF_JAX | {*_ADAPTERS}
        return OF_JAX

    def traced(self, names: Sequence[str]) -> Trace:
        """The trace with changes to the code."""
        if self.target.trace is not None:
            return self.target.trace
        target = changed_target(self.target, names)
        if target.script is None:
            return traced_target(target, self.gpu)
        if names:
            again = replace(target.script.options, loader=False, quiet=True)
            script = replace(target.script, options=again)
            return traced_target(replace(target, script=script), self.gpu)
        self._first[:] = [run_target(target, self.gpu)]
        return self._first[0].trace

    @property
    def loading(self) -> Loading | None:
        """The data loader of a script that was traced before; None without one."""
        return self._first[0].loading if self._first else None


def changed_target(target: Target, names: Sequence[str]) -> Target:
    """The target with changes, by the names of the catalogue.

    Raises:
        InvalidInput: the step cannot be changed so.
    """
    for name in names:
        target = _changed(target, name)
    return target


def _changed(target: Target, name: str) -> Target:
    if name in _PRECISIONS and target.precision is not None:
        return target.changed(precision=name)
    if name == "jax_bf16":
        return target.changed(precision="bf16")
    if name in _MODES:
        return replace(target, compiled=_MODES[name])
    if name == "batch" and target.script is not None:
        return replace(target, changes=(*target.changes, "twice_the_batch"))
    if name == "batch":
        if target.batch is None:
            raise InvalidInput("its batch is not known; give --batch, which the step then takes")
        return target.changed(batch=2 * target.batch)
    is_model = target.text.startswith("hf:") or is_decoder(target.text, target.options)
    if name in _ADAPTERS or (name == "checkpointing" and is_model):
        return _with_options(target, name)
    return replace(target, changes=(*target.changes, name))


def _with_options(target: Target, name: str) -> Target:
    options = {
        "lora": replace(target.options, lora="r=16"),
        "qlora": replace(target.options, qlora=True, weights=None, checkpointing=True),
        "checkpointing": replace(target.options, checkpointing=True),
    }[name]
    step = resolve(target.text, target.batch, target.precision, options)
    kept = {name: getattr(target, name) for name in ("assume", "ranks", "compiled", "changes")}
    return replace(step, **kept)


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
