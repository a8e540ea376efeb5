"""The measured time of an op, from any source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from wavecast import ops
from wavecast.ops import Kind
from wavecast.traces.step import Op


@dataclass(frozen=True)
class OpRow:
    """Ops that were timed together (nearly always one), the GPU, the time and the source."""

    ops: tuple[Op, ...]
    gpu: str
    seconds: float
    source: str

    @property
    def kind(self) -> Kind:
        """The kind of the ops, which is the same for all of them."""
        kind = ops.kind(self.ops[0])
        assert kind is not None
        return kind


def digest(rows: Sequence[OpRow]) -> str:
    """A hash of everything that a fit sees."""
    hasher = hashlib.sha256()
    for row in rows:
        hasher.update(repr((row.ops, row.gpu, float(f"{row.seconds:.6g}"), row.source)).encode())
    return hasher.hexdigest()
