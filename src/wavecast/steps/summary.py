"""What a prediction says about a step, in a few figures that can be kept and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wavecast import ops
from wavecast.showing import Brief
from wavecast.steps.prediction import Prediction
from wavecast.steps.shares import Share
from wavecast.traces.step import Op, TensorSpec, Trace

MODULE_DEPTH = 3
"""How many levels of module names the GPU time is broken down to."""
NO_KIND, NO_TYPE = "other", "none"
WAITS = "waits"
"""The name of waits of the host among the ops of `StepSummary.lines`."""


@dataclass(frozen=True, repr=False)
class StepSummary(Brief):
    """The figures of one predicted step on one GPU, and the parts of its GPU time.

    ```python
    summary = summary_of(wavecast.predict(trace, "l4"))
    summary.seconds, summary.kernels, summary.ops[0].name
    ```
    """

    gpu: str
    seconds: float
    """One iteration."""
    gpu_s: float
    """The time in which the GPU is busy."""
    host_s: float
    """The time that the host needs to issue the step."""
    bound_by: str
    kernels: int
    """The least number of kernels that the step launches."""
    syncs: int
    """The number of calls at which the host waits for the GPU."""
    needed_bytes: int | None = None
    """The memory that the GPU must have. None when the trace has no allocations."""
    peak_bytes: int | None = None
    """The peak of allocated memory. None where `needed_bytes` is."""
    fits: bool | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples: int | None = None
    unit: str = "samples"
    unpredicted_share: float = 0.0
    """How much of the step could not be predicted, from 0 to 1."""
    fingerprint: str = ""
    """A hash of the calls without the names of modules. Equal steps have equal ones."""
    framework: str = ""
    """The framework that traced the step, and its version."""
    kinds: tuple[Share, ...] = ()
    """The GPU time by kind of op, longest first."""
    types: tuple[Share, ...] = ()
    """The GPU time by the data type of the first tensor of each op."""
    ops: tuple[Share, ...] = ()
    modules: tuple[Share, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    """The bytes of each kind of memory at the peak."""
    notes: tuple[str, ...] = ()
    lines: Mapping[str, Mapping[str, int]] = field(default_factory=dict, compare=False)
    """The calls of each op by line of code, as far as the trace names lines; also those of waits,
    under `waits`."""

    @property
    def throughput(self) -> float | None:
        """Samples (or other units) per second; None when their number is unknown."""
        return None if self.samples is None else self.samples / self.seconds


def summary_of(prediction: Prediction) -> StepSummary:
    """The figures of a prediction."""
    trace, memory = prediction.trace, prediction.memory
    return StepSummary(
        gpu=prediction.device.id,
        seconds=prediction.seconds,
        gpu_s=prediction.gpu_s,
        host_s=prediction.host_s,
        bound_by=prediction.bound_by,
        kernels=sum(ops.kernels(op) * times for op, times in trace.counts.items()),
        syncs=len(trace.arrays.syncs),
        needed_bytes=None if memory is None else memory.needed_bytes,
        peak_bytes=None if memory is None else memory.peak_bytes,
        fits=prediction.fits,
        low_s=prediction.low_s,
        high_s=prediction.high_s,
        samples=trace.samples,
        unit=trace.unit,
        unpredicted_share=prediction.unpredicted_share,
        fingerprint=fingerprint_of(trace),
        framework=trace.framework,
        kinds=prediction.by_label(lambda op: str(ops.kind(op) or NO_KIND)),
        types=prediction.by_label(_type),
        ops=prediction.by_op(),
        modules=prediction.by_module(MODULE_DEPTH),
        memory={} if memory is None else {k: n for k, n in memory.by_kind.items() if n},
        notes=tuple(dict.fromkeys((*trace.notes, *prediction.notes))),
        lines=_lines(trace),
    )


def _lines(trace: Trace) -> dict[str, dict[str, int]]:
    """The calls of each op by line of code."""
    found: dict[str, dict[str, int]] = {}
    for call in trace:
        for name in (call.op.base, WAITS) if call.syncs else (call.op.base,):
            if call.line:
                calls = found.setdefault(name, {})
                calls[call.line] = calls.get(call.line, 0) + 1
    return found


def fingerprint_of(trace: Trace) -> str:
    """A hash of the calls of a step: ops, shapes, phases, streams and waits, not module names."""
    digest = hashlib.sha256()
    positions = {op: index for index, op in enumerate(trace.counts)}
    for op in positions:
        digest.update(_op_text(op).encode())
    for call in trace:
        digest.update(f"{positions[call.op]} {call.phase} {call.stream} {call.syncs}\n".encode())
    return digest.hexdigest()[:16]


def _op_text(op: Op) -> str:
    tensors = [[_tensor_text(t) for t in side] for side in (op.inputs, op.outputs)]
    return f"{op.name} {tensors} {op.attrs!r}\n"


def _tensor_text(tensor: TensorSpec) -> str:
    return f"{tensor.dtype}{tensor.shape}{tensor.strides or ''}{tensor.device}"


def _type(op: Op) -> str:
    """The data type that an op works on: that of its first tensor on the GPU."""
    on_gpu = (t.dtype for t in (*op.inputs, *op.outputs) if t.device != "cpu")
    return next(on_gpu, NO_TYPE)


def spent(shares: Sequence[Share], name: str) -> float:
    """The part of the GPU time that has this name, between 0 and 1."""
    total_s = float(np.sum([share.gpu_s for share in shares]))
    own_s = sum(share.gpu_s for share in shares if share.name == name)
    return own_s / total_s if total_s else 0.0
