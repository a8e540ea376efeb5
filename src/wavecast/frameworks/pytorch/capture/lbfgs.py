"""LBFGS while a step is traced: it takes all of its iterations.

Its inner loop ends early where loss or gradient hardly change, and assumed values never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks

from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.recording.user_lines import user_line

_TOLERANCES = ("tolerance_grad", "tolerance_change")


@contextmanager
def all_iterations(assumptions: Assumptions) -> Iterator[None]:
    """End the steps of LBFGS inside the block by its numbers of iterations and evaluations only."""
    given: list[dict[str, Any]] = []

    def enter(optimizer: Any, *_: Any) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            [group] = optimizer.param_groups
            given.append({name: group[name] for name in _TOLERANCES})
            group.update(dict.fromkeys(_TOLERANCES, -inf))
            assumptions.note(
                f"LBFGS at {user_line()} is assumed to take all of its {group['max_iter']} "
                f"iterations, at most {group['max_eval']} evaluations; it takes fewer where the "
                "loss converges"
            )

    def leave(optimizer: Any, *_: Any) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.param_groups[0].update(given.pop())

    with ExitStack() as stack:
        for handle in (
            optimizer_hooks.register_optimizer_step_pre_hook(enter),
            optimizer_hooks.register_optimizer_step_post_hook(leave),
        ):
            stack.callback(handle.remove)
        yield
