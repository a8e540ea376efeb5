"""Changes to a JAX step that can be made from outside: donated arguments, and remat of its loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wavecast.errors import InvalidInput

DONATION, REMAT, REMAT_MATMULS = "donation", "remat", "remat_matmuls"
NAMES = (DONATION, REMAT, REMAT_MATMULS)
_DONORS = ("tf.aliasing_output", "jax.buffer_donor")
"""What a lowered step says of arguments that are donated."""


def with_donation(step: Any, arguments: Sequence[Any]) -> Any:
    """The step jitted anew, with those arguments donated whose arrays have the shapes of results.

    Raises:
        InvalidInput: arguments are donated already, or none could be.
    """
    import jax

    if any(mark in step.lower(*arguments).as_text() for mark in _DONORS):
        raise InvalidInput("its arguments are donated already")
    made = jax.eval_shape(step, *arguments)
    left = Counter((one.shape, str(one.dtype)) for one in jax.tree.leaves(made))
    donated = []
    for position, argument in enumerate(arguments):
        leaves = [one for one in jax.tree.leaves(argument) if hasattr(one, "shape")]
        wanted = Counter((one.shape, str(one.dtype)) for one in leaves)
        if wanted and wanted <= left:
            left -= wanted
            donated.append(position)
    if not donated:
        raise InvalidInput("no argument has the shapes of the step's results")
    return jax.jit(getattr(step, "__wrapped__", step), donate_argnums=tuple(donated))


@contextmanager
def rematerialized(names: Sequence[str]) -> Iterator[None]:
    """Within it, gradients are those of a loss whose activations are computed again.

    Raises:
        InvalidInput: the step takes no gradient by `jax.grad` or `jax.value_and_grad`.
    """
    if REMAT not in names and REMAT_MATMULS not in names:
        yield
        return
    import jax

    policy = None if REMAT in names else jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    kept = {name: getattr(jax, name) for name in ("grad", "value_and_grad")}
    taken = 0

    def again(gradient: Callable[..., Any]) -> Callable[..., Any]:
        def of(loss: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            nonlocal taken
            taken += 1
            return gradient(jax.checkpoint(loss, policy=policy), *arguments, **named)

        return of

    try:
        for name, gradient in kept.items():
            setattr(jax, name, again(gradient))
        yield
    finally:
        for name, gradient in kept.items():
            setattr(jax, name, gradient)
    if not taken:
        raise InvalidInput("the step takes no gradient by jax.grad or jax.value_and_grad")
