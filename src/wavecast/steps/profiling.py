"""The profile of a measured step, by its kernels, and of a predicted step, by its ops."""

from __future__ import annotations

from collections.abc import Iterable

from wavecast import ops
from wavecast.footprint.kinds import peak_by_tbd_kind
from wavecast.footprint.workspaces.estimate import with_workspaces
from wavecast.hardware.device import Device
from wavecast.ops import Kind, Unit
from wavecast.steps.arguments import refuse_impossible_measurement
from wavecast.steps.idle import idle_by_cause
from wavecast.steps.prediction import Prediction
from wavecast.steps.profile import Profile, ProfiledWork
from wavecast.traces import kernel_names, overlap
from wavecast.traces.step import Call, Measurement, Trace


def profile_measured(name: str, trace: Trace, device: Device) -> Profile:
    """The profile of a measured trace; `device` is the GPU on which it was measured."""
    kernels = [kernel for call in trace for kernel in call.kernels]
    whole = trace.measurement
    if whole is not None:
        refuse_impossible_measurement(trace, whole)
    busy_s = overlap.busy_s(kernels)
    gpu_s = whole.gpu_s if whole and whole.gpu_s is not None else busy_s
    seconds = whole.seconds if whole and whole.seconds is not None else busy_s
    # An iteration whose parts were recorded began on an idle GPU.
    from_start = whole is not None and whole.recorded_s is not None
    return Profile(
        name=name,
        device=device,
        measured=True,
        seconds=seconds,
        gpu_s=min(gpu_s, seconds),
        host_s=whole.host_s if whole else None,
        idle_s=idle_by_cause(trace.calls, max(0.0, seconds - gpu_s), from_start=from_start),
        works=tuple(work for call in trace for work in _works(call)),
        memory_bytes=peak_by_tbd_kind(trace),
        samples=trace.samples,
        unit=trace.unit,
        cpu_utilisation=_cpu_utilisation(whole),
        notes=trace.notes,
    )


def _cpu_utilisation(whole: Measurement | None) -> float | None:
    if whole is None or not whole.seconds or whole.cpu_s is None or not whole.cores:
        return None
    return whole.cpu_s / (whole.cores * whole.seconds)


def _name(call: Call) -> str:
    """The name of an op; for a fused kernel also its line of source and what was fused."""
    if ops.kind(call.op) is not Kind.FUSED:
        return call.op.base
    at = f" at {call.line}" if call.line else ""
    return f"{call.op.base}{at}: {call.op.attr('fused', '')}".rstrip(": ")


def profile_predicted(name: str, prediction: Prediction) -> Profile:
    """The profile of a predicted step."""
    trace = with_workspaces(prediction.trace, prediction.device)
    idle_s = max(0.0, prediction.seconds - prediction.gpu_s)
    # Without synchronisations the step would take as long as the slower of host and GPU (gaps
    # between kernels included). That much idle time is the host's; the rest is synchronisation.
    step = prediction.step
    without_syncs_s = max(0.0, max(step.host_s, step.gpu_s) - prediction.gpu_s)
    host_s = min(idle_s, without_syncs_s)
    works = (
        ProfiledWork(_name(call), seconds, *_demand(call), unit=_unit(call))
        for call, seconds in zip(trace, prediction.call_s, strict=True)
        if seconds
    )
    return Profile(
        name=name,
        device=prediction.device,
        measured=False,
        seconds=prediction.seconds,
        gpu_s=prediction.gpu_s,
        host_s=prediction.host_s,
        idle_s={"host": host_s, "synchronisation": idle_s - host_s},
        works=tuple(works),
        memory_bytes=peak_by_tbd_kind(trace),
        samples=trace.samples,
        unit=trace.unit,
        issued_by=prediction.host.name,
        notes=(*trace.notes, *(f"on {prediction.device.id}: {n}" for n in prediction.notes)),
        unpredicted=prediction.unpredicted,
        unpredicted_share=prediction.unpredicted_share,
    )


def _works(call: Call) -> Iterable[ProfiledWork]:
    """The kernels of a call, with its FLOPs and bytes shared out in proportion to their times.

    In a call with matrix products (a convolution, an attention) only the product kernels share
    them: kernels that convert, reduce or fill beside them get none.
    """
    flops, nbytes = _demand(call)
    unit = _unit(call)
    shares = [kernel_names.is_product(kernel.name) for kernel in call.kernels]
    if not any(shares):
        shares = [not kernel_names.is_copy(kernel.name) for kernel in call.kernels]
    pairs = list(zip(call.kernels, shares, strict=True))
    sharing_s = sum(kernel.seconds for kernel, takes_part in pairs if takes_part)
    for kernel, takes_part in pairs:
        if kernel.flops is not None and kernel.dram_bytes is not None:
            yield ProfiledWork(
                kernel.name, kernel.seconds, kernel.flops, kernel.dram_bytes, unit, True
            )
        elif flops is None or nbytes is None:
            yield ProfiledWork(kernel.name, kernel.seconds, flops, nbytes, unit)
        else:
            share = kernel.seconds / sharing_s if sharing_s and takes_part else 0.0
            yield ProfiledWork(kernel.name, kernel.seconds, share * flops, share * nbytes, unit)


def _demand(call: Call) -> tuple[float | None, float | None]:
    """FLOPs and bytes of a call; None where there is no formula."""
    flops, cost = ops.executed_flops(call.op), ops.cost_of(call.op)
    return flops, None if cost is None else float(cost.bytes)


def _unit(call: Call) -> Unit | None:
    return ops.unit(call.op) if ops.has_shapes(call.op) else None
