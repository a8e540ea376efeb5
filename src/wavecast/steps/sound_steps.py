"""Predictions as they leave the functions that make them: checked."""

from __future__ import annotations

from wavecast.soundness import checked
from wavecast.steps.prediction import Prediction

_CHECKED = ("seconds", "low_s", "high_s", "gpu_s", "host_s", "unpredicted_share")


def checked_step(step: Prediction) -> Prediction:
    """The prediction itself, if its times can be; every prediction passes here before it is told.

    Raises:
        InvalidInput: they cannot be; the message names the GPU and the field.
    """
    parts_s = {"gpu_s": (share.gpu_s for share in step.by_op())}
    return checked(step, f"the step on {step.name}", _CHECKED, parts_s)
