"""Fit what it costs a host to issue ops, from host-bound steps measured on our H200 in two runs.

    python -m training.host

Seconds to issue a step at batch 2 = op_s * launches + view_s * views + convolution_s * convolutions
+ kernel_s * kernels of recurrent layers + tensor_s * tensors in lists, all non-negative, relative
errors. Views are held at 0.4 of an op (alone they cost 1.4 us of 7.9 on that host, but their
backward runs through autograd as well; these steps cannot tell them apart).
Prints the constants for `wavecast.timeline.REFERENCE_HOST`.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from wavecast import Trace, load_trace, ops
from wavecast.ops import Kind

MEASURED = Path(__file__).parent.parent / "measurements" / "h200"
VIEW_PER_OP = 0.4
NAMES = ("op_s", "convolution_s", "kernel_s", "tensor_s")


def features(trace: Trace) -> list[float]:
    """How often a step asks for each of the costs."""
    counts = dict.fromkeys(NAMES, 0.0)
    for call in trace:
        kind = ops.kind(call.op)
        counts["op_s"] += 1.0 if ops.launches(call.op) else VIEW_PER_OP
        if kind is Kind.CONVOLUTION:
            counts["convolution_s"] += 1
        elif kind is Kind.RNN:
            counts["kernel_s"] += len(call.kernels)
        elif kind is Kind.OPTIMIZER:
            counts["tensor_s"] += len(call.op.inputs)
    return list(counts.values())


def main() -> None:
    """Fit, and show how well each step is met."""
    rows = [r for r in csv.DictReader((MEASURED / "steps.csv").open()) if r["batch"] == "2"]
    names = [f"{row['model']}-{row['precision']}" for row in rows]
    traces = [load_trace(MEASURED / "steps" / f"{name}.json.gz") for name in names]
    asked = np.array([features(trace) for trace in traces])
    issued = np.array([min(float(r["issue_s"]), float(r["steady_s"])) for r in rows])
    costs, _ = nnls(asked / issued[:, None], np.ones(len(issued)))
    errors = asked @ costs / issued - 1
    for name, cost in zip(NAMES, costs, strict=True):
        print(f"{name:14} {cost * 1e6:6.1f} us")
    print(f"{'view_s':14} {costs[0] * VIEW_PER_OP * 1e6:6.1f} us")
    read_back_s = json.loads((MEASURED / "probe.json").read_text())["issue_s"]["item"]
    print(f"{'sync_s':14} {read_back_s * 1e6:6.1f} us (a value read back, probe.json)")
    for row, name, error, seconds in zip(rows, names, errors, issued, strict=True):
        print(f"run {row['run']} {name:20} {seconds * 1e3:6.1f} ms {error:+.0%}")
    print(f"mean absolute error {np.abs(errors).mean():.1%}, worst {np.abs(errors).max():.0%}")


if __name__ == "__main__":
    main()
