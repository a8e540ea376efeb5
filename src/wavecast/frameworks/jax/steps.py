"""`wavecast.trace_jax`, and the steps that a function of the user's returns."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, overload

from wavecast.errors import InvalidInput
from wavecast.frameworks import target_files
from wavecast.frameworks.jax import releases
from wavecast.frameworks.jax.driver import check_installed
from wavecast.frameworks.jax.tracing import lowered_step, traces_for
from wavecast.frameworks.replacements import replacing
from wavecast.frameworks.target_files import model_and_batch
from wavecast.hardware.devices import Device, device, usual_gpu
from wavecast.predictors.retargeting import FamilyTraces
from wavecast.traces.step import Trace

_FORM = (
    "return a jitted function and its arguments: `return step, (state, batch)`; arguments may be "
    "arrays or jax.ShapeDtypeStruct"
)


class JaxStep(NamedTuple):
    """A function and the arguments of one call of it."""

    step: Callable[..., Any]
    arguments: tuple[Any, ...]


@overload
def trace_jax(
    step: Callable[..., Any],
    *arguments: Any,
    gpu: Device | str | None = None,
    gpus: None = None,
    samples: int | None = None,
    unit: str = "samples",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
    **named: Any,
) -> Trace: ...


@overload
def trace_jax(
    step: Callable[..., Any],
    *arguments: Any,
    gpus: Sequence[Device | str],
    samples: int | None = None,
    unit: str = "samples",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
    **named: Any,
) -> FamilyTraces: ...


def trace_jax(
    step: Callable[..., Any],
    *arguments: Any,
    gpu: Device | str | None = None,
    gpus: Sequence[Device | str] | None = None,
    samples: int | None = None,
    unit: str = "samples",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
    **named: Any,
) -> Trace | FamilyTraces:
    """The trace of a JAX training step, as XLA compiles it for a GPU. It needs no GPU.

    Example:
        ```python
        step = jax.jit(train_step, donate_argnums=0)
        trace = wavecast.trace_jax(step, state, batch, gpu="h100-sxm-80gb", samples=64)
        wavecast.predict(trace, "h100-sxm-80gb").seconds
        ```

    The step is lowered by your own jax and compiled in another process, for each GPU anew. Code
    that asks `jax.default_backend()` is told "cpu". If a mesh has several devices, the trace is
    that of one of them, with its collectives.

    Args:
        step: the function, jitted or not. Donated arguments of a jitted one stay donated.
        arguments: its arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
        gpu: the GPU to compile for; an H100 if None.
        gpus: several GPUs instead. `FamilyTraces` comes back, which `predict` and `memory` take.
        samples: how many samples (or other `unit`) one step consumes, for throughput.
        unit: what `samples` counts.
        donate_argnums: for a function that is not jitted, as for `jax.jit`.
        static_argnums: the same.
        static_argnames: the same.
        progress: called with the number of GPUs for which the step is compiled.
        named: named arguments of the step.

    Raises:
        CaptureError: JAX or XLA refuses the step; the message is theirs.
        InvalidInput: the GPU is none that XLA compiles for.
        MissingExtra: jax or XLA's compiler is not installed.
    """
    if gpu is not None and gpus is not None:
        raise InvalidInput("trace_jax takes only one of gpu and gpus; leave out the other")
    if isinstance(gpus, str) or (gpus is not None and not gpus):
        raise InvalidInput(f'gpus must be a list of at least one GPU, such as ["l4"], not {gpus!r}')
    named_gpus = gpus or [gpu or usual_gpu()]
    devices = [device(gpu) if isinstance(gpu, str) else gpu for gpu in named_gpus]
    jit = {
        "donate_argnums": donate_argnums,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    lowered = lowered_step(step, arguments, named, devices[0], jit)
    traces = traces_for(lowered, devices, samples=samples, unit=unit, done=progress)
    return FamilyTraces(tuple(traces)) if gpus is not None else traces[0]


def captured_jax(
    make_step: Callable[[], Any],
    *,
    gpu: Device | None = None,
    samples: int | None = None,
    unit: str = "samples",
    ranks: int | None = None,
    changes: Sequence[str] = (),
) -> Trace:
    """The trace of the step that a function of the user's returns, for one GPU.

    Args:
        make_step: builds state and batch, and returns the jitted step and its arguments.
        ranks: how many devices jax shall show, for code that makes a mesh.
        changes: what to change in the step, by the names of `frameworks.jax.changes`.
    """
    check_installed()
    show_devices(ranks or 1)
    target = gpu or usual_gpu()
    with rematerialized(changes):
        jax_step = step_of(make_step())
        step = with_donation(*jax_step) if DONATION in changes else jax_step.step
        lowered = lowered_step(step, jax_step.arguments, {}, target, {})
    return traces_for(lowered, [target], samples=samples, unit=unit)[0]


def show_devices(count: int) -> None:
    """Let jax run on the CPU, with several devices if the step needs them."""
    releases.expect_no_extension()
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    if count > 1:
        import jax

        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError as error:
            if jax.device_count() < count:
                raise InvalidInput(
                    f"jax runs already, with {jax.device_count()} devices, so it cannot show "
                    f"{count}; start a new process"
                ) from error


def step_of(returned: Any) -> JaxStep:
    """The step and its arguments that a function returned: a pair, a Keras model, or our own."""
    if hasattr(returned, "step") and hasattr(returned, "shapes"):
        return JaxStep(returned.step, tuple(returned.shapes()))
    if target_files.is_keras_step(returned):
        step, arguments = train_step(returned)
        return JaxStep(step, arguments)
    if not isinstance(returned, tuple | list) or len(returned) < 2 or not callable(returned[0]):
        raise InvalidInput(
            f"the function returned {type(returned).__name__}, not a JAX step; {_FORM}"
        )
    step, *rest = returned
    is_one = len(rest) == 1 and isinstance(rest[0], tuple | list)
    return JaxStep(step, tuple(rest[0] if is_one else rest))


# The train step of a compiled Keras 3 model on JAX, as `fit` would run it.
#
# Private methods of Keras's JAX trainer are used here and nowhere else (tried with Keras 3.15).


_SMALL = 2
"""The batch with which a model is built; the step is traced at the user's own."""


def train_step(compiled: Any) -> tuple[Any, tuple[Any, ...]]:
    """The jitted train step of a model, and its arguments: its state, and the batch.

    Args:
        compiled: the compiled model, or a tuple of it and its batch, `(model, (x, y))`.
    """
    import keras

    if keras.backend.backend() != "jax":
        raise InvalidInput(
            f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=jax before keras is "
            "imported"
        )
    model, batch = model_and_batch(compiled)
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


# Changes to a JAX step that can be made from outside: donated arguments, and remat of its loss.


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
    results = jax.eval_shape(step, *arguments)
    left = Counter((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(results))
    donated = []
    for position, argument in enumerate(arguments):
        leaves = [leaf for leaf in jax.tree.leaves(argument) if hasattr(leaf, "shape")]
        shapes = Counter((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        if shapes and shapes <= left:
            left -= shapes
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
    taken = 0

    def again(gradient: Callable[..., Any]) -> Callable[..., Any]:
        def of(loss: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            nonlocal taken
            taken += 1
            return gradient(jax.checkpoint(loss, policy=policy), *arguments, **named)

        return of

    with replacing() as replace:
        replace(jax, grad=again(jax.grad), value_and_grad=again(jax.value_and_grad))
        yield
    if not taken:
        raise InvalidInput("the step takes no gradient by jax.grad or jax.value_and_grad")
