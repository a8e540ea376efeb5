"""Failures and restarts of long trainings on many GPUs.

A failure of any GPU stops the training. What was done since the last checkpoint is lost, and the
restart takes time. The interval between checkpoints that loses least is that of Young ("A first
order approximation to the optimum checkpoint interval", CACM 1974) and Daly (2006):
sqrt(2 x checkpoint time x time between failures).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.errors import InvalidInput

LLAMA_3_GPU_HOURS = 54 * 24 * 16384 / 419
"""The GPU hours between failures of Llama 3's training: 419 unexpected interruptions in 54 days on
16,384 H100s (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.4)."""
RESTART_S = 600.0
"""The time from a failure to the first new step, if none is given. An assumption."""
CHECKPOINT_S = 60.0
"""The time for which one checkpoint stops a training, if none is given. An assumption."""


@dataclass(frozen=True)
class Interruptions:
    """What failures and checkpoints cost a training."""

    failures: float
    """How many are expected."""
    hours_between: float
    """The mean time between two of them."""
    checkpoint_every_s: float
    """The time between checkpoints."""
    share: float
    """What checkpoints, lost work and restarts add to the time of the training."""


def interruptions(
    training_s: float,
    gpus: int,
    gpu_hours_between: float = LLAMA_3_GPU_HOURS,
    checkpoint_s: float = CHECKPOINT_S,
    restart_s: float = RESTART_S,
    every_s: float | None = None,
) -> Interruptions:
    """The failures that are expected in a training, and the time that they cost.

    Args:
        training_s: the time of the training without them.
        gpus: how many GPUs it has.
        gpu_hours_between: the GPU hours between two failures.
        checkpoint_s: how long one checkpoint stops the training.
        restart_s: the time from a failure to the first new step.
        every_s: the time between checkpoints. None for the best.

    Raises:
        InvalidInput: a time is not above 0, or failures come faster than restarts.
    """
    given = (training_s, gpu_hours_between, checkpoint_s, restart_s, every_s or 1.0)
    if min(given) <= 0 or not math.isfinite(sum(given)):
        raise InvalidInput("times between failures, of checkpoints and of restarts are above 0")
    mean_s = gpu_hours_between * 3600 / gpus
    every_s = every_s or math.sqrt(2 * checkpoint_s * mean_s)
    lost = (every_s / 2 + restart_s) / mean_s
    if lost >= 1:
        raise InvalidInput(
            f"{gpus} GPUs fail every {mean_s:.0f} s, and each failure loses as much; use fewer "
            "GPUs, or checkpoints more often"
        )
    share = (1 + checkpoint_s / every_s) / (1 - lost) - 1
    failures = training_s * (1 + share) / mean_s
    return Interruptions(failures, mean_s / 3600, every_s, share)
