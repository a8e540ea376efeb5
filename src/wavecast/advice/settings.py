"""The settings that a choice of GPUs searches: ways to run a step that its user allows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial

from wavecast.advice.catalogue import changed_target, lacks_bf16
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.planning.candidates import StepSetting
from wavecast.targets.sources import StepSource
from wavecast.targets.targets import Target, Trait
from wavecast.traces.step import Trace

ALLOWED = ("precision", "compile", "lora", "qlora")
"""What a user may allow, beside what trains the same weights in the same numbers."""
_WIDE = (None, "fp32", "tf32")
_WORDS = {
    "bf16": "bf16 autocast",
    "fp16": "fp16 autocast",
    "lora": "LoRA r=16",
    "qlora": "QLoRA with checkpointing",
    "checkpointing": "checkpointing",
    "compile": "torch.compile",
}

SourceOf = Callable[[Target], StepSource]


def allowed_names(text: str | None) -> frozenset[str]:
    """The settings that a text allows, as in "precision,lora".

    Raises:
        InvalidInput: there is no such setting.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    names = list(ALLOWED) if "all" in names else names
    for name in names:
        if name not in ALLOWED:
            raise InvalidInput(f"--allow {name}: there are {', '.join(ALLOWED)}, and all")
    return frozenset(names)


@dataclass(frozen=True)
class StepSettings:
    """The ways to run one step."""

    target: Target
    allowed: Collection[str]
    source_of: SourceOf

    def __post_init__(self) -> None:
        for name in ("lora", "qlora"):
            if name in self.allowed and not self._takes(name):
                raise InvalidInput(
                    f"--allow {name}: adapters are for hf: models and decoders, not for "
                    f"{self.target.name}"
                )
        if self.allowed and self.target.make_step is None:
            is_script = Trait.SCRIPT in self.target.traits
            what = "is a script" if is_script else "is a trace, which is fixed"
            raise InvalidInput(
                f"--allow: {self.target.name} {what}; wavecast advise says what would help it"
            )

    @property
    def searched(self) -> tuple[StepSetting, ...]:
        """The ways that are tried on all GPUs, the step as it is first."""
        settings = [self._with_smaller(())]
        precisions = self._precisions
        settings += [self._with_smaller((name,)) for name in precisions]
        options = self.target.options
        has = {"lora": options.lora is not None or options.qlora, "qlora": options.qlora}
        for name, is_given in has.items():
            if name in self.allowed and not is_given:
                settings += [self._with_smaller((name, *p)) for p in self._narrow]
        return tuple(settings)

    def compiled(self, changes: tuple[str, ...]) -> StepSetting | None:
        """The way with these changes, compiled, which takes long to trace; None if not allowed."""
        if "compile" not in self.allowed or self.target.compiled:
            return None
        return self._setting((*changes, "compile"))

    @property
    def _is_bf16(self) -> bool:
        """Whether the step as it is computes in bfloat16."""
        target = self.target
        chosen = target.precision, target.options.weights
        return "bf16" in chosen or target.options.qlora

    @property
    def _precisions(self) -> tuple[str, ...]:
        if "precision" not in self.allowed or self.target.precision not in _WIDE:
            return ()
        return "bf16", "fp16"

    @property
    def _narrow(self) -> list[tuple[str, ...]]:
        return [(name,) for name in self._precisions] or [()]

    def _with_smaller(self, names: tuple[str, ...]) -> StepSetting:
        target = self.target
        recomputes = target.options.checkpointing or target.options.recompute is not None
        if recomputes or "qlora" in names or target.make_step is None or Trait.JAX in target.traits:
            return self._setting(names)
        return self._setting(names, self._setting((*names, "checkpointing")))

    def _setting(self, names: tuple[str, ...], smaller: StepSetting | None = None) -> StepSetting:
        words = ", ".join(_WORDS[name] for name in names)
        traces = _Traces(self, names)
        suits = partial(_suits, names, self._is_bf16)
        return StepSetting(words, traces, smaller, suits, names, traces.larger)

    def _takes(self, name: str) -> bool:
        taking = Trait.ADAPTABLE if name == "lora" else Trait.HUGGING_FACE
        return bool(self.target.traits & taking)


class _Traces:
    """The traces of a step with some settings, whose source is made when it is first needed."""

    def __init__(self, settings: StepSettings, names: tuple[str, ...]) -> None:
        self._settings, self._names = settings, names

    def __call__(self, gpu: Device, batch: int | None) -> Trace:
        return self._source.on(gpu, batch)

    def larger(self, gpu: Device, batch: int | None) -> Trace | None:
        """Another step of the same loop that needs more memory."""
        return self._source.larger(gpu, batch)

    @cached_property
    def _source(self) -> StepSource:
        return self._settings.source_of(changed_target(self._settings.target, self._names))


def _suits(names: tuple[str, ...], is_bf16: bool, gpu: Device) -> bool:
    if "bf16" in names or is_bf16:
        return not lacks_bf16(gpu)
    return "fp16" not in names or lacks_bf16(gpu)
