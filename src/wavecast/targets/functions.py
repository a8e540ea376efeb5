"""Functions that a target names, imported and called: they build a step and return it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, UnknownName, WavecastError
from wavecast.frameworks import keras_models
from wavecast.frameworks.target_files import first_line, import_file, place_of

FORMS = (
    "a suite model (resnet50, jax:gpt2), a training script (train.py, its arguments after --), "
    "FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, timm:NAME, hf:NAME, a saved or measured trace, or "
    "a torch.profiler file (FILE.json.gz, FILE.trace, FILE.json)"
)


def made_step(
    place: str,
    name: str,
    text: str,
    batch: int | None,
    precision: str | None,
    keras: str | None = None,
) -> Any:
    """What a function returns that builds a step.

    It is imported while the step is traced, because its file may put tensors on the GPU.

    Args:
        place: its file, or its module.
        name: its name there.
        text: the target as the user wrote it.
        batch: the batch that it is given, if any.
        precision: the precision that it is given, if any.
        keras: the framework that Keras shall run on, if the file imports Keras.
    """
    if keras is not None:
        return _keras_step(place, name, text, batch, precision, keras)
    make = attribute_of(_import(place), name, text)
    step = make(**arguments_for(make, text, batch, precision))
    refuse_async(step, f"the step that {text} returned")
    return step


def _keras_step(
    place: str, name: str, text: str, batch: int | None, precision: str | None, backend: str
) -> Any:
    """What a function of a file that imports Keras made: a model with its batch, or another step.

    Keras sets the precision, and the batch of a model alone, if the function does not.
    """
    keras_models.choose_backend(backend)
    make = attribute_of(_import(place), name, text)
    parameters = inspect.signature(make).parameters
    if "precision" not in parameters:
        keras_models.set_precision(precision)
        precision = None
    given = batch if "batch" in parameters else None
    made = make(**arguments_for(make, text, given, precision))
    if not keras_models.is_step(made):
        return made
    if batch is not None and given is None and isinstance(made, tuple):
        raise InvalidInput(f"{text} has no parameter 'batch'; add one, or leave out --batch")
    if keras_models.is_model(made):
        made = keras_models.model_and_batch(made, batch)
    if backend == "torch":
        from wavecast.frameworks.pytorch import keras_steps

        return keras_steps.train_step(made)
    return made


def _import(place: str) -> Any:
    is_file = place.endswith(".py")
    folder = str(Path(place).resolve().parent if is_file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        return import_file(place) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if is_file or error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise InvalidInput(
                f"{place} fails on import: {error}; install that module first"
            ) from error
        raise InvalidInput(
            f"there is no module {place} (no {error.name!r} here or installed); a target is {FORMS}"
        ) from error
    except WavecastError:
        raise
    except SystemExit as error:
        raise InvalidInput(
            f"{place} fails on import: it calls sys.exit({error.code!r}); a target is imported, so "
            "put the script's main part under: if __name__ == '__main__'"
        ) from error
    except Exception as error:
        raise InvalidInput(
            f"{place} fails on import: {type(error).__name__}: {first_line(error)} "
            f"({place_of(error, folder)})"
        ) from error
    finally:
        sys.path.remove(folder)


# The function that a target names: whether it can build a step, and with which arguments.


def attribute_of(module: Any, name: str, text: str) -> Callable[..., Any]:
    """The function of a module that a target names."""
    value = getattr(module, name, None)
    if value is None:
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
        names = ", ".join(sorted(functions)) if functions else "no function at all"
        raise UnknownName(f"{text}: there is no function {name!r}; it has {names}")
    if not callable(value):
        raise InvalidInput(
            f"{text} is not a function but of type {type(value).__name__}; name one that builds "
            "model, optimizer and inputs and returns the function that runs one step"
        )
    refuse_async(value, text)
    make: Callable[..., Any] = value
    return make


def refuse_async(function: Any, text: str) -> None:
    """Refuse functions whose body does not run when they are called: nothing would be traced."""
    kinds = {
        "an async function": inspect.iscoroutinefunction,
        "a generator": inspect.isgeneratorfunction,
        "an async generator": inspect.isasyncgenfunction,
    }
    for kind, is_of_kind in kinds.items():
        if is_of_kind(function):
            raise InvalidInput(f"{text} is {kind}; write a plain function, without async and yield")


def arguments_for(
    make: Callable[..., Any], text: str, batch: int | None, precision: str | None
) -> dict[str, Any]:
    """The arguments for the function: batch and precision, as far as they are given."""
    try:
        accepted = inspect.signature(make).parameters
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{text}: Python does not know which arguments it takes; wrap it in a function (def)"
        ) from error
    given = {"batch": batch, "precision": precision}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for name, value in given.items():
        if value is not None and name not in accepted and not takes_any:
            raise InvalidInput(f"{text} has no parameter {name!r}; add one, or leave out --{name}")
    missing = [
        name
        for name, p in accepted.items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and (given.get(name) is None or p.kind is p.POSITIONAL_ONLY)
    ]
    if missing:
        hint = (
            "use --batch and --precision"
            if set(missing) <= set(given)
            else "only batch and precision can be given; give the others a default value"
        )
        raise InvalidInput(f"{text} needs a value for {', '.join(missing)}; {hint}")
    return {name: value for name, value in given.items() if value is not None}
