"""The train step of a compiled Keras 3 model on JAX, as `fit` would run it.

Private methods of Keras's JAX trainer are used here and nowhere else (tried with Keras 3.15).
"""

from __future__ import annotations

from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.keras_models import model_and_batch

_SMALL = 2
"""The batch with which a model is built; the step is traced at the user's own."""


def train_step(made: Any) -> tuple[Any, tuple[Any, ...]]:
    """The jitted train step of a model, and its arguments: its state, and the batch.

    Args:
        made: the compiled model, or a tuple of it and its batch, `(model, (x, y))`.
    """
    import keras

    if keras.backend.backend() != "jax":
        raise InvalidInput(
            f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=jax before keras is "
            "imported"
        )
    model, batch = model_and_batch(made)
    import jax

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    _build(model, shapes)
    state = model._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
        purge_model_variables=False,
    )
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    return jax.jit(model.train_step, donate_argnums=0), (state, shapes)


def _build(model: Any, shapes: tuple[Any, ...]) -> None:
    """Build the variables of model, optimizer and metrics, as `fit` does before its first step."""
    import jax
    import numpy as np

    small = jax.tree.map(lambda x: np.zeros((_SMALL, *x.shape[1:]), x.dtype), shapes)
    model._symbolic_build(data_batch=small)
    model.optimizer.build(model.trainable_variables)
    model.make_train_function()
