"""What a command works on: a step in a file or module, a suite model, timm, or a saved trace."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavecast import suite
from wavecast.errors import InvalidInput, MissingExtra, UnknownName
from wavecast.trace import Trace, load_trace

MakeStep = Callable[[], Callable[[], Any]]

FORMS = (
    "a suite model (resnet50), FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, timm:NAME, "
    "or a saved trace (FILE.json.gz)"
)


@dataclass(frozen=True)
class Target:
    """A step to trace, or the trace of one."""

    name: str
    make_step: MakeStep | None = None
    trace: Trace | None = None
    samples: int | None = None
    unit: str = "samples"


def resolve(text: str, batch: int | None = None, precision: str | None = None) -> Target:
    """The target that a text names.

    Args:
        text: one of `FORMS`.
        batch: samples in a batch; the target's own if not given.
        precision: one of `wavecast.suite.PRECISIONS`; float32 if not given.
    """
    if batch is not None and batch < 1:
        raise InvalidInput(f"the batch must be at least 1, not {batch}")
    if precision is not None and precision not in suite.PRECISIONS:
        raise InvalidInput(
            f"unknown precision {precision!r}; known: {', '.join(suite.PRECISIONS)}"
        )
    if text.endswith(".gz"):
        return _saved(text, batch, precision)
    if text.startswith("timm:"):
        return _timm(text.removeprefix("timm:"), batch or 32, precision or "fp32")
    if ":" in text:
        return _function(text, batch, precision)
    if text.endswith(".py"):
        raise InvalidInput(f"which function of {text}? write {text}:make_step")
    return _suite_model(text, batch, precision or "fp32")


def _saved(path: str, batch: int | None, precision: str | None) -> Target:
    if batch is not None or precision is not None:
        raise InvalidInput(
            f"{path} is a trace: its batch and precision are fixed; trace the step again to change"
        )
    trace = load_trace(path)
    return Target(Path(path).name, trace=trace, samples=trace.samples, unit=trace.unit)


def _suite_model(name: str, batch: int | None, precision: str) -> Target:
    try:
        model = suite.benchmark(name)
    except UnknownName as error:
        raise UnknownName(f"{error}. A target is {FORMS}") from error
    size = batch or model.default_batch
    return Target(
        f"{model.name}, batch {size}, {precision}",
        make_step=lambda: model.make_step(size, precision),
        samples=size * model.units_per_sample,
        unit=model.unit,
    )


def _function(text: str, batch: int | None, precision: str | None) -> Target:
    place, _, name = text.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        raise InvalidInput(f"there is no file {place}")

    def make_step() -> Callable[[], Any]:
        # Imported while tracing: the file may put tensors on the GPU as it is read.
        make = _attribute(_import(place), name, text)
        step: Callable[[], Any] = make(**_arguments(make, text, batch, precision))
        return step

    return Target(text, make_step=make_step, samples=batch)


def _import(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place.partition(".")[0] and error.name != place:
                raise
            raise InvalidInput(f"there is no module {place}; a target is {FORMS}") from error
        finally:
            sys.path.remove(str(Path.cwd()))
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{place} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _attribute(module: Any, name: str, text: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if found is None:
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        known = f"; it has {', '.join(sorted(functions))}" if functions else ""
        raise UnknownName(f"{text}: there is no function {name!r}{known}")
    if not callable(found):
        raise InvalidInput(f"{text} is a {type(found).__name__}, not a function")
    make: Callable[..., Any] = found
    return make


def _arguments(
    make: Callable[..., Any], text: str, batch: int | None, precision: str | None
) -> dict[str, Any]:
    """Batch and precision, if the function takes them."""
    known = inspect.signature(make).parameters
    given = {"batch": batch, "precision": precision}
    for name, value in given.items():
        if value is not None and name not in known:
            raise InvalidInput(
                f"{text} takes no {name!r}: give it a parameter of that name, or leave --{name} out"
            )
    missing = [
        name
        for name, p in known.items()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and given.get(name) is None
    ]
    if missing:
        hint = " (use --batch and --precision)" if set(missing) <= set(given) else ""
        raise InvalidInput(f"{text} needs a value for {', '.join(missing)}{hint}")
    return {name: value for name, value in given.items() if value is not None}


def _timm(name: str, batch: int, precision: str) -> Target:
    def make_step() -> Callable[[], Any]:
        try:
            import timm
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"timm:{name} needs timm: pip install 'wavecast[models]'"
            ) from error
        if not timm.is_model(name):
            near = timm.list_models(f"*{name}*")[:5]
            hint = f"; near: {', '.join(near)}" if near else ""
            raise UnknownName(f"timm has no model {name!r}{hint}")
        from wavecast.suite.vision import classifier_step

        model = timm.create_model(name)
        return classifier_step(model, (batch, *model.pretrained_cfg["input_size"]), precision)

    return Target(f"timm:{name}, batch {batch}, {precision}", make_step=make_step, samples=batch)
