"""The GPU that a step is compiled for, with the facts that the compiler asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from wavecast.hardware.devices import Device, usual_gpu

# Whether torch would pad a matmul whose sizes are not aligned, which it finds out by trying.
#
# Torch tries both on the GPU and takes the padded matmul if it is 1.1 times as fast, with the
# copies that padding needs. Here both times are estimated.


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

    The `sizes` are those of the matmul, that of a batch included; `padded` are its operands that
    have to be padded.
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


OLDEST = (7, 0)
"""The oldest compute capability for which Triton, and so the compiler, makes kernels."""

_THREADS_PER_BLOCK = 1024
_REGISTERS_PER_SM = 65_536
_THREADS_PER_SM = 2048


@dataclass(frozen=True)
class CompileTarget:
    """What the compiler asks of a GPU. Its choice of kernels depends on nothing else."""

    capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    memory_bytes_per_s: float
    flops: tuple[tuple[str, float], ...]
    """FLOP/s by dtype, and "tf32"."""
    l2_bytes: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    registers_per_sm: int = _REGISTERS_PER_SM
    threads_per_sm: int = _THREADS_PER_SM

    def flops_of(self, dtype: str) -> float:
        """FLOP/s for matmuls of a dtype or "tf32"; those of float32 for one without a rate."""
        rates = dict(self.flops)
        return rates.get(dtype, rates["float32"])

    def properties(self) -> dict[str, Any]:
        """The fields that `torch.cuda.get_device_properties` has beside the memory."""
        return {
            "multi_processor_count": self.sm_count,
            "warp_size": 32,
            "regs_per_multiprocessor": self.registers_per_sm,
            "max_threads_per_multi_processor": self.threads_per_sm,
            "max_threads_per_block": _THREADS_PER_BLOCK,
            "shared_memory_per_block": 49_152,
            "shared_memory_per_block_optin": self.shared_bytes_per_block,
            "shared_memory_per_multiprocessor": self.shared_bytes_per_sm,
            "L2_cache_size": self.l2_bytes,
        }


def target_of(gpu: Device | None, capability: tuple[int, int]) -> CompileTarget:
    """The target for a GPU, or for the usual one of a compute capability."""
    if gpu is None or gpu.sm_count is None or gpu.compute_capability is None:
        gpu = usual_gpu(capability)
    fp32 = gpu.fp32_flops
    return CompileTarget(
        capability=capability,
        sm_count=gpu.sm_count or 1,
        memory_bytes=gpu.memory_bytes,
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        flops=(
            ("float32", fp32),
            ("float16", gpu.fp16_tensor_flops or gpu.fp16_flops or fp32),
            ("tf32", gpu.tf32_tensor_flops or fp32),
            ("bfloat16", gpu.bf16_tensor_flops or fp32),
        ),
        l2_bytes=gpu.l2_bytes or 0,
        shared_bytes_per_block=gpu.shared_bytes_per_block_optin or 49_152,
        shared_bytes_per_sm=gpu.shared_bytes_per_sm or 65_536,
        registers_per_sm=gpu.registers_per_sm or _REGISTERS_PER_SM,
        threads_per_sm=gpu.max_threads_per_sm or _THREADS_PER_SM,
    )
