"""Fit what compiled code costs the host: launches, attention, guards and calls of graphs.

    python -m lab.fit.compiled_host                 fit, write the file, print the errors
    python -m lab.fit.compiled_host count FOLDER    count the eager ops of traced steps anew

The fit needs only measurements/h200/compiled and writes src/wavecast/data/hosts/compiled.toml. All
costs are numbers of ops that Python issues in the forward pass (`Host.forward_s`), so that they
hold for other hosts.

The host's time of a step, measured without a profiler, is what the reference host takes for the
optimizer and for a step (`Host.step_s`), and what compiled code takes: launches, that is fused
kernels and library calls; attention, whose call is by far the longest; what the reference host
takes for the search of cuDNN and for further kernels of a library call; guards and calls of graphs.
Two numbers are fitted: those of a launch and of attention.

Guards and calls are too few in a step to be told apart. Small pieces of code, called in a loop,
show them: in a loop a launch takes half as long as in a step, so all that pieces show is multiplied
by what a launch takes in a step over what it takes in a piece. What a weight costs autograd is in
`Host.tensor_s`, which is larger than what the optimizer alone takes for a tensor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from lab.measured.compiled import FOLDER
from lab.measured.compiled_hosts import pieces, profiled, unprofiled
from lab.places import MODELS
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, demands
from wavecast.ops.fused import CALL, GUARDS

COUNTS = FOLDER / "eager_counts.json"
"""How often the eager trace of each step needs each cost of a host, and its number of weights."""
OUT = MODELS.parent / "hosts" / "compiled.toml"
OPTIMIZERS = ("_foreach", "_fused_", "_amp_")
MOMENTS = 5
"""Tensors of a weight that compiled AdamW reads: weight, gradient, two moments, number of steps."""
HOST_BOUND = 0.75
"""The GPU of such a step is busy for less than this share of its time."""
ROUNDS = 25
NEAR = 0.05

Row = dict[str, Any]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Demand:
    """What a compiled step asks of the host, and how long the host took."""

    step: str
    family: str
    seconds: float
    eager_s: float
    """The host's time for the same step in eager PyTorch."""
    known_s: float
    """What the reference host takes for optimizer, step, convolutions and further kernels."""
    eager_known_s: float
    """What the reference host takes for the eager step."""
    launches: int
    attentions: int
    guards: float
    calls: float
    inputs: float

    def predicted_s(self, costs_s: Vector) -> float:
        """The host's time with the costs of a launch, attention, guards or a call, and an input."""
        launch_s, attention_s, call_s, input_s = costs_s
        return float(
            self.known_s
            + self.launches * launch_s
            + self.attentions * attention_s
            + (self.guards + self.calls) * call_s
            + self.inputs * input_s
        )


def launches(row: Row) -> tuple[int, int, int, int]:
    """Launches, attentions, products of convolutions, further kernels of a compiled iteration."""
    kernels = row["compiled"]["kernels"]
    count = sum(kernel["name"] in row["ops"] for kernel in kernels)
    attentions = convolutions = more = 0
    rest = [kernel for kernel in kernels if kernel["name"] not in row["ops"] and kernel["op"]]
    for _, same in itertools.groupby(rest, key=lambda kernel: repr(kernel["op"])):
        group = list(same)
        name = group[0]["op"][0]
        if any(word in name for word in OPTIMIZERS):
            continue
        if "attention" in name:
            attentions += 1
        elif "conv" in name:
            count += 1
            convolutions += 2 if "backward" in name else 1
        else:
            # Equal calls in a row: each begins with the same kernel.
            calls = sum(kernel["name"] == group[0]["name"] for kernel in group)
            count += calls
            more += 0 if "mm" in name else len(group) - calls
    return count, attentions, convolutions, more


def host_s(half: Row, busy_s: float) -> float | None:
    """The host's time of a measured step; None where it cannot be told from the GPU's."""
    if busy_s < HOST_BOUND * half["wall_s"]:
        return float(np.sqrt(half["wall_s"] * half["issued_s"]))
    return float(half["issued_s"]) if half["issued_s"] < HOST_BOUND * half["wall_s"] else None


@cache
def read() -> tuple[Demand, ...]:
    """All steps that were measured without a profiler, by mode "default"."""
    counted = json.loads(COUNTS.read_text(encoding="utf-8"))
    host = REFERENCE_HOST
    made = []
    for name, timed in unprofiled().items():
        row = profiled()[name]
        regions = row["compiled"]["regions"]
        seconds = host_s(timed["compiled"], row["compiled"]["busy_s"])
        # A compiled optimizer has no eager one.
        if seconds is None or row["mode"] != "default" or "Optimizer.step" not in regions:
            continue
        count, attentions, convolutions, more = launches(row)
        asked = counted[name]
        known_s = host.step_s + sum(asked.get(c, 0) * getattr(host, c) for c in LISTS)
        known_s += convolutions * host.convolution_s + more * host.kernel_s
        made.append(
            Demand(
                *(name, row["family"], seconds),
                eager_s=host_s(timed["eager"], row["eager"]["busy_s"]) or float("nan"),
                known_s=known_s,
                eager_known_s=sum(asked.get(c, 0) * getattr(host, c) for c in COSTS),
                launches=count,
                attentions=attentions,
                guards=regions.get("TorchDynamo Cache Lookup", [0])[0],
                calls=regions.get("## Call CompiledFxGraph", [0])[0] / 2,  # each is there twice
                inputs=asked["weights"],
            )
        )
    return tuple(made)


LISTS = ("other_s", "tensor_s")
"""The costs of optimizers."""


def looped_s() -> tuple[float, float, float]:
    """A launch, guards or one call of a graph, and one input of it, in a loop of small pieces."""
    timed = {name: row["compiled_s"] for name, row in pieces().items() if "compiled_s" in row}
    launch_s = (timed["kernels-40"] - timed["kernels-8"]) / 32
    call_s = (timed["kernels-1"] - launch_s) / 2
    input_s = (timed["adamw-64"] - timed["adamw-8"]) / (56 * MOMENTS)
    return launch_s, call_s, input_s


def fit(steps: Sequence[Demand]) -> Vector:
    """Seconds of a launch, of attention, of guards or a call, and of an input."""
    looped = looped_s()
    asked = np.array([[step.launches, step.attentions] for step in steps], dtype=float)
    seconds = np.array([step.seconds for step in steps])
    weights = np.ones(len(steps))
    slower = 2.0
    costs: Vector = np.zeros(4)
    for _ in range(ROUNDS):
        costs[2:] = slower * looped[1], slower * looped[2]
        apart = np.array([step.predicted_s(np.array([0, 0, *costs[2:]])) for step in steps])
        scale = np.sqrt(weights) / seconds
        costs[:2] = lsq_linear(
            asked * scale[:, None], (seconds - apart) * scale, bounds=(0, np.inf)
        ).x
        off = np.array([step.predicted_s(costs) for step in steps]) / seconds - 1
        weights = 1 / np.maximum(np.abs(off), NEAR)
        slower = costs[0] / looped[0]
    return costs


def left_out(steps: Sequence[Demand]) -> dict[str, float]:
    """The relative error of each step, with its family left out of the fit."""
    errors = {}
    for family in sorted({step.family for step in steps}):
        costs = fit([step for step in steps if step.family != family])
        for step in steps:
            if step.family == family:
                errors[step.step] = step.predicted_s(costs) / step.seconds - 1
    return errors


def count(folder: Path) -> None:
    """Count what the eager traces of a folder ask of a host, and write it."""
    import wavecast
    from wavecast import ops
    from wavecast.ops import Kind

    counted: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("*.eager.json.gz")):
        trace = wavecast.load_trace(path)
        name = path.name.partition(".")[0]
        totals = demands(trace.calls).sum(axis=0).tolist()
        asked = {c: round(times, 1) for c, times in zip(COSTS, totals, strict=True) if times}
        lists = [len(c.op.inputs) for c in trace if ops.kind(c.op) is Kind.OPTIMIZER]
        # Some op of every optimizer but plain SGD, which has one op, reads one tensor of each weight.
        counted[name] = asked | {"weights": min(lists) if len(lists) > 1 else lists[0] // 2}
    text = json.dumps(counted, indent=1, sort_keys=True)
    COUNTS.write_text(text + "\n", encoding="utf-8")


def to_toml(costs: Vector, steps: Sequence[Demand], error: float) -> str:
    """The content of the file."""
    launch, attention, call, per_input = costs / REFERENCE_HOST.forward_s
    return "\n".join(
        [
            "# What compiled code costs the host, as a number of ops that Python issues in the",
            "# forward pass. Written by python -m lab.fit.compiled_host.",
            f"# Fitted on {len(steps)} steps (measurements/h200/compiled/host.jsonl.gz). The host's",
            f"# time of steps whose family was left out has a mean error of {error:.1%}.",
            "",
            "[forward_ops]",
            f'"{GUARDS}" = {call:.2f}',
            f'"{CALL}" = {call:.2f}',
            f'"input" = {per_input:.2f}',
            f'"launch" = {launch:.2f}',
            f'"attention" = {attention:.1f}',
            "",
        ]
    )


def main() -> None:
    """Fit, write the file and print how well steps are described."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["fit", "count"], nargs="?", default="fit")
    parser.add_argument("folder", type=Path, nargs="?")
    given = parser.parse_args()
    if given.action == "count":
        count(given.folder)
        return
    steps = read()
    errors = left_out(steps)
    mean = statistics.mean(abs(error) for error in errors.values())
    costs = fit(steps)
    OUT.write_text(to_toml(costs, steps, mean), encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))
    print("| step | host, measured | predicted, family left out | eager | compiled over eager |")
    print("|---|---:|---:|---:|---:|")
    for step in steps:
        error, eager = errors[step.step], step.eager_known_s / step.eager_s - 1
        ratio = (1 + error) / (1 + eager) - 1
        print(
            f"| {step.step} | {step.seconds * 1e3:.1f} ms | {error:+.0%} | {eager:+.0%} "
            f"| {ratio:+.0%} |"
        )
    print(f"| **mean error, {len(steps)} steps** | | {mean:.1%} | | |")


if __name__ == "__main__":
    main()
