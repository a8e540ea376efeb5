"""Every result as plain data for JSON: times in seconds, sizes in bytes, unknown is null."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from wavecast import ops
from wavecast.footprint.advice import Advice
from wavecast.footprint.largest_batch import LargestBatch
from wavecast.footprint.memory import Memory
from wavecast.hardware.device import Device, Fact
from wavecast.hardware.host_files import HostFile
from wavecast.planning.choice import comparable
from wavecast.planning.prices import PriceBook, price_book
from wavecast.predictors.base import Estimate
from wavecast.report.costs import price_record
from wavecast.report.tables import notes_by_gpu
from wavecast.steps.larger_batch import LargerBatch
from wavecast.steps.prediction import Prediction
from wavecast.steps.profile import Profile
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast.regression.design import Design
    from wavecast.regression.end_to_end import RunModel
    from wavecast.regression.extrapolation import ScalingModel

MODULE_DEPTH = 3
"""How many levels of module names memory is grouped by."""


BREAKDOWNS = ("op", "module")
"""The ways in which the GPU's time of a predicted step is broken down."""


def predictions(
    target: str,
    rows: Sequence[Prediction],
    by: str | None = None,
    book: PriceBook | None = None,
    depth: int = 2,
) -> dict[str, Any]:
    """The predictions of one target on several GPUs, with one breakdown or with all."""
    return {
        "target": target,
        "trace": trace(rows[0].trace),
        "predictions": [prediction(row, by, book, depth) for row in rows],
        "notes": notes_by_gpu((row.device.id, row.notes) for row in rows),
    }


def prediction(
    step: Prediction, by: str | None = None, book: PriceBook | None = None, depth: int = 2
) -> dict[str, Any]:
    """The prediction of a step on one GPU; `by` is one of `BREAKDOWNS`, and None for all.

    Args:
        step: the prediction.
        by: the breakdown that is kept.
        book: the prices; None for today's.
        depth: how many names of a module's path the breakdown by module keeps.
    """
    offer, rate = (book or price_book()).cheapest(step.device.id), step.throughput
    left_out = {f"by_{breakdown}" for breakdown in BREAKDOWNS if by not in (None, breakdown)}
    record = {
        "gpu": step.device.id,
        "seconds": step.seconds,
        "low_s": step.low_s,
        "high_s": step.high_s,
        "gpu_s": step.gpu_s,
        "host_s": step.host_s,
        "bound_by": step.bound_by,
        "throughput_per_s": rate,
        "unit": step.trace.unit,
        "usd_per_hour": None if offer is None else offer.usd_per_hour,
        "price": None if offer is None else price_record(offer),
        "throughput_per_usd": None if offer is None or rate is None else offer.per_usd(rate),
        "peak_bytes": None if step.memory is None else step.memory.peak_bytes,
        "needed_bytes": None if step.memory is None else step.memory.needed_bytes,
        "fits": step.fits,
        "by_phase_s": {str(phase): seconds for phase, seconds in step.by_phase().items()},
        "by_op": [asdict(share) for share in step.by_op()],
        "by_module": [asdict(share) for share in step.by_module(depth)],
        "by_source": [asdict(share) for share in step.sources()],
        "unpredicted": dict(step.unpredicted),
        "unpredicted_share": step.unpredicted_share,
        "comparable": comparable(step),
        "host": step.host.name,
        "notes": list(step.notes),
    }
    return {name: value for name, value in record.items() if name not in left_out}


def trace(step: Trace) -> dict[str, Any]:
    """The totals of a traced or measured step."""
    totals = ops.totals(step)
    return {
        "calls": len(step),
        "distinct_ops": len(step.counts),
        "kernels": totals.kernels,
        "flops": totals.cost.flops,
        "executed_flops": totals.executed_flops,
        "bytes": totals.cost.bytes,
        "by_phase": {str(phase): asdict(cost) for phase, cost in totals.by_phase.items()},
        "by_kind": {str(kind): asdict(cost) for kind, cost in totals.by_kind.items()},
        "unknown_ops": dict(totals.unknown),
        "samples": step.samples,
        "unit": step.unit,
        "framework": step.framework,
        "capability": step.capability,
        "notes": list(step.notes),
        "measurement": None if step.measurement is None else asdict(step.measurement),
    }


def script_run(run: ScriptRun) -> dict[str, Any]:
    """Which step of a script was traced, and what ran outside of it."""
    return {
        "name": run.script,
        "line": run.line,
        "step": run.step,
        "steps": run.steps,
        "equal": list(run.equal),
        "choice": run.choice,
        "once": [asdict(part) for part in run.once],
    }


def larger_batches(
    rows: Mapping[Device, LargerBatch], points: Mapping[Device, Mapping[int, Prediction]]
) -> list[dict[str, Any]]:
    """The step time at a larger batch, extrapolated on each GPU from the points."""
    return [
        {
            "gpu": device.id,
            **asdict(line),
            "throughput_per_s": line.throughput,
            "unpredicted_share": max(p.unpredicted_share for p in points[device].values()),
        }
        for device, line in rows.items()
    ]


def profile(step: Profile, kernels: int | None = None) -> dict[str, Any]:
    """A profile; shares are between 0 and 1. `kernels` is how many to list, None for all."""
    return {
        "name": step.name,
        "gpu": step.device.id,
        "measured": step.measured,
        "seconds": step.seconds,
        "gpu_s": step.gpu_s,
        "host_s": step.host_s,
        "host": step.issued_by or None,
        "throughput_per_s": step.throughput,
        "unit": step.unit,
        "gpu_utilisation": step.gpu_utilisation,
        "utilisation": dict(step.utilisation) if step.known_share else None,
        "cpu_utilisation": step.cpu_utilisation,
        "idle_s": dict(step.idle_s),
        "memory_bytes": dict(step.memory_bytes),
        "known_share": step.known_share,
        "counted_share": step.counted_share,
        "kernels": [asdict(kernel) for kernel in step.kernels[:kernels]],
        "wasteful": [asdict(kernel) for kernel in step.wasteful(5 if kernels is None else kernels)],
        "unpredicted_share": step.unpredicted_share,
        "notes": list(step.notes),
    }


def memories(rows: Sequence[Memory], advice: Sequence[Advice] = ()) -> list[dict[str, Any]]:
    """The memory of a step on each GPU; the advice is about the first."""
    first, *others = rows
    return [memory(first, advice), *map(memory, others)]


def memory(step_memory: Memory, advice: Iterable[Advice] = ()) -> dict[str, Any]:
    """The memory of a step on one GPU."""
    call = step_memory.trace.calls[step_memory.peak_call]
    return {
        "gpu": step_memory.device.id if step_memory.device else None,
        "peak_bytes": step_memory.peak_bytes,
        "reserved_bytes": step_memory.reserved_bytes,
        "context_bytes": step_memory.context_bytes,
        "process_bytes": step_memory.process_bytes,
        "needed_bytes": step_memory.needed_bytes,
        "fits": step_memory.fits,
        "by_kind": dict(step_memory.by_kind),
        "by_module": dict(step_memory.by_module(MODULE_DEPTH)),
        "peak": {"phase": str(call.phase), "op": call.op.base, "module": call.module},
        "held": [asdict(group) for group in step_memory.held()],
        "advice": [
            {
                "name": change.name,
                "how": change.how,
                "saved_bytes": change.saved_bytes,
                "peak_bytes": change.after.peak_bytes,
                "reserved_bytes": change.after.reserved_bytes,
            }
            for change in advice
        ],
        "notes": [*step_memory.trace.notes, *step_memory.notes],
    }


def fit_in_memory(step_memory: Memory) -> dict[str, Any]:
    """Whether a step fits on a GPU, with the sizes that decide it."""
    gpu = step_memory.device
    return {
        "gpu": gpu.id if gpu else None,
        "fits": step_memory.fits,
        "memory_bytes": gpu.memory_bytes if gpu else None,
        "process_bytes": step_memory.process_bytes,
        "needed_bytes": step_memory.needed_bytes,
        "reserved_bytes": step_memory.reserved_bytes,
        "peak_bytes": step_memory.peak_bytes,
        "notes": list(step_memory.notes),
    }


def largest_batches(answers: Sequence[tuple[Device, LargestBatch]]) -> list[dict[str, Any]]:
    """The largest batch that fits on each GPU."""
    return [{"gpu": gpu.id, **asdict(largest)} for gpu, largest in answers]


def device(gpu: Device) -> dict[str, Any]:
    """The facts of a GPU. Unknown facts are left out; a source that is not given is null."""
    return {
        "id": gpu.id,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "aliases": list(gpu.aliases),
        "nominal": {
            name: {"value": value, "source": gpu.sources.get(name)}
            for name, value in nominal_facts(gpu).items()
        },
        "measured": facts(gpu.measured),
    }


def nominal_facts(gpu: Device) -> dict[str, Any]:
    """The known numbers of a GPU, in the order of its file."""
    names = dict.fromkeys((*gpu.sources, *(field.name for field in fields(gpu))))
    values = {name: getattr(gpu, name) for name in names if name not in _NOT_FACTS}
    return {name: value for name, value in values.items() if value is not None}


_NOT_FACTS = ("id", "name", "vendor", "architecture", "aliases", "sources", "measured")


def facts(measured: Mapping[str, Fact]) -> dict[str, Any]:
    """Measured facts by name, with their sources."""
    return {name: asdict(fact) for name, fact in measured.items()}


def host(calibrated: HostFile) -> dict[str, Any]:
    """A calibrated host: its costs, and the measured times that they were computed from."""
    return {
        "name": calibrated.name,
        "date": calibrated.date.isoformat(),
        "software": calibrated.software,
        "source": calibrated.source,
        "processor": calibrated.processor or None,
        "machine": calibrated.machine or None,
        "gpu": calibrated.gpu or None,
        "busy_before": calibrated.busy_before,
        "busy_during": calibrated.busy_during,
        "factor": calibrated.factor,
        "costs": dict(calibrated.costs),
        "times": {place: dict(times) for place, times in calibrated.times.items()},
    }


def run_model(model: RunModel) -> dict[str, Any]:
    """A model fitted to past runs."""
    return {
        "features": list(model.features),
        "method": str(model.fit.method),
        "phase": model.table.phase,
        "time": str(model.table.time),
        "runs": len(model.table),
        "coefficients": [asdict(coefficient) for coefficient in model.coefficients],
        "mape": model.mape,
        "errors": [float(error) for error in model.errors],
        "longest_mape": model.longest_mape,
    }


def forecast(estimate: Estimate, model: RunModel | ScalingModel) -> dict[str, Any]:
    """The predicted time of a run, and the model that it comes from."""
    from wavecast.regression.extrapolation import ScalingModel

    record = asdict(estimate)
    if isinstance(model, ScalingModel):
        record["axes"] = [str(axis) for axis in model.axes]
        record["time"] = "iterations"
        record["law"] = model.law.name
        record["reason"] = model.reason
        record["laws"] = [
            {"law": trial.law.name, "error": trial.error, "left_out": trial.left_out}
            for trial in model.trials
        ]
    else:
        record["mape"] = model.mape
        record["time"] = str(model.table.time)
    return record


def design(chosen: Design) -> dict[str, Any]:
    """The runs that a design asks for."""
    return asdict(chosen)


def rows(results: Iterable[Any]) -> list[dict[str, Any]]:
    """Dataclasses, such as suite results or models of the suite, field by field."""
    return [asdict(result) for result in results]
