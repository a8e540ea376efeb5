"""Files of Python that a target names: what they import, and the steps that they build."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, MissingExtra, UnknownName, WavecastError

_imported: set[str] = set()
"""The names under which files were imported. Each trace imports its file anew."""

_JAX = ("jax", "flax", "optax", "equinox", "haiku")


_LONGEST_NAME, _LONGEST_PATH = 255, 1000


def is_python(place: str) -> bool:
    """Whether a text names a file of Python."""
    return place.endswith(".py")


def is_too_long(text: str) -> bool:
    """Whether a text is too long for a path, so that no file of this name can be looked for."""
    longest = max(map(len, re.split(r"[/\\:]", text)))
    return len(text) > _LONGEST_PATH or longest > _LONGEST_NAME


@dataclass(frozen=True)
class Imports:
    """What a file of Python imports of the frameworks."""

    jax: bool = False
    """Whether its step is one of JAX: it imports JAX or a library on it, and not torch."""
    keras: str | None = None
    """The framework that Keras shall run on, if the file imports Keras; else None."""


def imports_of(place: str) -> Imports:
    """The frameworks that a file imports; none if it is no file, or cannot be read."""
    if not is_python(place):
        return Imports()
    try:
        tree = ast.parse(Path(place).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return Imports()  # importing it will say what is wrong
    roots = {name.partition(".")[0] for name in _imported_names(tree)}
    if "keras" in roots and "torch" not in roots:
        backend = "tensorflow" if "tensorflow" in roots else backend_of(tree)
        return Imports(backend == "jax", backend)
    return Imports(bool(roots & set(_JAX)) and "torch" not in roots)


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def import_file(place: str) -> Any:
    """The module that a file defines, under its own name or, if that is taken, a longer one."""
    path = Path(place).resolve()
    name = path.stem
    while name in sys.modules and name not in _imported:
        name = f"{name}_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{place} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    # Torch's compiler imports the modules of the code that it compiles by their names.
    _imported.add(name)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).splitlines()), "no message")


def place_of(error: Exception, folder: str) -> str:
    """The innermost line of the user's code in the traceback of an error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(folder) and "site-packages" not in f.filename]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"


# Compiled Keras 3 models as steps: which framework runs them, their precision and their batch.


BACKEND = "KERAS_BACKEND"
DEFAULT_BATCH = 32
"""Keras's own default of `fit`."""
_POLICIES = {
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "mixed_bfloat16",
    "fp16": "mixed_float16",
}


def backend_of(tree: ast.Module) -> str:
    """The framework that a file chooses for Keras; JAX if neither it nor the environment does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [ast.unparse(target) for target in node.targets]
            if any(BACKEND in name for name in names):
                return str(node.value.value)
        if isinstance(node, ast.Call) and [_constant(a) for a in node.args[:1]] == [BACKEND]:
            return _constant(node.args[-1])
    return os.environ.get(BACKEND, "jax")


def _constant(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def choose_backend(backend: str) -> None:
    """Let Keras run on a framework, if it has not been imported yet.

    Raises:
        InvalidInput: it is TensorFlow, or another that is not followed.
    """
    if backend not in ("jax", "torch"):
        raise InvalidInput(
            f"Keras runs on {backend} here, which is not followed; a Keras 3 model is the same on "
            f"JAX: set {BACKEND}=jax (before keras is imported)"
        )
    os.environ[BACKEND] = backend


def is_keras_model(value: Any) -> bool:
    """Whether something is a Keras model."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def is_keras_step(value: Any) -> bool:
    """Whether something is a Keras model, or a tuple of one and its batch."""
    return is_keras_model(value) or (
        isinstance(value, tuple) and bool(value) and is_keras_model(value[0])
    )


def model_and_batch(step: Any, batch: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """A compiled model and the shapes of its batch, `(x, y)` or `(x, y, weights)`.

    Args:
        step: the model alone, whose batch follows from its inputs and its loss, or a tuple
            `(model, (x, y))` with arrays or shapes.
        batch: the number of samples, for a model alone.
    """
    model, *rest = step if isinstance(step, tuple) else (step,)
    if not model.compiled:
        raise InvalidInput("the Keras model is not compiled; call model.compile(...) first")
    if not rest:
        return model, _inferred(model, batch or DEFAULT_BATCH)
    given = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
    return model, tuple(given)


def _inferred(model: Any, batch: int) -> tuple[Any, ...]:
    """Zeros for the inputs and targets of a model, from its shapes and its loss."""
    import numpy as np

    if not model.built or not getattr(model, "inputs", None):
        raise InvalidInput(
            "the inputs of the Keras model are not known; return its batch, too: "
            "return model, (x, y), arrays or shapes"
        )
    sizes = [(batch, *tensor.shape[1:]) for tensor in (*model.inputs, *model.outputs)]
    if any(size is None for shape in sizes for size in shape):
        raise InvalidInput(
            "the Keras model takes inputs of any size; return its batch, too: return model, (x, y)"
        )
    x = [np.zeros(s, t.dtype) for s, t in zip(sizes, model.inputs, strict=False)]
    shapes = sizes[len(x) :]
    if "sparse" in _loss_name(model.loss).lower():
        y = [np.zeros(shape[:-1], "int32") for shape in shapes]
    else:
        y = [np.zeros(shape, "float32") for shape in shapes]
    return (x[0] if len(x) == 1 else x), (y[0] if len(y) == 1 else y)


def _loss_name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "name", getattr(loss, "__name__", type(loss).__name__)))


def set_precision(precision: str | None) -> None:
    """Let Keras compute in a precision, by its policy; None leaves the user's own.

    Raises:
        MissingExtra: Keras is not installed.
    """
    if precision is None:
        return
    try:
        import keras
    except ModuleNotFoundError as error:
        raise MissingExtra("the target needs Keras 3: pip install keras") from error
    keras.mixed_precision.set_dtype_policy(_POLICIES[precision])


# Functions that a target names, imported and called: they build a step and return it.


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
    choose_backend(backend)
    make = attribute_of(_import(place), name, text)
    parameters = inspect.signature(make).parameters
    if "precision" not in parameters:
        set_precision(precision)
        precision = None
    given = batch if "batch" in parameters else None
    step = make(**arguments_for(make, text, given, precision))
    if not is_keras_step(step):
        return step
    if batch is not None and given is None and isinstance(step, tuple):
        raise InvalidInput(f"{text} has no parameter 'batch'; add one, or leave out --batch")
    if is_keras_model(step):
        step = model_and_batch(step, batch)
    return step


def _import(place: str) -> Any:
    is_file = is_python(place)
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
