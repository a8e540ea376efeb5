"""Whether torch would pad a matmul whose sizes are not aligned, which it finds out by trying.

Torch tries both on the GPU and takes the padded matmul if it is 1.1 times as fast, with the copies
that padding needs. Here both times are estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.frameworks.pytorch.compiled.target import CompileTarget

TENSOR_CORES = ("tf32", "float16", "bfloat16")
"""Precisions of matmuls in which alignment counts. Others run the same kernels when padded."""

_MUST_GAIN = 1.1
"""Torch's own factor (`is_padded_faster`)."""

# From vocabularies of 30,522 and 50,257 tokens on an H200: in bf16 140, 242 and about 830 TFLOP/s
# with alignments of 1, 2 and 8 elements; in TF32 120 and 366 with 1 or 2, and 4.
_SLOWDOWN_ODD = {"tf32": 3.0, "float16": 6.0, "bfloat16": 6.0}
_SLOWDOWN_EVEN = {"tf32": 3.0, "float16": 3.4, "bfloat16": 3.4}

_TRANSPOSING = 6.0
"""How much longer the copy of a transposed operand takes. What an H200 padded bounds it."""

_COPY_S = 1e-5
"""What making zeros and joining them to one operand takes at least."""


@dataclass(frozen=True)
class Operand:
    """A matrix that has to be padded."""

    nbytes: int
    is_planned: bool
    """Whether torch expects that it is made with its padding, so that nothing is copied."""
    is_contiguous: bool


def is_faster_padded(
    target: CompileTarget, precision: str, sizes: tuple[int, ...], padded: tuple[Operand, ...]
) -> bool:
    """Whether a matmul is estimated to be faster when padded.

    Args:
        target: the GPU.
        precision: how it is computed: "float32", "tf32", "float16" or "bfloat16".
        sizes: its sizes, that of a batch included.
        padded: its operands that have to be padded.
    """
    if precision not in TENSOR_CORES:
        return False
    matmul_s = 2 * math.prod(sizes) / target.flops_of(precision)
    is_odd = any(size % 2 for size in sizes[-3:] if size > 1)
    slowdown = (_SLOWDOWN_ODD if is_odd else _SLOWDOWN_EVEN)[precision]
    copies_s = sum(_copy_s(target, operand) for operand in padded if not operand.is_planned)
    return slowdown * matmul_s > _MUST_GAIN * (matmul_s + copies_s)


def _copy_s(target: CompileTarget, operand: Operand) -> float:
    factor = 1.0 if operand.is_contiguous else _TRANSPOSING
    return _COPY_S + factor * 2 * operand.nbytes / target.memory_bytes_per_s
