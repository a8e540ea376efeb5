"""The trace of a JAX step for a GPU: lowered here, compiled by XLA elsewhere, and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wavecast.errors import CaptureError, InvalidInput
from wavecast.footprint.workspaces import convolution
from wavecast.frameworks.jax import releases
from wavecast.frameworks.jax.assembly import scheduled
from wavecast.frameworks.jax.buffers import memory_of
from wavecast.frameworks.jax.driver import CompiledModule, check_installed, compiled_for
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.frameworks.jax.nnx_scopes import named_modules
from wavecast.hardware.device import Device
from wavecast.ops.registry import integer
from wavecast.traces.step import Trace
from wavecast.traces.values import compacted

NOTE = (
    "compiled by XLA without a GPU, so nothing was autotuned: which matmuls XLA writes in Triton "
    "is predicted, and what it would fuse into them runs by itself"
)

TUNING_NOTE = (
    "memory is that of the step: while XLA compiles on a GPU, its tuner tries convolutions with "
    "larger workspaces, so that the peak of the process may be higher"
)


def lowered_step(
    step: Any, arguments: Sequence[Any], named: dict[str, Any], gpu: Device, jit: dict[str, Any]
) -> Any:
    """A step lowered for NVIDIA GPUs, by the user's own jax.

    Args:
        step: a function, jitted or not.
        arguments: its arguments: arrays, shapes, or trees of them.
        named: its named arguments.
        gpu: the GPU that code which asks for one is told about.
        jit: options of `jax.jit` for a function that is not jitted yet.
    """
    check_installed()
    import jax

    if not callable(step):
        raise InvalidInput(f"a JAX step is a function, not of type {type(step).__name__}")
    if not hasattr(step, "trace"):
        step = jax.jit(step, **{name: value for name, value in jit.items() if value is not None})
    elif any(value is not None for value in jit.values()):
        raise InvalidInput(
            "the step is jitted already; give donate_argnums and static_argnums to jax.jit"
        )
    with releases.lowering_for(gpu), named_modules((*arguments, *named.values())):
        try:
            return step.trace(*arguments, **named).lower(lowering_platforms=("cuda",))
        except Exception as error:
            raise CaptureError(
                f"JAX cannot lower the step for a GPU: {type(error).__name__}: {error}"
            ) from error


def traces_for(
    lowered: Any,
    gpus: Sequence[Device],
    *,
    samples: int | None = None,
    unit: str = "samples",
    done: Callable[[int], None] | None = None,
) -> list[Trace]:
    """The trace of a lowered step for each GPU."""
    devices = releases.partitions(lowered)
    made = compiled_for(releases.bytecode(lowered), gpus, devices, done)
    framework = releases.versions()
    return [
        trace_of(module, gpu, framework=framework, samples=samples, unit=unit)
        for module, gpu in zip(made, gpus, strict=True)
    ]


def trace_of(
    compiled: CompiledModule,
    gpu: Device,
    *,
    framework: str = "jax",
    samples: int | None = None,
    unit: str = "samples",
) -> Trace:
    """The trace of a compiled module; of the step's samples it has those of one device."""
    schedule = scheduled(read_hlo(compiled.text), gpu.id)
    devices = integer(schedule.calls[0].op, "sample_ranks", 1)
    if samples is not None and samples % devices == 0:
        samples //= devices
    memory = memory_of(schedule, compiled.sizes, gpu.sm_count)
    tries = any(call.op.base in convolution.NAMES for call in schedule.calls)
    trace = Trace(
        tuple(schedule.calls),
        memory.allocations,
        framework=framework,
        capability=gpu.compute_capability,
        samples=samples,
        unit=unit,
        notes=(NOTE, *([TUNING_NOTE] if tries else []), *schedule.notes),
        asks_capability=True,
        values=memory.values,
    )
    return compacted(trace)
