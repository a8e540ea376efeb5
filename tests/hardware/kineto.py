"""The occupancy that PyTorch's profiler (Kineto) writes next to each kernel, by its formulas.

Comparing with real files shows that our blocks per SM are those of NVIDIA's calculator.
"""

from __future__ import annotations

import numpy as np

from wavecast.hardware.device import Device
from wavecast.hardware.occupancy import WARP_THREADS, kernel_blocks_per_sm, limits_of
from wavecast.traces.step import Kernel


def kineto_blocks_per_sm(device: Device, kernel: Kernel) -> float | None:
    """Kineto's "blocks per SM": all blocks of the launch over the number of SMs."""
    if kernel.blocks is None or device.sm_count is None:
        return None
    return kernel.blocks / device.sm_count


def kineto_warps_per_sm(device: Device, kernel: Kernel) -> float | None:
    """Kineto's "warps per SM", where part of a warp counts as that part."""
    blocks = kineto_blocks_per_sm(device, kernel)
    if blocks is None or kernel.threads is None:
        return None
    return blocks * kernel.threads / WARP_THREADS


def kineto_occupancy(device: Device, kernel: Kernel) -> int | None:
    """Kineto's "est. achieved occupancy %"; None if facts are missing.

    The blocks of the launch are spread evenly over the SMs, at most as many as fit; the result is
    their threads as a share of those that an SM holds. Kineto never opts in to more shared memory,
    so a kernel with more than 48 KiB of it reads 0.
    """
    limits, launched = limits_of(device), kineto_blocks_per_sm(device, kernel)
    fitting = kernel_blocks_per_sm(device, kernel, optin=False)
    if limits is None or launched is None or fitting is None or kernel.threads is None:
        return None
    # In single precision, as in Kineto: it decides how 1.8 blocks of 256 threads, 22.5 %, round.
    blocks = np.float32(min(launched, fitting))
    share = blocks * np.float32(kernel.threads) / np.float32(limits.max_threads_per_sm)
    return int(float(share) * 100 + 0.5)
