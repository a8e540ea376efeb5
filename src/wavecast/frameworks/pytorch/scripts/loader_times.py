"""How fast a script's data loader is on this machine, with as many processes as it asks for."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import worker as worker_of_torch

from wavecast.traces.script import LoaderTime

_TIMED_S = 3.0
"""For how long batches are loaded."""
_LIMIT_S = 60.0
"""After so long, a worker that has not answered is ended."""
_INDICES = 64
"""How many batches are drawn from a sampler; workers take turns among them."""


def time_loader(loader: DataLoader[Any]) -> LoaderTime | None:
    """Load batches for a few seconds, each worker in a process of its own; None if that fails.

    A worker does what torch's workers do, but keeps its batches: handing them over is not timed.
    """
    count = max(loader.num_workers, 1)
    indices = list(islice(iter(loader._index_sampler), _INDICES))
    if not indices:
        return None
    begun = [_begin(loader, number, count, indices) for number in range(count)]
    answers = [answer for pid, pipe in begun if (answer := _answer(pid, pipe)) is not None]
    loaded = sum(answer["batches"] for answer in answers)
    if len(answers) < count or not loaded:
        return None
    rate = sum(answer["batches"] / answer["wall_s"] for answer in answers)
    cpu_s = sum(answer["cpu_s"] for answer in answers) / loaded
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return LoaderTime(1 / rate, cpu_s, int(loaded), loader.num_workers, cores or 1)


def _begin(loader: DataLoader[Any], number: int, count: int, indices: list[Any]) -> tuple[int, int]:
    """Start a process that loads batches, and will write how many into a pipe."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 1
    try:
        os.write(write, json.dumps(_loaded(loader, number, count, indices)).encode())
        code = 0
    finally:
        os._exit(code)


def _loaded(
    loader: DataLoader[Any], number: int, count: int, indices: list[Any]
) -> dict[str, float]:
    """What one worker of the loader does: load batches, one after the other."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    info = {"id": number, "num_workers": count, "seed": number, "dataset": loader.dataset}
    if loader.num_workers:
        worker_of_torch._worker_info = worker_of_torch.WorkerInfo(**info)
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(number)
    fetcher = dataloader._DatasetKind.create_fetcher(
        loader._dataset_kind,
        loader.dataset,
        loader._auto_collation,
        loader.collate_fn,
        loader.drop_last,
    )
    own: Iterator[Any] = cycle(indices[number::count] or indices)
    fetcher.fetch(next(own))  # the first opens files
    begin, cpu, batches = time.monotonic(), time.process_time(), 0
    with suppress(StopIteration):
        while time.monotonic() - begin < _TIMED_S:
            fetcher.fetch(next(own))
            batches += 1
    wall_s = time.monotonic() - begin
    return {"batches": batches, "wall_s": wall_s, "cpu_s": time.process_time() - cpu}


def _answer(pid: int, pipe: int) -> dict[str, float] | None:
    """What a worker wrote; None if it failed, or took too long and was ended."""
    try:
        ready, _, _ = select.select([pipe], [], [], _LIMIT_S)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        data = os.read(pipe, 1 << 12) if ready else b""
        os.waitpid(pid, 0)
        answer: dict[str, float] | None = json.loads(data) if data else None
        return answer
    finally:
        os.close(pipe)
