"""A training step whose code was changed: each change is a context in which the step runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from wavecast.frameworks.pytorch.changes.attention import FusedAttention
from wavecast.frameworks.pytorch.changes.loaders import few_samples, twice_the_batch
from wavecast.frameworks.pytorch.changes.losses import ChunkedLoss
from wavecast.frameworks.pytorch.changes.module_calls import channels_last, checkpointed, compiled
from wavecast.frameworks.pytorch.changes.optimizers import (
    optimizers_with,
    zeroed_by_none,
)
from wavecast.frameworks.pytorch.changes.precision import Autocasting, rounding_to_tf32

Active = Callable[[], AbstractContextManager[Any]]


def _new_changes() -> dict[str, Active]:
    """The changes by name, each with a memory of its own for one step."""
    attention, loss = FusedAttention(), ChunkedLoss()
    return {
        "bf16": Autocasting(torch.bfloat16).active,
        "fp16": Autocasting(torch.float16).active,
        "tf32": rounding_to_tf32,
        "channels_last": channels_last,
        "sdpa": attention.active,
        "chunked_loss": loss.active,
        "fused_optimizer": partial(optimizers_with, fused=True),
        "foreach_optimizer": partial(optimizers_with, foreach=True),
        "set_to_none": zeroed_by_none,
        "compile": compiled,
        "twice_the_batch": twice_the_batch,
        "few_samples": few_samples,
        "checkpointing": partial(checkpointed, every=1),
        "checkpointing_half": partial(checkpointed, every=2),
    }


CODE_CHANGES = frozenset(_new_changes())
"""The names of the changes."""


@contextmanager
def changing(names: Iterable[str]) -> Iterator[None]:
    """Run the block, which trains for several steps, with these changes."""
    known = _new_changes()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(known[name]())
        yield


def changed(
    make_step: Callable[[], Callable[[], Any]], names: Iterable[str]
) -> Callable[[], Callable[[], Any]]:
    """The function that builds a step, with these changes in what it builds and runs."""
    chosen = tuple(names)
    if not chosen:
        return make_step

    def make() -> Callable[[], Any]:
        known = _new_changes()
        active = [known[name] for name in chosen]
        with _all(active):
            step = make_step()

        def run() -> Any:
            with _all(active):
                return step()

        return run

    return make


@contextmanager
def _all(active: Iterable[Active]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in active:
            stack.enter_context(each())
        yield
