"""How many thread blocks of a kernel run at a time on one SM of an NVIDIA GPU.

The rule is that of NVIDIA's occupancy calculator (cuda_occupancy.h): warps, blocks, registers and
shared memory each allow a number of blocks per SM, and the smallest counts. Habitat's waves (Yu et
al., ATC 2021; `wavecast.predictors.wave`) are built on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from wavecast.hardware.devices import Device
from wavecast.traces.step import Kernel

WARP_THREADS = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256
"""A warp gets registers in multiples of this number."""


@dataclass(frozen=True, slots=True)
class SmLimits:
    """The resources of one SM (streaming multiprocessor), which the blocks of a kernel share."""

    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    """The most registers that one block may use."""
    partitions: int
    """Parts of an SM with a scheduler and registers each. A warp lies in one partition."""
    shared_bytes_per_sm: int
    shared_bytes_optin: int
    """The most shared memory that one block may use, after opting in."""
    shared_unit_bytes: int
    """A block gets shared memory in multiples of this number of bytes."""
    shared_reserved_bytes: int
    """Shared memory that the system takes for each block."""
    note: str = ""
    """Not empty when the limits are those of another compute capability; it says which."""


# Limits by architecture: CUDA C++ Programming Guide (technical specifications per compute
# capability) and the CUDA occupancy calculator.


def _before_ampere(
    threads: int, blocks: int, shared_kib: int, optin_kib: int = 48, *,
    registers: int = 65536, of_block: int = 65536, partitions: int = 4,
) -> SmLimits:  # fmt: skip
    shared, optin = shared_kib * 1024, optin_kib * 1024
    return SmLimits(threads, blocks, registers, of_block, partitions, shared, optin, 256, 0)


def _since_ampere(threads: int, blocks: int, shared_kib: int) -> SmLimits:
    shared, reserved = shared_kib * 1024, 1024
    return SmLimits(threads, blocks, 65536, 65536, 4, shared, shared - reserved, 128, reserved)


LIMITS: Mapping[tuple[int, int], SmLimits] = {
    (3, 5): _before_ampere(2048, 16, 48),
    (3, 7): _before_ampere(2048, 16, 112, registers=131072),
    (5, 0): _before_ampere(2048, 32, 64),
    (5, 2): _before_ampere(2048, 32, 96),
    (5, 3): _before_ampere(2048, 32, 64, of_block=32768),
    (6, 0): _before_ampere(2048, 32, 64, partitions=2),
    (6, 1): _before_ampere(2048, 32, 96),
    (6, 2): _before_ampere(2048, 32, 64, of_block=32768),
    (7, 0): _before_ampere(2048, 32, 96, 96),
    (7, 2): _before_ampere(2048, 32, 96, 96),
    (7, 5): _before_ampere(1024, 16, 64, 64),
    (8, 0): _since_ampere(2048, 32, 164),
    (8, 6): _since_ampere(1536, 16, 100),
    (8, 7): _since_ampere(1536, 16, 164),
    (8, 9): _since_ampere(1536, 24, 100),
    (9, 0): _since_ampere(2048, 32, 228),
    (10, 0): _since_ampere(2048, 32, 228),
    (10, 3): _since_ampere(2048, 32, 228),
    (11, 0): _since_ampere(1536, 24, 228),
    (12, 0): _since_ampere(1536, 24, 100),
    (12, 1): _since_ampere(1536, 24, 100),
}
"""The limits by compute capability, which alone determines them."""


@lru_cache(maxsize=1024)
def limits_of(device: Device) -> SmLimits | None:
    """The limits of a device's SMs: the facts of its file, else those of its compute capability.

    A capability that the table lacks gets the limits of the nearest older one (`SmLimits.note`).
    None for a device without one (AMD, Intel) or with one older than the table.
    """
    capability = device.compute_capability
    older = [listed for listed in LIMITS if capability is not None and listed <= capability]
    if capability is None or not older:
        return None
    used = max(older)
    note = (
        "" if used == capability else f"compute capability {_dotted(capability)} as {_dotted(used)}"
    )
    table = LIMITS[used]
    return replace(
        table,
        max_threads_per_sm=device.max_threads_per_sm or table.max_threads_per_sm,
        max_blocks_per_sm=device.max_blocks_per_sm or table.max_blocks_per_sm,
        registers_per_sm=device.registers_per_sm or table.registers_per_sm,
        shared_bytes_per_sm=device.shared_bytes_per_sm or table.shared_bytes_per_sm,
        shared_bytes_optin=device.shared_bytes_per_block_optin or table.shared_bytes_optin,
        note=note,
    )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def blocks_per_sm(limits: SmLimits, threads: int, registers: int, shared_bytes: int) -> int:
    """How many blocks fit on one SM at a time; 0 if the kernel cannot run there.

    Threads and shared memory are those of one block, registers those of one thread. 0 means no
    limit of registers or shared memory.
    """
    if not 0 < threads <= MAX_THREADS_PER_BLOCK:
        return 0
    warps = -(-threads // WARP_THREADS)
    return min(
        limits.max_blocks_per_sm,
        limits.max_threads_per_sm // WARP_THREADS // warps,
        _by_registers(limits, warps, registers),
        _by_shared_memory(limits, shared_bytes),
    )


def _by_registers(limits: SmLimits, warps: int, registers: int) -> int:
    if not registers:
        return limits.max_blocks_per_sm
    per_warp = _round_up(registers * WARP_THREADS, REGISTER_UNIT)
    # The limit per block counts four partitions even on the P100, which has two.
    per_block = per_warp * _round_up(warps, 4)
    if registers > MAX_REGISTERS_PER_THREAD or per_block > limits.registers_per_block:
        return 0
    warps_per_partition = limits.registers_per_sm // limits.partitions // per_warp
    return warps_per_partition * limits.partitions // warps


def _by_shared_memory(limits: SmLimits, shared_bytes: int) -> int:
    if not shared_bytes:
        return limits.max_blocks_per_sm
    if shared_bytes > limits.shared_bytes_optin:
        return 0
    per_block = _round_up(shared_bytes, limits.shared_unit_bytes) + limits.shared_reserved_bytes
    return limits.shared_bytes_per_sm // per_block


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def kernel_blocks_per_sm(device: Device, kernel: Kernel) -> int | None:
    """How many blocks of a kernel fit on one SM of a device; None where facts are missing."""
    limits = limits_of(device)
    if limits is None or kernel.threads is None or kernel.registers is None:
        return None
    return blocks_per_sm(limits, kernel.threads, kernel.registers, kernel.shared_bytes or 0)
