"""The GPU's idle time between kernels that follow each other, where op times leave it out.

Op times of a chip that we measured are those of its kernels alone. The public op times of other
chips come from loops over one op, which include what lies between two kernels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from wavecast.hardware.hosts import GRAPH_GAP_S, Seconds, kernels
from wavecast.traces.arrays import StepArrays
from wavecast.traces.graphs import XLA_CALL, graphs_of

GAP_S = 1.4e-6
"""Seconds between two kernels that PyTorch launches one by one. The median of (wall-clock - busy
time) / kernels is 1.46, 1.37 and 1.33 us in the 84 steps of the campaigns `suite`, `population` and
`measured` on our H200 whose host needs less than 0.65 of the GPU's time."""

XLA_GAP_S = 0.0
"""The same for XLA, which puts its kernels into command buffers. Its kernels were fitted as they
run one by one, a little slower than in a buffer: the median of (wall-clock - their sum) / kernels
is -0.03 us in 20 steps with cuDNN's convolutions and -0.18 us in 25 others
(measurements/h200/jax)."""


@lru_cache(maxsize=16)
def kernel_gaps(arrays: StepArrays) -> Seconds:
    """The idle time after the kernels of each call; less where they are replayed as a graph."""
    calls = arrays.calls
    gaps_s = np.full(len(calls), GAP_S)
    for graph in graphs_of(calls):
        by_xla = any(calls[mark].op.name == XLA_CALL for mark in graph.marks)
        if by_xla:
            gaps_s[list(graph.members)] = XLA_GAP_S
        elif graph.is_replayed:
            gaps_s[list(graph.members)] = GRAPH_GAP_S
    found: Seconds = gaps_s * kernels(calls)
    return found
