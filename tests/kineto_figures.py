"""The occupancy figures that PyTorch's profiler (Kineto) writes next to each kernel.

They are computed here from `wavecast.hardware.occupancy`, so that tests can compare our rule with
the figures in real profiler files.
"""

from __future__ import annotations

import numpy as np

from wavecast.hardware.devices import Device
from wavecast.hardware.occupancy import WARP_THREADS, kernel_blocks_per_sm, limits_of
from wavecast.traces.step import Kernel

DEFAULT_SHARED_BYTES = 48 * 1024
"""The shared memory that a block may use without opting in. Kineto never counts with more."""


def kineto_blocks_per_sm(device: Device, kernel: Kernel) -> float | None:
    """Kineto's "blocks per SM": all blocks of the launch divided by the number of SMs."""
    if kernel.blocks is None or device.sm_count is None:
        return None
    return kernel.blocks / device.sm_count


def kineto_warps_per_sm(device: Device, kernel: Kernel) -> float | None:
    """Kineto's "warps per SM", where part of a warp counts as a fraction."""
    blocks = kineto_blocks_per_sm(device, kernel)
    if blocks is None or kernel.threads is None:
        return None
    return blocks * kernel.threads / WARP_THREADS


def kineto_occupancy(device: Device, kernel: Kernel) -> int | None:
    """Kineto's "est. achieved occupancy %"; None where facts are missing.

    The blocks of the launch are spread evenly over the SMs, no more than fit on each. The figure
    is their threads as a share of the most that an SM holds.
    """
    limits, launched = limits_of(device), kineto_blocks_per_sm(device, kernel)
    fitting = kernel_blocks_per_sm(device, kernel)
    if limits is None or launched is None or fitting is None or kernel.threads is None:
        return None
    if (kernel.shared_bytes or 0) > DEFAULT_SHARED_BYTES:
        fitting = 0
    # Kineto computes in single precision, which decides how 22.5 % is rounded.
    blocks = np.float32(min(launched, fitting))
    share = blocks * np.float32(kernel.threads) / np.float32(limits.max_threads_per_sm)
    return int(float(share) * 100 + 0.5)
