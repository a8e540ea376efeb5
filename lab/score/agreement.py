"""Do traces made without a GPU have the same ops as the same steps run on one?

    python -m lab score agreement

Needs transformers, and the campaign `steps`, recorded on the GPU. The command
traces each step on this machine. It prints the share of ops and of GPU time that both traces have,
and the ops that differ.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab import needs
from lab.measured import campaigns
from lab.steps.reality import PRECISIONS, STEPS
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Call, TensorSpec, Trace


def main(given: Sequence[str] = ()) -> None:
    """Compare traces made here with the steps recorded on the GPU."""
    needs.parser(__doc__).parse_args(given)
    for (name, (make, batch)), precision in itertools.product(STEPS.items(), PRECISIONS):
        real = campaigns.traces(RECORDED)[f"{name}-{precision}"]
        traced = capture(partial(make, batch, precision))
        print(describe(f"{name} {precision}", compare(real, traced)))


# Compare a trace made without a GPU, op by op, with the same step recorded on a GPU.


RECORDED = "steps"
"""The campaign of the recorded steps (`lab.measured.campaigns`)."""


@dataclass(frozen=True)
class Agreement:
    """The shares of a recorded step's ops and GPU time that the trace contains as well."""

    real_ops: int
    traced_ops: int
    by_count: float
    by_gpu_time: float
    only_real: Counter[Any]
    only_traced: Counter[Any]


def compare(real: Trace, traced: Trace) -> Agreement:
    """Match the ops of two traces by phase, name, shapes and dtypes, each as often as it occurs."""
    expected, got = Counter(map(identity, real)), Counter(map(identity, traced))
    left = Counter(got)
    matched_s = total_s = 0.0
    for call in real:
        seconds = sum(kernel.seconds for kernel in call.kernels)
        total_s += seconds
        if left[identity(call)] > 0:
            left[identity(call)] -= 1
            matched_s += seconds
    common = sum((expected & got).values())
    return Agreement(
        real_ops=len(real),
        traced_ops=len(traced),
        by_count=common / max(len(real), len(traced)),
        by_gpu_time=matched_s / total_s if total_s else 1.0,
        only_real=expected - got,
        only_traced=got - expected,
    )


def identity(call: Call) -> tuple[Any, ...]:
    """The key by which ops are matched. It ignores cuDNN's opaque buffers, whose sizes vary."""

    def tensors(specs: tuple[TensorSpec, ...]) -> tuple[Any, ...]:
        opaque = call.op.base.startswith("aten._cudnn_rnn")
        return tuple((t.shape, t.dtype) for t in specs if not (opaque and t.dtype == "uint8"))

    # torch releases differ in which of the two names they use for the same view.
    name = call.op.name.replace("_unsafe_view", "view")
    return call.phase, name, tensors(call.op.inputs), tensors(call.op.outputs)


def describe(name: str, agreement: Agreement) -> str:
    """One line with the shares, and a line for each of the most frequent ops that differ."""
    line = (
        f"{name:22} real {agreement.real_ops:5} traced {agreement.traced_ops:5} "
        f"count {agreement.by_count:7.2%} gpu time {agreement.by_gpu_time:7.2%}"
    )
    for title, counter in (("real", agreement.only_real), ("traced", agreement.only_traced)):
        for (phase, op, inputs, outputs), count in counter.most_common(6):
            shapes = " ".join(f"{s}{d[-4:]}" for s, d in inputs[:3])
            line += f"\n    only {title}: {count}x {phase} {op} {shapes} -> {outputs[:2]}"
    return line
