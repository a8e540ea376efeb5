"""Results as plain data, for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from wavecast import ops
from wavecast.hardware.device import Device, Fact
from wavecast.hardware.host_files import HostFile
from wavecast.planning.prices import price
from wavecast.steps.larger_batch import LargerBatch
from wavecast.steps.prediction import Prediction
from wavecast.steps.profile import Profile
from wavecast.traces.step import Trace


def predictions(
    target: str, found: Sequence[Prediction], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The predictions of one target on several GPUs."""
    return {
        "target": target,
        "trace": trace(found[0].trace),
        "predictions": [prediction(each) for each in found],
        "notes": list(notes),
    }


def prediction(found: Prediction) -> dict[str, Any]:
    """A prediction on one GPU. Times in seconds; unknown is null."""
    offer, rate = price(found.device), found.throughput
    return {
        "gpu": found.device.id,
        "seconds": found.seconds,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "gpu_s": found.gpu_s,
        "host_s": found.host_s,
        "bound_by": found.bound_by,
        "throughput_per_s": rate,
        "unit": found.trace.unit,
        "usd_per_hour": None if offer is None else offer.usd_per_hour,
        "price": None if offer is None else asdict(offer) | {"date": offer.date.isoformat()},
        "throughput_per_usd": (None if offer is None or rate is None else offer.per_usd(rate)),
        "peak_bytes": None if found.memory is None else found.memory.peak_bytes,
        "needed_bytes": None if found.memory is None else found.memory.needed_bytes,
        "fits": found.fits,
        "by_phase_s": {str(phase): seconds for phase, seconds in found.by_phase().items()},
        "by_op": [asdict(share) for share in found.by_op()],
        "by_module": [asdict(share) for share in found.by_module()],
        "by_source": [asdict(share) for share in found.sources()],
        "unpredicted": dict(found.unpredicted),
        "host": found.host.name,
    }


def trace(found: Trace) -> dict[str, Any]:
    """What a step does, in totals."""
    totals = ops.totals(found)
    return {
        "calls": len(found),
        "distinct_ops": len(found.counts),
        "kernels": totals.kernels,
        "flops": totals.cost.flops,
        "executed_flops": totals.executed_flops,
        "bytes": totals.cost.bytes,
        "by_phase": {str(phase): asdict(cost) for phase, cost in totals.by_phase.items()},
        "by_kind": {str(kind): asdict(cost) for kind, cost in totals.by_kind.items()},
        "unknown_ops": dict(totals.unknown),
        "samples": found.samples,
        "unit": found.unit,
        "framework": found.framework,
        "capability": found.capability,
        "notes": list(found.notes),
        "measurement": None if found.measurement is None else asdict(found.measurement),
    }


def larger_batches(found: Mapping[Device, LargerBatch]) -> list[dict[str, Any]]:
    """The line through several batches, read at a larger one, on each GPU."""
    return [
        {"gpu": device.id, **asdict(line), "throughput_per_s": line.throughput}
        for device, line in found.items()
    ]


def facts(found: Mapping[str, Fact]) -> dict[str, Any]:
    """Facts by name, with their sources."""
    return {name: asdict(fact) for name, fact in found.items()}


def host(found: HostFile) -> dict[str, Any]:
    """A host: its costs in seconds, and the benchmark's times that they come from."""
    return {
        "name": found.name,
        "date": found.date.isoformat(),
        "software": found.software,
        "source": found.source,
        "factor": found.factor,
        "costs": dict(found.costs),
        "times": {sort: dict(times) for sort, times in found.times.items()},
    }


def device(found: Device) -> dict[str, Any]:
    """The facts of a GPU; unknown ones are left out, a source that is not given is null."""
    return {
        "id": found.id,
        "name": found.name,
        "vendor": found.vendor,
        "architecture": found.architecture,
        "aliases": list(found.aliases),
        "nominal": {
            name: {"value": value, "source": found.sources.get(name)}
            for name, value in nominal_facts(found).items()
        },
        "measured": facts(found.measured),
    }


def nominal_facts(found: Device) -> dict[str, Any]:
    """The numbers of a GPU that are known, in the order of its file."""
    names = dict.fromkeys((*found.sources, *(field.name for field in fields(found))))
    values = {name: getattr(found, name) for name in names if name not in _NOT_FACTS}
    return {name: value for name, value in values.items() if value is not None}


_NOT_FACTS = ("id", "name", "vendor", "architecture", "aliases", "sources", "measured")


def profile(found: Profile) -> dict[str, Any]:
    """A profile; shares are of 1, times in seconds, unknown is null."""
    return {
        "name": found.name,
        "gpu": found.device.id,
        "measured": found.measured,
        "seconds": found.seconds,
        "gpu_s": found.gpu_s,
        "host_s": found.host_s,
        "host": found.issued_by or None,
        "throughput_per_s": found.throughput,
        "unit": found.unit,
        "gpu_utilisation": found.gpu_utilisation,
        "utilisation": dict(found.utilisation) if found.known_share else None,
        "cpu_utilisation": found.cpu_utilisation,
        "idle_s": dict(found.idle_s),
        "memory_bytes": dict(found.memory_bytes),
        "known_share": found.known_share,
        "counted_share": found.counted_share,
        "kernels": [asdict(each) for each in found.kernels],
        "wasteful": [asdict(each) for each in found.wasteful()],
        "notes": list(found.notes),
    }
