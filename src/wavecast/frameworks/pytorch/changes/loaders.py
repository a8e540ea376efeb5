"""Changes of data loaders: larger batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.utils.data import DataLoader

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
