"""All measured ops that the learned op models are fitted on: our own and those of public tables.

Our own are read from measurements/h200: the traces of the campaigns (`lab.measured.campaigns`) and
the timed layers. Traces with hardware counters are left out, because they replay kernels, and so
are the campaigns of `HELD_OUT`. `lab.measured.public_ops` reads the public tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lab.measured import campaigns
from lab.measured.op_makers import OpRow, ops_of
from lab.measured.public_ops import public_rows
from lab.places import H200
from wavecast import ops
from wavecast.campaigns.layer_times import read_rows
from wavecast.hardware.devices import device
from wavecast.ops import Kind
from wavecast.predictors.mlp import LayerStatus
from wavecast.traces import file
from wavecast.traces.step import Op, Trace

OUR_GPU = "h200-sxm"
OF_A_CHIP = ("channels-last", "newer", "sounds", "odd", "filters")
"""Campaigns that show what the libraries of our GPU do with one layout and with newer layers. Only
trees of its chip see them: they would say nothing about other GPUs, and shift what they share."""
HELD_OUT = {
    *("runs", "blind", "scaled", "iterations", "huggingface", "habitat-weights", "host-steps"),
    *("third", "fourth", "ten-minutes", "waves"),
    *OF_A_CHIP,
}
"""Our campaigns and folders that the fits do not read; predictions are scored on them, except for
`OF_A_CHIP`."""
UNUSUAL = {("memory", Kind.OPTIMIZER)}
"""Campaigns and kinds of their ops that no fit reads: the lists have tensors of odd sizes, which
take a path of their kernels that those of networks do not."""
OUR_STEPS = "h200 steps"
"""The source of ops from our measured traces."""


def all_rows(folder: Path) -> list[OpRow]:
    """All ops, public and our own, in a fixed order."""
    return [*public_rows(folder), *our_rows()]


def our_rows() -> list[OpRow]:
    """All ops that we measured on our H200."""
    return [*_traced(fitted_traces()), *_layers(H200 / "layers")]


def rows_of_a_chip(campaign: str = OF_A_CHIP[0]) -> list[OpRow]:
    """Ops that only the trees of their chip are fitted on; of the first campaign, convolutions."""
    rows = _traced((campaign, *item) for item in campaigns.traces(campaign).items())
    return [row for row in rows if row.kind is Kind.CONVOLUTION or campaign != OF_A_CHIP[0]]


def fitted_traces() -> Iterator[tuple[str, str, Trace]]:
    """The campaign, the key and the trace of every trace that a fit may read."""
    for name in campaigns.names():
        if name not in HELD_OUT:
            for key, trace in campaigns.traces(name).items():
                yield name, key, trace


def _traced(traces: Iterable[tuple[str, str, Trace]]) -> Iterator[OpRow]:
    """The distinct ops of measured steps, each with the median time of its calls.

    The time of a call is the time in which any of its kernels ran. Kernels of one call may overlap,
    because cuDNN uses several streams for recurrent layers and groups.
    """
    times_of_ops: dict[tuple[str, Op], list[float]] = defaultdict(list)
    for campaign, key, trace in traces:
        if "counters" in key:
            continue
        gpu = device(trace.measurement.gpu).id if trace.measurement else OUR_GPU
        for call in trace:
            seconds = file.busy_s(call.kernels)
            if (campaign, ops.kind(call.op)) in UNUSUAL:
                continue
            if seconds > 0 and ops.launches(call.op) and ops.cost_of(call.op) is not None:
                times_of_ops[gpu, call.op].append(seconds)
    for (gpu, op), times in times_of_ops.items():
        yield OpRow((op,), gpu, float(np.median(times)), OUR_STEPS)


def _layers(folder: Path) -> Iterator[OpRow]:
    for path in sorted(folder.glob("*.csv")):
        for row in read_rows(path):
            if row.time.status is not LayerStatus.OK:
                continue
            for backward, seconds in ((False, row.time.forward_s), (True, row.time.backward_s)):
                if seconds:
                    yield OpRow(
                        ops_of(row.layer, backward=backward), row.gpu, seconds, "h200 layers"
                    )
