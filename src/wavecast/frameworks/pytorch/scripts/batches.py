"""The batches that a script draws from its data loaders: their samples, and how long they took."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import worker as worker_of_torch

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.scripts.periods import SPREAD_OVER
from wavecast.traces.script import LoaderTime, Loading

_AHEAD = "accelerate."
"""A library whose loaders draw the next batch before they hand out the present one."""
LONGEST_LOADING_S = 20.0
"""For how many seconds batches are loaded. Then the last one is given again."""
_WORKERS = "_wavecast_workers"
"""The attribute of an iterator that has the number of workers that its loader asks for."""


_GOLDEN = (5**0.5 - 1) / 2
_LEAST_SPREAD = 2 * SPREAD_OVER
_MOST_SPREAD = 1 << 20
"""An epoch of fewer batches, or of more samples, is drawn in its own order."""
_LOADER = "_wavecast_loader"
"""The attribute of an iterator that has its loader."""


@dataclass(frozen=True)
class _Batch:
    """A batch that a step takes."""

    position: int
    """Where the recording was when the script got it."""
    data: int
    """The identity of the dataset."""
    samples: int | None
    short: bool
    """Whether it is smaller than the batches of its loader."""
    seconds: float | None
    """How long the loader took. None for a batch that was given again."""
    workers: int
    """How many worker processes the script asked for."""
    loader: Any = None
    """The data loader."""


class Batches:
    """The batches drawn while a script runs."""

    def __init__(self, recorder: OpRecorder, notify: Callable[[], None]) -> None:
        self._recorder = recorder
        self._notify = notify
        """Called before a batch is drawn."""
        self._drawn: list[_Batch] = []
        self._ahead: dict[int, _Batch] = {}
        """Batches that were drawn and not handed out yet, by their loader's iterator."""
        self._last: dict[int, tuple[int | None, Any]] = {}
        """The last batch of each dataset, with its number of samples."""
        self._spent_s = 0.0
        self.is_spread = False
        """Whether the batches of a loader came from all over its epoch."""
        self.repeated = 0
        """How many batches were given again, because loading took too long."""

    @property
    def may_be_short(self) -> bool:
        """Whether some batches are smaller than others: one was, or no loader made any."""
        return not self._drawn or any(batch.short for batch in self._drawn)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the data loaders inside the block."""
        iterator = dataloader._BaseDataLoaderIter
        draw, next_index = iterator.__next__, iterator._next_index
        loader, make = dataloader.DataLoader, dataloader.DataLoader._get_iterator
        indices: dict[int, Any] = {}

        def drawn(self_: Any) -> Any:
            self._notify()
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if ahead := caller.startswith(_AHEAD):
                self._hand_out(id(self_))
            begin = time.perf_counter()
            batch = self._again(self_)
            if is_new := batch is None:
                batch = draw(self_)
            self._spent_s += time.perf_counter() - begin
            taken = self._described(self_, indices.pop(id(self_), None), batch, begin)
            taken = taken if is_new else replace(taken, seconds=None)
            self._last[taken.data] = taken.samples, batch
            if ahead:
                self._ahead[id(self_)] = taken
            else:
                self._drawn.append(taken)
            return batch

        def indexed(self_: Any) -> Any:
            indices[id(self_)] = index = next_index(self_)
            return index

        def made(self_: Any) -> Any:
            new = make(self_)
            setattr(new, _WORKERS, self_.num_workers)
            setattr(new, _LOADER, self_)
            if batches := _epoch_of(new):
                new._sampler_iter, self.is_spread = _spread(new._sampler_iter, batches), True
            return new

        iterator.__next__, iterator._next_index = drawn, indexed
        loader._get_iterator = made
        try:
            yield
        finally:
            iterator.__next__, iterator._next_index = draw, next_index
            loader._get_iterator = make

    def _again(self, iterator: Any) -> Any:
        """The last batch of the dataset once more, if loading has taken too long; else None."""
        samples, batch = self._last.get(id(iterator._dataset), (None, None))
        is_map = iterator._dataset_kind == dataloader._DatasetKind.Map
        if self._spent_s < LONGEST_LOADING_S or samples is None or not is_map:
            return None
        index = iterator._next_index()  # which ends with the dataset
        if not isinstance(index, list | tuple) or len(index) != samples:
            return None
        self.repeated += 1
        return batch

    def _described(self, iterator: Any, index: Any, batch: Any, begin: float) -> _Batch:
        seconds = time.perf_counter() - begin
        full = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        samples = _samples(iterator, index, batch)
        short = isinstance(full, int) and samples is not None and samples < full
        workers = getattr(iterator, _WORKERS, 0)
        data = id(iterator._dataset)
        loader = getattr(iterator, _LOADER, None)
        return _Batch(len(self._recorder), data, samples, short, seconds, workers, loader)

    def _hand_out(self, iterator: int) -> None:
        """Count a batch that was drawn ahead as taken now."""
        batch = self._ahead.pop(iterator, None)
        if batch is not None:
            self._drawn.append(replace(batch, position=len(self._recorder)))

    def samples(self, begin: int, end: int) -> int | None:
        """The samples drawn between two positions of the recording.

        None when no loader or several ones were used: which samples count is then not clear.
        """
        drawn = self._between(begin, end)
        sizes = [batch.samples for batch in drawn if batch.samples is not None]
        if len({batch.data for batch in drawn}) != 1 or len(sizes) != len(drawn):
            return None
        return sum(sizes) or None

    def loading(self, begin: int, end: int) -> Loading | None:
        """How long loaders took for the batches of a step; None if it took none of them."""
        taken = self._between(begin, end)
        if not taken:
            return None
        data = {batch.data for batch in taken}
        drawn = [batch for batch in self._drawn if batch.data in data]
        seconds = [batch.seconds for batch in drawn if batch.seconds is not None]
        workers = max(batch.workers for batch in taken)
        return Loading(median(seconds), len(taken), workers)

    def loader(self, begin: int, end: int) -> Any:
        """The loader of the batches of a step; None if there is none, or several are used."""
        loaders = {id(batch.loader): batch.loader for batch in self._between(begin, end)}
        return next(iter(loaders.values())) if len(loaders) == 1 else None

    def _between(self, begin: int, end: int) -> list[_Batch]:
        return [batch for batch in self._drawn if begin <= batch.position < end]


def _epoch_of(iterator: Any) -> int | None:
    """The batches of an epoch that can be drawn in any order; None if they cannot."""
    if iterator._dataset_kind != dataloader._DatasetKind.Map:
        return None
    try:
        batches, samples = len(iterator._index_sampler), len(iterator._dataset)
    except (TypeError, NotImplementedError):
        return None
    return batches if batches >= _LEAST_SPREAD and samples <= _MOST_SPREAD else None


def _spread(sampler: Iterator[Any], batches: int) -> Iterator[Any]:
    """All batches of an epoch in another order: those that are drawn first come from all over it.

    Samplers sort by length, wholly or in parts, so that the first batches are no sample of all.
    The first one stays first. Then come one from the end and one from the beginning, which differ
    most, and then the middle, the quarters, and so on.
    """
    epoch = list(islice(sampler, batches))
    # Each part is taken elsewhere, since buckets may repeat as often as the parts.
    places = [(part + (part * _GOLDEN + 0.5) % 1) / SPREAD_OVER for part in _halving(SPREAD_OVER)]
    chosen = [0, *(int(place * len(epoch)) for place in (max(places), min(places), *places))]
    for index in dict.fromkeys((*chosen, *range(len(epoch)))):
        yield epoch[index]
    yield from sampler


def _halving(count: int) -> list[int]:
    """The numbers below a power of two, so that each beginning of the list is spread evenly."""
    width = count.bit_length() - 1
    return [int(f"{number:0{width}b}"[::-1], 2) for number in range(count)]


def _samples(iterator: Any, index: Any, batch: Any) -> int | None:
    """The number of samples of a batch: how many were asked for, or a tensor's first dimension."""
    leaves = pytree.tree_leaves(batch)
    sizes = [int(leaf.shape[0]) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if not isinstance(index, list | tuple):
        return sizes[0] if sizes else None
    if iterator._dataset_kind == dataloader._DatasetKind.Iterable and len(set(sizes)) == 1:
        return min(len(index), sizes[0])  # the end of a stream may be shorter
    return len(index)


# How fast a script's data loader is on this machine, with as many processes as it asks for.


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
    workers = [_begin(loader, number, count, indices) for number in range(count)]
    answers = [answer for pid, pipe in workers if (answer := _answer(pid, pipe)) is not None]
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
