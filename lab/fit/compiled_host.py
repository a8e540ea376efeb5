"""Fit what compiled code costs the host: launches, library calls, and calls of graphs.

    python -m lab.fit.compiled_host

Needs only measurements/h200/compiled. Writes src/wavecast/data/hosts/compiled.toml.

Of steps whose GPU waits for the host, the wall time less that of the optimizer (as the profiler
recorded it) is a sum over fused kernels, library calls, convolutions and a constant. The costs are
written as numbers of ops that Python issues in the forward pass (`Host.forward_s`), so that they
hold for other hosts. Guards and calls of graphs are too few in each step to be told from the
constant, which `Host.step_s` covers; theirs are the lengths of their regions in the profile.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from lab.measured.compiled import steps
from lab.places import MODELS
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.ops.fused import CALL, GUARDS

HOST_BOUND = 0.75
"""The GPU of such a step is busy for less than this share of its time."""
PROFILED = 0.8
"""The optimizer's time without a profiler, as a share of that with one."""
CALL_US = 50.0
"""Microseconds of a graph's call around its kernels: arguments are checked, and it returns."""
OPTIMIZERS = ("_foreach", "_fused_", "_amp_")
ROUNDS = 12
NEAR = 0.05


def counts(row: dict[str, Any]) -> tuple[int, int, int]:
    """The fused kernels, other library calls and convolutions of a step's iteration."""
    kernels = row["compiled"]["kernels"]
    fused = sum(kernel["name"] in row["ops"] for kernel in kernels)
    library = convolutions = 0
    for _, group in itertools.groupby(kernels, key=lambda kernel: repr(kernel["op"])):
        op = next(group)["op"]
        if op is None or any(name in op[0] for name in OPTIMIZERS):
            continue
        convolutions += "conv" in op[0]
        library += "conv" not in op[0]
    return fused, library, convolutions


def table() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How often each host-bound step needs each cost, and its seconds without the optimizer."""
    asked, seconds = [], []
    for row in steps():
        half = row["compiled"]
        regions = half["regions"]
        bound = half["busy_s"] < HOST_BOUND * half["wall_s"]
        recurrent = row["family"] == "recurrent"  # cuDNN launches hundreds of kernels in one call
        if not bound or recurrent or row["mode"] != "default" or not row["ops"]:
            continue
        # The profiler has each of these regions twice, one within the other.
        apart_us = PROFILED * regions.get("Optimizer.step", [0, 0.0])[1] / 2
        apart_us += regions.get("Optimizer.zero_grad", [0, 0.0])[1]
        asked.append([*counts(row), 1])
        seconds.append(half["wall_s"] - apart_us * 1e-6)
    return np.array(asked, dtype=float), np.array(seconds)


def main() -> None:
    """Fit, write the file and print how well the steps are described."""
    asked, seconds = table()
    weight = 1 / seconds
    for _ in range(ROUNDS):
        scaled = asked * weight[:, None], seconds * weight
        costs_s = lsq_linear(*scaled, bounds=(0, np.inf)).x
        off = np.abs(asked @ costs_s / seconds - 1)
        weight = 1 / seconds / np.sqrt(np.maximum(off, NEAR))
    guards = [
        us / count
        for row in steps()
        for count, us in [row["compiled"]["regions"].get("TorchDynamo Cache Lookup", (0, 0.0))]
        if count
    ]
    op_us = REFERENCE_HOST.forward_s * 1e6
    lines = [
        "# What compiled code costs the host, as a number of ops that Python issues in the forward",
        "# pass. Written by python -m lab.fit.compiled_host.",
        f"# Fitted on {len(seconds)} host-bound steps (measurements/h200/compiled), which it",
        f"# describes with a mean error of {off.mean():.1%}.",
        "",
        "[forward_ops]",
        f'"{GUARDS}" = {PROFILED * float(np.median(guards)) / op_us:.2f}',
        f'"{CALL}" = {CALL_US / op_us:.2f}',
        f'"kernel" = {costs_s[0] * 1e6 / op_us:.2f}',
        f'"library" = {costs_s[1] * 1e6 / op_us:.2f}',
    ]
    path = MODELS.parent / "hosts" / "compiled.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
    print(
        "convolution:", round(costs_s[2] * 1e6, 1), "us; constant:", round(costs_s[3] * 1e6), "us"
    )


if __name__ == "__main__":
    main()
