"""How much of the GPUs' arithmetic a training uses: model FLOPs utilisation."""

from __future__ import annotations

from wavecast import ops
from wavecast.predictors.roofline import limits
from wavecast.steps.prediction import Prediction
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Phase


def model_flops_utilization(step: Prediction) -> float | None:
    """The share of the GPUs' dense arithmetic rates that the model's own FLOPs use (MFU).

    As Chowdhery et al. define it ("PaLM", 2022, appendix B): the FLOPs of forward and backward
    pass, without those that are recomputed, over what the GPUs could compute in the same time. The
    rates are those of the units on which the matmuls run. None if a rate is not known.
    """
    again = recomputed(step.trace.calls)
    ideal_s = 0.0
    for position, call in enumerate(step.trace.calls):
        if position in again or call.phase is Phase.OPTIMIZER or not ops.launches(call.op):
            continue
        arithmetic = [limit for limit in limits(call.op, step.device) if limit.unit is not None]
        ideal_s += sum(limit.seconds for limit in arithmetic)
    replicas = 1 if step.parallel is None else step.parallel.data
    used_s = ideal_s * step.microbatches * replicas / step.gpus
    return used_s / step.seconds if ideal_s else None
