"""The target of a command: a function, script, suite, timm or Hugging Face model, or trace."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wavecast import suite
from wavecast.errors import InvalidInput, MissingExtra, UnknownName, needing_extra
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS, ModelOptions
from wavecast.frameworks.pytorch.huggingface.recipes import INFERENCE, recipe_of
from wavecast.frameworks.target_files import imports_of, is_too_long
from wavecast.reading import open_file
from wavecast.targets.decoders import decoder_of, is_decoder
from wavecast.targets.functions import FORMS, made_step
from wavecast.targets.scripts import (
    NO_SCRIPT_OPTIONS,
    Script,
    ScriptOptions,
    script_of,
)
from wavecast.traces.file import SUFFIXES
from wavecast.traces.step import Trace, load_trace

MakeStep = Callable[[], Callable[[], Any]]


@dataclass(frozen=True)
class Target:
    """A step to trace, a script to run, or a trace."""

    name: str
    """The title of reports: the target with its batch and precision."""
    make_step: MakeStep | None = None
    script: Script | None = None
    trace: Trace | None = None
    samples: int | None = None
    """How many `unit`s one step takes, for the throughput. None when unknown."""
    unit: str = "samples"
    text: str = ""
    """The target as the user wrote it."""
    model: str = ""
    """The model with all its sizes and its parameters, where these are chosen by options."""
    batch: int | None = None
    """The batch of the step. None when a function or script chooses its own, or for a trace."""
    precision: str | None = None
    """The precision of the step. None when a function chooses its own, or for a saved trace."""
    assume: Mapping[str, Any] | None = None
    """What the step reads from the GPU, by line of code, for `wavecast.trace`."""
    options: ModelOptions = NO_OPTIONS
    """How a Hugging Face model is trained."""
    ranks: int | None = None
    """How many ranks the step's own parallel code has, for `wavecast.trace`."""
    compiled: bool | str = False
    """Whether to trace the step as if it were compiled, or in which mode of torch.compile."""
    changes: tuple[str, ...] = ()
    """Changes to the step's code, by the names of `wavecast.frameworks.pytorch.changes`."""
    jax: bool = False
    """Whether `make_step` returns a JAX step and its arguments."""

    @property
    def is_measured(self) -> bool:
        """Whether it is a measured trace, whose times are scaled rather than predicted."""
        return self.trace is not None and self.trace.measurement is not None

    @property
    def is_library_model(self) -> bool:
        """Whether the code is a library's or the suite's, and the same at every batch."""
        is_function = ":" in self.text and not self.text.startswith(("hf:", "timm:"))
        return self.make_step is not None and bool(self.text) and not is_function and not self.jax

    def changed(self, batch: int | None = None, precision: str | None = None) -> Target:
        """The same step at another batch or in another precision.

        Raises:
            InvalidInput: it is a saved trace, or a function or script that takes no batch.
        """
        if self.trace is not None:
            raise InvalidInput(f"{self.name} is a trace, which is fixed; name the step itself")
        running = NO_SCRIPT_OPTIONS if self.script is None else self.script.options
        batch, precision = batch or self.batch, precision or self.precision
        step = resolve(self.text, batch, precision, self.options, running)
        kept = {name: getattr(self, name) for name in ("assume", "ranks", "compiled", "changes")}
        return replace(step, **kept)


def resolve(
    text: str,
    batch: int | None = None,
    precision: str | None = None,
    options: ModelOptions = NO_OPTIONS,
    running: ScriptOptions = NO_SCRIPT_OPTIONS,
) -> Target:
    """The target that a text names.

    Args:
        text: the target, in one of the `FORMS`.
        batch: the number of samples in a batch. None for the target's default.
        precision: one of `wavecast.suite.PRECISIONS`. None for float32.
        options: how an `hf:` target is trained. Other targets take none.
        running: how a script is run. Other targets take none.
    """
    _check(text, batch, precision, options)
    if (script := script_of(text, running)) is not None:
        return script_target(script, batch, precision)
    if running.given():
        raise InvalidInput(f"{running.given()[0]} is for training scripts, not for {text}")
    return _of_step(text, batch, precision, options)


def _of_step(text: str, batch: int | None, precision: str | None, options: ModelOptions) -> Target:
    """The target that is no script."""
    if text.startswith("hf:"):
        return _hugging_face(text.removeprefix("hf:"), batch, precision, options)
    if text.endswith((".gz", ".json", *SUFFIXES)):
        return _saved(text, batch, precision)
    if text.startswith("jax:") and text.count(":") == 1:
        from wavecast.frameworks.jax.benchmarks import jax_benchmark

        return Target(**jax_benchmark(text.removeprefix("jax:"), batch, precision))
    if text.startswith("timm:"):
        return _timm(text.removeprefix("timm:"), batch or 32, precision or "fp32")
    if ":" in text:
        return _function(text, batch, precision)
    if not text.strip():
        raise InvalidInput(f"the target is empty; a target is {FORMS}")
    if Path(text).is_dir() and not _is_suite_model(text):
        raise InvalidInput(f"{text} is a directory; a target is {FORMS}")
    if is_decoder(text, options):
        decoder = decoder_of(text, batch or 1, precision or "fp32", options)
        return Target(**vars(decoder), unit="tokens", text=text, options=options)
    return _suite_model(text, batch, precision or "fp32")


def _check(text: str, batch: int | None, precision: str | None, options: ModelOptions) -> None:
    if is_too_long(text):
        raise InvalidInput(
            f"the target {text[:40]!r}... of {len(text)} letters is too long; a target is {FORMS}"
        )
    if batch is not None and batch < 1:
        raise InvalidInput(f"the batch must be at least 1, not {batch}")
    if precision is not None and precision not in suite.PRECISIONS:
        raise InvalidInput(f"unknown precision {precision!r}; known: {', '.join(suite.PRECISIONS)}")
    if is_decoder(text, options):
        return
    options.refuse_sizes(text)
    if options.given() and not text.startswith("hf:"):
        raise InvalidInput(
            f"{', '.join(options.given())}: only for Hugging Face models (hf:NAME), not for {text}"
        )


def with_adapters(target: Target, lora: str) -> Target | None:
    """The target with adapters instead of all weights; None if it has them, or takes none."""
    options = target.options
    takes = target.text.startswith("hf:") or is_decoder(target.text, options)
    if not takes or options.lora is not None or options.qlora:
        return None
    step = resolve(target.text, target.batch, target.precision, replace(options, lora=lora))
    kept = {name: getattr(target, name) for name in ("assume", "ranks", "compiled", "changes")}
    return replace(step, **kept)


@dataclass(frozen=True)
class SmallerStep:
    """A step that trains the same model with less memory."""

    target: Target
    accumulated: bool = False
    """Whether its update uses the gradients of two batches, which are added up."""


def smaller_variants(target: Target) -> dict[str, SmallerStep]:
    """Variants of a step that train the same model with less memory, by what they change."""
    if target.trace is not None:
        return {}
    variants: dict[str, SmallerStep] = {}
    if target.precision in (None, "fp32", "tf32"):
        variants["bfloat16 autocast"] = SmallerStep(target.changed(precision="bf16"))
    if target.batch is not None and target.batch > 1:
        half = target.batch // 2
        smaller = SmallerStep(target.changed(batch=half), accumulated=True)
        variants[f"batch {half}, accumulated twice"] = smaller
    return variants


def script_target(script: Script, batch: int | None = None, precision: str | None = None) -> Target:
    """A script, whose batch its own option sets and whose precision is changed by autocast."""
    if precision == "fp32":
        raise InvalidInput(
            f"{script.path} says itself where it computes in less than float32; leave out "
            "--precision fp32"
        )
    asked = script if batch is None else script.with_batch(batch)
    how = "" if precision is None else f", {precision}"
    return Target(
        f"{asked.text}{how}",
        script=asked,
        text=script.text,
        batch=asked.batch if batch is None else batch,
        precision=precision,
    )


def _saved(path: str, batch: int | None, precision: str | None) -> Target:
    trace = _read_trace(path)
    if not trace.calls:
        raise InvalidInput(f"the trace {path} has no ops; trace the step again")
    if batch is not None and trace.samples is None and trace.measurement is not None:
        trace = replace(trace, samples=batch)  # a profiler file does not name its batch
    elif batch is not None:
        raise InvalidInput(
            f"{path} is a trace, whose batch is fixed; trace the step again to change it, or give "
            "traces of three batches to wavecast extrapolate"
        )
    if precision is not None and trace.measurement is None:
        raise InvalidInput(
            f"{path} is a trace, whose precision is fixed; trace the step again to change it"
        )
    return Target(Path(path).name, trace=trace, samples=trace.samples, unit=trace.unit)


def _read_trace(path: str) -> Trace:
    """The trace in a file: one of our own, or a torch.profiler file. Both are JSON."""
    if _is_profile(Path(path)):
        from wavecast.frameworks.kineto import read_kineto

        return read_kineto(path)
    return load_trace(path)


_PROFILE_FIELDS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')


def _is_profile(path: Path) -> bool:
    if path.suffix == ".json":  # traces of our own are always compressed
        return True
    try:
        with open_file(path, packed=True) as file:
            beginning = file.read(1 << 16)
    except InvalidInput:
        return False  # load_trace will say what is wrong
    return any(field in beginning for field in _PROFILE_FIELDS)


def _is_suite_model(name: str) -> bool:
    try:
        suite.benchmark(name)
    except UnknownName:
        return False
    return True


def _suite_model(name: str, batch: int | None, precision: str) -> Target:
    try:
        model = suite.benchmark(name)
    except UnknownName as error:
        stop = "" if str(error).endswith("?") else "."
        raise UnknownName(f"{error}{stop} A target is {FORMS}") from error
    size = batch or model.default_batch
    return Target(
        f"{model.name}, batch {size}, {precision}",
        make_step=lambda: model.make_step(size, precision),
        samples=round(size * model.units_per_sample),
        unit=model.unit,
        text=model.name,
        batch=size,
        precision=precision,
    )


def _function(text: str, batch: int | None, precision: str | None) -> Target:
    place, _, name = text.removeprefix("jax:").rpartition(":")
    is_file = place.endswith(".py")
    if not place or not name or (place.startswith(".") and not is_file):
        raise InvalidInput(
            f"{text!r} does not name a function of a file or module; a target is {FORMS}"
        )
    if is_file and not Path(place).is_file():
        raise InvalidInput(f"there is no file {place} (looked in {Path.cwd()})")

    imports = imports_of(place)

    def make_step() -> Any:
        return made_step(place, name, text, batch, precision, imports.keras)

    return Target(
        text,
        make_step,
        samples=batch,
        text=text,
        batch=batch,
        precision=precision,
        jax=text.startswith("jax:") or imports.jax,
    )


def _timm(name: str, batch: int, precision: str) -> Target:
    def make_step() -> Callable[[], Any]:
        try:
            import timm
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"timm:{name} needs {error.name}: pip install 'wavecast[models]'"
            ) from error
        if not timm.is_model(name):
            near = difflib.get_close_matches(name, timm.list_models(), n=5)
            hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() lists them"
            raise UnknownName(f"timm has no model {name!r}; {hint}")
        from wavecast.suite.models.vision import classifier_step

        model = timm.create_model(name)
        return classifier_step(model, (batch, *model.pretrained_cfg["input_size"]), precision)

    return Target(
        f"timm:{name}, batch {batch}, {precision}",
        make_step=make_step,
        samples=batch,
        text=f"timm:{name}",
        batch=batch,
        precision=precision,
    )


def _hugging_face(
    name: str, batch: int | None, precision: str | None, options: ModelOptions
) -> Target:
    recipe = recipe_of(name, batch, precision, options)

    def make_step() -> Callable[[], Any]:
        with needing_extra(f"hf:{name}"):
            from wavecast.frameworks.pytorch.huggingface import inference, training
        infers = recipe.task.name in INFERENCE
        return inference.make_step(recipe) if infers else training.make_step(recipe)

    return Target(
        recipe.title,
        make_step=make_step,
        samples=recipe.samples,
        unit=recipe.task.unit,
        text=f"hf:{name}",
        batch=recipe.batch,
        precision=recipe.precision,
        options=options,
    )
