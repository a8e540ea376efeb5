"""Functions that a target names, imported and called: they build a step and return it."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, WavecastError
from wavecast.frameworks import keras_models
from wavecast.frameworks.step_functions import arguments_for, attribute_of, refuse_async
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
