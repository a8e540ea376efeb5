"""Which calls write and read each tensor of a trace."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.traces.step import Call, Trace

ACTIVATIONS = frozenset({"aten.gelu", "aten.silu", "aten.gelu_backward", "aten.silu_backward"})
"""Activations and their gradients."""


class Flow:
    """The kernels that write and read each value. Views count as the value that they show.

    Args:
        trace: the step of one rank.
        option: the option that needs it, for the message.

    Raises:
        InvalidInput: the trace does not say what its calls read and write.
    """

    def __init__(self, trace: Trace, option: str) -> None:
        if not trace.values:
            raise InvalidInput(
                f"{option} follows tensors from op to op, and this trace does not say which "
                "tensors its ops read and write; trace the step again without compiling it "
                "(wavecast.trace): profiles and files of older versions do not say it either"
            )
        self.trace = trace
        self._bases: dict[int, int] = {}
        self._writers: dict[int, list[int]] = defaultdict(list)
        self._readers: dict[int, list[int]] = defaultdict(list)
        for position, call in enumerate(trace):
            if not ops.launches(call.op):
                continue
            for base in dict.fromkeys(map(self.base, call.reads)):
                self._readers[base].append(position)
            for base in dict.fromkeys(map(self.base, call.writes)):
                self._writers[base].append(position)

    def base(self, value: int) -> int:
        """The value of which this one is a view, or a view of a view; else itself."""
        known = self._bases.get(value)
        if known is None:
            shown = self.trace.values[value].view_of
            known = self._bases[value] = value if shown is None else self.base(shown)
        return known

    def writer(self, value: int, position: int) -> int | None:
        """The position of the kernel that wrote what a call at a position reads."""
        writers = self._writers.get(self.base(value), [])
        index = bisect_left(writers, position)
        return writers[index - 1] if index else None

    def readers(self, value: int) -> list[int]:
        """The positions of the kernels that read a value or a view of it."""
        return self._readers.get(self.base(value), [])

    def source(self, value: int, position: int) -> tuple[int, int | None]:
        """The value before collectives sent it, and the position of the kernel that wrote it."""
        writer = self.writer(value, position)
        while writer is not None and _sends(self.trace.calls[writer]):
            value, position = self.trace.calls[writer].reads[0], writer
            writer = self.writer(value, position)
        return self.base(value), writer


def _sends(call: Call) -> bool:
    return ops.kind(call.op) is ops.Kind.COLLECTIVE and bool(call.reads)
