"""CTC loss and packed sequences, whose lengths the host must know."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.host_values import known_values

_aten = torch.ops.aten


def sequence_kernels(assumptions: Assumptions) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The implementations, with the names of the operators."""
    yield "ctc_loss.IntList", CtcLoss(assumptions)
    yield "ctc_loss.Tensor", CtcLoss(assumptions)
    yield "pad_sequence", pad_sequence
    yield "_pad_packed_sequence", pad_packed_sequence
    yield "_pack_padded_sequence_backward", pack_padded_sequence_backward


@dataclass(frozen=True)
class CtcLoss:
    """`ctc_loss` with torch's own kernel (aten/native/LossCTC.cpp).

    Torch chooses cuDNN's kernel by values: for int32 targets on the host, if all inputs are as long
    as the longest. That is not modelled, and a note says so.
    """

    assumptions: Assumptions

    def __call__(
        self,
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:
        """Call it as torch does, which copies lengths to the host and targets to the GPU."""
        if targets.dtype is torch.int32 and blank == 0:
            self.assumptions.note("CTC loss was assumed to run torch's own kernel, not cuDNN's")
        if isinstance(input_lengths, torch.Tensor):
            longest = targets.shape[-1]
            input_lengths = self._to_list(input_lengths, log_probs.shape[0], "CTC inputs")
            target_lengths = self._to_list(target_lengths, longest, "CTC targets")
        targets = targets.to(log_probs.device)
        targets.to(torch.int32)  # torch makes this copy to ask whether MIOpen can run it
        targets = targets.to(torch.int64)
        loss = _aten._ctc_loss(
            log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
        )[0]
        if zero_infinity:
            zero = torch.zeros((), dtype=loss.dtype, device=loss.device)
            loss = torch.where(loss == math.inf, zero, loss)
        if reduction == 1:
            lengths = torch.tensor(target_lengths, dtype=loss.dtype).to(loss.device)
            return (loss / lengths.clamp_min(1)).mean()
        return loss.sum() if reduction == 2 else loss

    def _to_list(self, lengths: Any, bound: int, what: str) -> list[int]:
        return self.assumptions.lengths(lengths.to("cpu", torch.int64), bound, what)


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, side: str = "right"
) -> Any:
    """`pad_sequence`: one copy per sequence (native/PackedSequence.cpp).

    Torch's C++ code would make the result on the host, because it sees the sequences there.
    """
    first, longest = sequences[0], max(len(sequence) for sequence in sequences)
    shape = (len(sequences), longest) if batch_first else (longest, len(sequences))
    padded = torch.full(
        (*shape, *first.shape[1:]), padding_value, dtype=first.dtype, device=first.device
    )
    for index, sequence in enumerate(sequences):
        row = padded.select(0 if batch_first else 1, index)
        start = 0 if side == "right" else longest - len(sequence)
        row.narrow(0, start, len(sequence)).copy_(sequence)
    return padded


def pad_packed_sequence(
    data: Any, batch_sizes: Any, batch_first: bool, padding_value: Any, total_length: int
) -> Any:
    """`_pad_packed_sequence`: one copy per run of equal batch sizes (native/PackedSequence.cpp)."""
    sizes = known_values(batch_sizes).tolist()
    shape = (max(len(sizes), total_length), sizes[0], *data.shape[1:])
    output = torch.full(shape, padding_value, dtype=data.dtype, device=data.device)
    lengths: list[int] = []
    offset = start = 0
    for end, (size, following) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True), 1):
        if following == size:
            continue
        count = size * (end - start)
        part = data.narrow(0, offset, count).view(end - start, size, *data.shape[1:])
        output[start:end, :size].copy_(part)
        lengths[:0] = [end] * (size - following)
        offset, start = offset + count, end
    return output.transpose(0, 1) if batch_first else output, torch.tensor(lengths)


def pack_padded_sequence_backward(
    grad: Any, input_size: Any, batch_sizes: Any, batch_first: bool
) -> Any:
    """`_pack_padded_sequence_backward`: one copy per time step (native/PackedSequence.cpp)."""
    shape = list(input_size)
    if batch_first:
        shape[0], shape[1] = shape[1], shape[0]
    padded = torch.zeros(shape, dtype=grad.dtype, device=grad.device)
    offset = 0
    for step, size in enumerate(known_values(batch_sizes).tolist()):
        padded[step][:size].copy_(grad[offset : offset + size])
        offset += size
    return padded.transpose(0, 1) if batch_first else padded
