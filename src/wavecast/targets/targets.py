"""The target of a command: a function, script, suite, timm or Hugging Face model, or trace."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Flag, auto
from functools import cache
from pathlib import Path
from typing import Any

from wavecast import suite
from wavecast.errors import InvalidInput, MissingExtra, UnknownName, needing_extra
from wavecast.frameworks.pytorch.huggingface.options import (
    DECODER_WAYS,
    MIXTURE_SIZES,
    NO_OPTIONS,
    SIZES,
    WEIGHTS,
    ModelOptions,
    lora_of,
)
from wavecast.frameworks.pytorch.huggingface.recipes import INFERENCE, recipe_of
from wavecast.frameworks.target_files import (
    FORMS,
    imports_of,
    is_keras_step,
    is_python,
    is_too_long,
    made_step,
)
from wavecast.parallel.strategy import HABITS, Parallel
from wavecast.reading import open_file
from wavecast.suite.tags import complete_sizes
from wavecast.targets.scripts import NO_SCRIPT_OPTIONS, Script, ScriptOptions, script_of
from wavecast.traces.file import SUFFIXES
from wavecast.traces.step import Trace, load_trace

MakeStep = Callable[[], Callable[[], Any]]


class Trait(Flag):
    """What holds for a target, whatever it was called."""

    NONE = 0
    SAVED = auto()
    """A trace, which is fixed."""
    MEASURED = auto()
    """A measured trace, whose times are scaled rather than predicted."""
    SCRIPT = auto()
    JAX = auto()
    """`make_step` returns a JAX step and its arguments."""
    LIBRARY = auto()
    """Its code is a library's or the suite's, and the same at every batch."""
    HUGGING_FACE = auto()
    """A model of Hugging Face, which takes all `ModelOptions` but sizes."""
    DECODER = auto()
    """A decoder of any size."""
    GENERATES = auto()
    """It reads prompts or makes tokens, and trains nothing."""
    ADAPTABLE = HUGGING_FACE | DECODER
    """Adapters and checkpointing are options of its own."""


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
    kind: Trait = Trait.NONE
    """What holds for all targets of its kind."""

    @property
    def traits(self) -> Trait:
        """All that holds for it."""
        traits = self.kind
        if self.trace is not None:
            traits |= Trait.SAVED if self.trace.measurement is None else _MEASURED_TRACE
        if self.script is not None:
            traits |= Trait.SCRIPT
        return traits | Trait.GENERATES if self.options.task in INFERENCE else traits

    @property
    def tracing(self) -> dict[str, Any]:
        """How it is traced: what stays if another batch, precision or option is asked for."""
        names = ("assume", "ranks", "compiled", "changes")
        return {name: getattr(self, name) for name in names}

    def changed(
        self,
        batch: int | None = None,
        precision: str | None = None,
        options: ModelOptions | None = None,
    ) -> Target:
        """The same step at another batch, in another precision, or with other options.

        Raises:
            InvalidInput: it is a saved trace, or a function or script that takes no batch.
        """
        if self.trace is not None:
            raise InvalidInput(f"{self.name} is a trace, which is fixed; name the step itself")
        running = NO_SCRIPT_OPTIONS if self.script is None else self.script.options
        batch, precision = batch or self.batch, precision or self.precision
        step = resolve(self.text, batch, precision, options or self.options, running)
        return replace(step, **self.tracing)


_MEASURED_TRACE = Trait.SAVED | Trait.MEASURED


def resolve(
    text: str,
    batch: int | None = None,
    precision: str | None = None,
    options: ModelOptions = NO_OPTIONS,
    running: ScriptOptions = NO_SCRIPT_OPTIONS,
) -> Target:
    """The target that a text names.

    Args:
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
    parse = next(parse for is_of_kind, parse in _KINDS if is_of_kind(text, options))
    return parse(text, batch, precision, options)


def _check(text: str, batch: int | None, precision: str | None, options: ModelOptions) -> None:
    if is_too_long(text):
        raise InvalidInput(
            f"the target {text[:40]!r}... of {len(text)} letters is too long; a target is {FORMS}"
        )
    if batch is not None and batch < 1:
        raise InvalidInput(f"the batch must be at least 1, not {batch}")
    if precision is not None and precision not in suite.PRECISIONS:
        raise InvalidInput(f"unknown precision {precision!r}; known: {', '.join(suite.PRECISIONS)}")
    if _is_decoder(text, options):
        return
    options.refuse_sizes(text)
    if options.given() and hugging_face_name(text) is None:
        raise InvalidInput(
            f"{', '.join(options.given())}: only for Hugging Face models (hf:NAME), not for {text}"
        )


def with_adapters(target: Target, lora: str) -> Target | None:
    """The target with adapters instead of all weights; None if it has them, or takes none."""
    options = target.options
    if not target.traits & Trait.ADAPTABLE or options.lora is not None or options.qlora:
        return None
    return target.changed(options=replace(options, lora=lora))


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


_EVERYTHING = ("none", "full")


def recompute_ways(target: Target) -> tuple[str, ...]:
    """How much of its activations a target can recompute, the least first; or what it asks for."""
    asked = target.options.recompute or ("full" if target.options.checkpointing else None)
    if asked is not None or target.trace is not None:
        return (asked or "none",)
    if Trait.DECODER in target.traits and target.options.unfused_attention:
        return ("none", "selective", "full")
    return _EVERYTHING if target.traits & Trait.ADAPTABLE else ("none",)


def recomputing(target: Target, way: str) -> Target:
    """The target, with so much recomputed: one of its `recompute_ways`."""
    if way not in ("selective", "full") or way == target.options.recompute:
        return target
    change: dict[str, Any] = {"checkpointing": True} if way == "full" else {"recompute": way}
    return target.changed(options=replace(target.options, **change))


# The kinds of targets: who is asked whether a text is one, and what then becomes of it.


_HUGGING_FACE, _JAX, _TIMM = "hf:", "jax:", "timm:"
_SAVED = (".gz", ".json", *SUFFIXES)


def hugging_face_name(text: str) -> str | None:
    """The name of a Hugging Face model that a target is; None if it is no such model."""
    return text.removeprefix(_HUGGING_FACE) if text.startswith(_HUGGING_FACE) else None


def hugging_face_target(name: str) -> str:
    """The target of a Hugging Face model."""
    return f"{_HUGGING_FACE}{name}"


def begins_with_path(text: str) -> bool:
    """Whether a target begins with the path of a file: a script, a function's, or a trace."""
    is_file = ".py" in text or text.endswith(_SAVED)
    return is_file and ":/" not in text and hugging_face_name(text) is None


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


def _saved(path: str, batch: int | None, precision: str | None, _options: ModelOptions) -> Target:
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


def _suite_model(
    text: str, batch: int | None, precision: str | None, _options: ModelOptions
) -> Target:
    try:
        model = suite.benchmark(text)
    except UnknownName as error:
        if not text.strip():
            raise InvalidInput(f"the target is empty; a target is {FORMS}") from None
        if Path(text).is_dir():
            raise InvalidInput(f"{text} is a directory; a target is {FORMS}") from None
        stop = "" if str(error).endswith("?") else "."
        raise UnknownName(f"{error}{stop} A target is {FORMS}") from error
    size, precision = batch or model.default_batch, precision or "fp32"
    return Target(
        f"{model.name}, batch {size}, {precision}",
        make_step=lambda: model.make_step(size, precision),
        samples=round(size * model.units_per_sample),
        unit=model.unit,
        text=model.name,
        batch=size,
        precision=precision,
        kind=Trait.LIBRARY,
    )


_JAX_MODELS = {
    "resnet50": (64, "samples", 1),
    "gpt2": (8, "tokens", 1024),
    "lstm": (64, "tokens", 256),
}
"""The models of the suite that are written in JAX: their batch, unit, and units of a sample."""
_JAX_PRECISIONS = ("fp32", "tf32", "bf16")
"""JAX rounds the operands of float32 matmuls to TF32 on GPUs that have it, so two are the same."""


def _jax_model(
    text: str, batch: int | None, precision: str | None, _options: ModelOptions
) -> Target:
    name = text.removeprefix(_JAX)
    if name not in _JAX_MODELS:
        listed = ", ".join(f"{_JAX}{known}" for known in _JAX_MODELS)
        raise UnknownName(f"no model in JAX is called {name!r}; there are {listed}")
    if precision not in (None, *_JAX_PRECISIONS):
        raise InvalidInput(f"{text} has no {precision}; known: {', '.join(_JAX_PRECISIONS)}")
    default_batch, unit, units_per_sample = _JAX_MODELS[name]
    size, chosen = batch or default_batch, precision or "fp32"

    def make_step() -> Any:
        with needing_extra(text):
            from wavecast.suite import jax_models
        return getattr(jax_models, name)(size, chosen)

    return Target(
        f"{text}, batch {size}, {chosen}",
        make_step=make_step,
        samples=size * units_per_sample,
        unit=unit,
        text=text,
        batch=size,
        precision=chosen,
        kind=Trait.JAX,
    )


def _function(
    text: str, batch: int | None, precision: str | None, _options: ModelOptions
) -> Target:
    place, _, name = text.removeprefix(_JAX).rpartition(":")
    is_file = is_python(place)
    if not place or not name or (place.startswith(".") and not is_file):
        raise InvalidInput(
            f"{text!r} does not name a function of a file or module; a target is {FORMS}"
        )
    if is_file and not Path(place).is_file():
        raise InvalidInput(f"there is no file {place} (looked in {Path.cwd()})")
    imports = imports_of(place)

    def make_step() -> Any:
        step = made_step(place, name, text, batch, precision, imports.keras)
        if imports.keras == "torch" and is_keras_step(step):
            from wavecast.frameworks.pytorch import keras_steps

            return keras_steps.train_step(step)
        return step

    return Target(
        text,
        make_step,
        samples=batch,
        text=text,
        batch=batch,
        precision=precision,
        kind=Trait.JAX if text.startswith(_JAX) or imports.jax else Trait.NONE,
    )


def _timm(text: str, batch: int | None, precision: str | None, _options: ModelOptions) -> Target:
    name, size, chosen = text.removeprefix(_TIMM), batch or 32, precision or "fp32"

    def make_step() -> Callable[[], Any]:
        try:
            import timm
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"{text} needs {error.name}: pip install 'wavecast[models]'"
            ) from error
        if not timm.is_model(name):
            near = difflib.get_close_matches(name, timm.list_models(), n=5)
            hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() lists them"
            raise UnknownName(f"timm has no model {name!r}; {hint}")
        from wavecast.suite.models.vision import classifier_step

        model = timm.create_model(name)
        return classifier_step(model, (size, *model.pretrained_cfg["input_size"]), chosen)

    return Target(
        f"{text}, batch {size}, {chosen}",
        make_step=make_step,
        samples=size,
        text=text,
        batch=size,
        precision=chosen,
        kind=Trait.LIBRARY,
    )


def _hugging_face(
    text: str, batch: int | None, precision: str | None, options: ModelOptions
) -> Target:
    recipe = recipe_of(text.removeprefix(_HUGGING_FACE), batch, precision, options)

    def make_step() -> Callable[[], Any]:
        with needing_extra(text):
            from wavecast.frameworks.pytorch.huggingface import inference, training
        infers = recipe.task.name in INFERENCE
        return inference.make_step(recipe) if infers else training.make_step(recipe)

    return Target(
        recipe.title,
        make_step=make_step,
        samples=recipe.samples,
        unit=recipe.task.unit,
        text=text,
        batch=recipe.batch,
        precision=recipe.precision,
        options=options,
        kind=Trait.LIBRARY | Trait.HUGGING_FACE,
    )


# Decoders of any size: `wavecast predict gpt --layers 24 --hidden 2048`.


DECODERS = ("gpt", "llama", "mixtral")
"""The decoders of any size: functions of `wavecast.suite.decoders`."""
_TRAINING = ("seq", "weights", "checkpointing", "lora", "targets", *DECODER_WAYS)
_DROPOUT = 0.1
"""The share of scores that unfused attention drops: Megatron's default."""


def sizes_of(name: str) -> tuple[str, ...]:
    """The sizes that a decoder takes."""
    return (*SIZES, *MIXTURE_SIZES) if name == "mixtral" else SIZES


def _is_decoder(text: str, options: ModelOptions) -> bool:
    """`llama` without sizes is the suite's Llama 3.2 1B."""
    return text in DECODERS and (text != "llama" or bool(options.sizes()))


def _decoder(text: str, batch: int | None, precision: str | None, options: ModelOptions) -> Target:
    taken = {"--" + option.replace("_", "-") for option in (*_TRAINING, *sizes_of(text))}
    if others := [name for name in options.given() if name not in taken]:
        raise InvalidInput(
            f"{', '.join(others)}: not for {text}, which takes {', '.join(sorted(taken))}"
        )
    weights = options.weights or "fp32"
    if weights not in WEIGHTS:
        raise InvalidInput(f"unknown --weights {weights!r}; known: {', '.join(WEIGHTS)}")
    sequences, chosen = batch or 1, precision or "fp32"
    shape: dict[str, Any] = {**options.sizes(), "seq": options.seq}
    if options.untied:
        shape["tied"] = False
    ways = _decoder_ways(options)

    def make_step() -> Callable[[], Any]:
        with needing_extra("tracing"):
            from wavecast.suite import decoders
        recompute = options.recompute or ("full" if options.checkpointing else "none")
        make: Callable[..., Callable[[], Any]] = getattr(decoders, text)
        adapted = {} if options.targets is None else {"adapted": tuple(options.targets.split(","))}
        return make(
            sequences, chosen, weights=weights, recompute=recompute, **shape, **ways, **adapted
        )

    model = _model_name(text, shape, ways)
    return Target(
        f"{model}, batch {sequences}, {chosen}",
        make_step=make_step,
        samples=sequences * int(complete_sizes(text, shape)["seq"]),
        unit="tokens",
        text=text,
        model=model,
        batch=sequences,
        precision=chosen,
        options=options,
        kind=Trait.LIBRARY | Trait.DECODER,
    )


def _decoder_ways(options: ModelOptions) -> dict[str, Any]:
    """How a decoder is trained, as the arguments of its function in the suite."""
    ways: dict[str, Any] = {}
    if adapters := lora_of(options):
        if adapters.dropout:
            raise InvalidInput(
                f"--lora with dropout={adapters.dropout}: decoders of any size have no dropout"
            )
        ways["lora"] = adapters.rank
    if options.unfused_attention:
        ways |= {"fused_attention": False, "dropout": _DROPOUT}
    if options.joint:
        ways["joint"] = True
    return ways


def _model_name(text: str, shape: Mapping[str, Any], ways: Mapping[str, Any]) -> str:
    """The model with all of its sizes and its parameters: nothing is chosen silently."""
    given = {name: value for name, value in shape.items() if value is not None}
    sizes = ", ".join(f"{name} {value}" for name, value in (given | dict(ways)).items())
    others = complete_sizes(text, shape)
    usual = ", ".join(f"{n} {size}" for n, size in others.items() if size and n not in given)
    count = _parameters(text, tuple(sorted(given.items())))
    counted = f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
    parts = [sizes, usual and f"by default {usual}", f"{counted} parameters"]
    return f"{text} ({'; '.join(part for part in parts if part)})"


@cache
def _parameters(text: str, shape: tuple[tuple[str, Any], ...]) -> int:
    with needing_extra("tracing"):
        from wavecast.suite.decoders import parameter_count
    return parameter_count(text, **dict(shape))


_KINDS: tuple[
    tuple[
        Callable[[str, ModelOptions], bool],
        Callable[[str, int | None, str | None, ModelOptions], Target],
    ],
    ...,
] = (
    (lambda text, _: text.startswith(_HUGGING_FACE), _hugging_face),
    (lambda text, _: text.endswith(_SAVED), _saved),
    (lambda text, _: text.startswith(_JAX) and text.count(":") == 1, _jax_model),
    (lambda text, _: text.startswith(_TIMM), _timm),
    (lambda text, _: ":" in text, _function),
    (_is_decoder, _decoder),
    (lambda *_: True, _suite_model),
)
"""The kinds of targets beside scripts, in the order in which a text is looked at: whether it is of
the kind, and what it then means with a batch, a precision and options."""


# A strategy as users write it, data=8,shard=3,cluster=dgx-h100, for a target.


_TEXTS = ("cluster", "schedule", "offload")
_SWITCHES = ("sequence", "reshard", "reentrant", *HABITS)


def strategy_of(text: str, target: str, options: ModelOptions = NO_OPTIONS) -> Parallel:
    """The strategy that the option names, with the tensor plan of a Hugging Face model.

    Args:
        options: how an `hf:` target is trained. Adapters wrap its layers, so its plan is not used.

    Raises:
        InvalidInput: it is malformed, as `parse_parallel` says.
    """
    strategy = parse_parallel(text)
    if strategy.tensor == 1:
        return strategy
    return replace(strategy, tensor_plan=plan_of_target(target, options))


def plan_of_target(target: str, options: ModelOptions = NO_OPTIONS) -> dict[str, str] | None:
    """The tensor plan that transformers has for a target; None if the rule is to find one."""
    name = hugging_face_name(target)
    if name is None or options.lora or options.qlora:
        return None
    from wavecast.frameworks.pytorch.huggingface.training import tensor_plan_of

    return tensor_plan_of(name, options.task)


def parse_parallel(text: str) -> Parallel:
    """The strategy that the option names; one GPU if it is empty.

    Raises:
        InvalidInput: it is not of the form AXIS=N,..., or the strategy contradicts itself.
    """
    known = [field.name for field in fields(Parallel) if field.name != "tensor_plan"]
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise InvalidInput(
                f"--parallel does not know {name!r}; it takes {', '.join(known)}, as in "
                "data=8,shard=3"
            )
        if name in values:
            raise InvalidInput(f"--parallel has {name} twice; give it once")
        values[name] = _value(name, value if equals else "", text)
    if text and not values:
        raise InvalidInput(f"--parallel {text!r} names no axis; write AXIS=N, as in data=8,shard=3")
    return Parallel(**values)


def _value(name: str, value: str, text: str) -> Any:
    if name in _TEXTS:
        if not value:
            raise InvalidInput(f"--parallel {text}: {name} needs a name, as in {name}=NAME")
        return value
    if name in _SWITCHES:
        if value.lower() in ("", "yes", "true", "1"):
            return True
        if value.lower() in ("no", "false", "0"):
            return False
        raise InvalidInput(f"--parallel {text}: {name} is yes or no, not {value!r}")
    longest = 15 if name == "bucket_bytes" else 9
    if not value.isascii() or not value.isdigit() or len(value) > longest:
        raise InvalidInput(f"--parallel {text}: {name} is a whole number, not {value!r}")
    return int(value)
