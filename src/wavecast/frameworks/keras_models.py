"""Compiled Keras 3 models as steps: which framework runs them, their precision and their batch."""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

from wavecast.errors import InvalidInput, MissingExtra

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


def is_model(made: Any) -> bool:
    """Whether something is a Keras model."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(made, keras.Model)


def is_step(made: Any) -> bool:
    """Whether something is a Keras model, or a tuple of one and its batch."""
    return is_model(made) or (isinstance(made, tuple) and bool(made) and is_model(made[0]))


def model_and_batch(made: Any, batch: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """A compiled model and the shapes of its batch, `(x, y)` or `(x, y, weights)`.

    Args:
        made: the model alone, whose batch follows from its inputs and its loss, or a tuple
            `(model, (x, y))` with arrays or shapes.
        batch: the number of samples, for a model alone.
    """
    model, *rest = made if isinstance(made, tuple) else (made,)
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
