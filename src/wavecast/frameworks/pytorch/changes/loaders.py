"""Changes of data loaders: larger batches, and batches of a few samples that are repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, cycle, islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from wavecast.frameworks.pytorch.capture.replacements import replacing


@contextmanager
def twice_the_batch() -> Iterator[None]:
    """Build data loaders with twice the batch."""
    original = DataLoader.__init__

    def build(self: Any, dataset: Any, batch_size: Any = 1, *args: Any, **named: Any) -> None:
        has_own = named.get("batch_sampler") is None and batch_size is not None
        original(self, dataset, 2 * batch_size if has_own else batch_size, *args, **named)

    with ExitStack() as stack:
        replacing(stack)(DataLoader, __init__=build)
        yield


_LOADED = 64
"""How many samples of a batch are loaded, if few are enough."""
_LEAST_BATCHES = 8
"""How many full batches every data loader has then."""


@contextmanager
def few_samples() -> Iterator[None]:
    """Load the first samples of each batch and repeat them; no dataset is too small for a batch.

    So a script can be asked for a batch that its data or this machine's time would not allow.
    """
    fetch, draw, count = _MapDatasetFetcher.fetch, BatchSampler.__iter__, BatchSampler.__len__

    def fetched(self: Any, index: Any) -> Any:
        if not self.auto_collation or len(index) <= _LOADED:
            return fetch(self, index)
        first, many = index[:_LOADED], getattr(self.dataset, "__getitems__", None)
        samples = many(first) if many else [self.dataset[each] for each in first]
        return self.collate_fn(list(islice(cycle(samples), len(index))))

    def drawn(self: Any) -> Iterator[Any]:
        if count(self) > _LEAST_BATCHES:
            yield from draw(self)
            return
        indices = cycle(list(chain.from_iterable(draw(_kept(self)))))
        for _ in range(_LEAST_BATCHES):
            yield list(islice(indices, self.batch_size))

    def counted(self: Any) -> int:
        return max(int(count(self)), _LEAST_BATCHES)

    with ExitStack() as stack:
        replacing(stack)(_MapDatasetFetcher, fetch=fetched)
        replacing(stack)(BatchSampler, __iter__=drawn, __len__=counted)
        yield


def _kept(sampler: BatchSampler) -> BatchSampler:
    """The sampler with its last batch, however small it is."""
    return BatchSampler(sampler.sampler, sampler.batch_size, drop_last=False)
