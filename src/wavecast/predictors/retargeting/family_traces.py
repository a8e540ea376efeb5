"""The traces of one step for several GPU families."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.predictors.retargeting.rewriting import made_for, retarget, serves
from wavecast.results import Shown
from wavecast.traces.step import Trace


@dataclass(frozen=True, repr=False)
class FamilyTraces(Shown):
    """The traces of one step for several GPU families; `wavecast.trace` makes them.

    GPU families have different kernels for attention, and code may ask for the compute capability.
    A trace stands for all families in which its kernels can be chosen again.

    ```python
    traces = wavecast.trace(make_step, gpus=["h100-sxm-80gb", "t4"])
    wavecast.predict(traces, "t4").seconds
    traces.on(wavecast.device("t4")).save("step-t4.json.gz")
    ```
    """

    traces: tuple[Trace, ...]

    def __post_init__(self) -> None:
        if not self.traces:
            raise InvalidInput("FamilyTraces has no traces; name at least one GPU (gpus=[...])")

    def on(self, gpu: Device | None) -> Trace:
        """The trace with the kernels of a GPU's family; the first as it is if none is exact."""
        if gpu is None:
            return self.traces[0]
        own = [trace for trace in self.traces if made_for(trace, gpu)]
        exact = own or [trace for trace in self.traces if serves(trace, gpu)]
        return retarget((exact or self.traces)[0], gpu).trace


def trace_on(trace: Trace | FamilyTraces, gpu: Device | None) -> Trace:
    """The trace for a GPU: a single one as it is, else that of the GPU's family."""
    return trace.on(gpu) if isinstance(trace, FamilyTraces) else trace
