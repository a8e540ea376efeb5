"""The batches that a script draws from its data loaders, for the samples of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import dataloader

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder


class Batches:
    """The batches drawn while a script runs."""

    def __init__(self, recorder: OpRecorder, notify: Callable[[], None]) -> None:
        self._recorder = recorder
        self._notify = notify
        """Called before a batch is drawn."""
        self._drawn: list[tuple[int, int, int | None]] = []
        """Position in the recording, identity of the loader's iterator, size of the batch."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the data loaders inside the block."""
        iterator = dataloader._BaseDataLoaderIter
        original = iterator.__next__

        def drawn(self_: Any) -> Any:
            self._notify()
            batch = original(self_)
            size = _size(self_, batch)
            self._drawn.append((len(self._recorder), id(self_._dataset), size))
            return batch

        iterator.__next__ = drawn
        try:
            yield
        finally:
            iterator.__next__ = original

    def samples(self, begin: int, end: int) -> int | None:
        """The samples drawn between two positions of the recording.

        None when no loader or several ones were used: which samples count is then not clear.
        """
        drawn = [(data, size) for at, data, size in self._drawn if begin <= at < end]
        sizes = [size for _, size in drawn if size is not None]
        if len({data for data, _ in drawn}) != 1 or len(sizes) != len(drawn):
            return None
        return sum(sizes) or None


def _size(iterator: Any, batch: Any) -> int | None:
    """The number of samples of a batch: its loader's batch size, or a tensor's first dimension."""
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    if isinstance(size, int):
        return size
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return int(leaf.shape[0])
    return None
