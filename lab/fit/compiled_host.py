"""Fit what compiled code costs the host: launches, attention, guards and calls of graphs.

    python -m lab fit compiled_host                 fit, write the file, print the errors
    python -m lab fit compiled_host count FOLDER    count the eager ops of traced steps anew

The fit needs only measurements/h200/compiled and writes src/wavecast/data/hosts/compiled.toml. All
costs are numbers of ops that Python issues in the forward pass (`Host.forward_s`), so that they
hold for other hosts.

The host's time of a step, measured without a profiler, is what the reference host takes for the
optimizer and for a step (`Host.step_s`), and what compiled code takes: launches, that is fused
kernels and library calls; attention, whose call is by far the longest; what the reference host
takes for the search of cuDNN and for further kernels of a library call; guards and calls of graphs.
Two numbers are fitted: those of a launch and of attention. A virtual machine is faster or slower
than the reference host, and changes from minute to minute by more than the costs can be told, so
each step is divided by what its eager twin, timed right after it, says of the machine.

Guards and calls are too few in a step to be told apart. Small pieces of code, called in a loop,
show them: in a loop a launch takes half as long as in a step, so all that pieces show is multiplied
by what a launch takes in a step over what it takes in a piece. What a weight costs autograd is in
`Host.tensor_s`, which is larger than what the optimizer alone takes for a tensor. The cost of an
input is that of compiled code without autograd, such as a compiled optimizer.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from lab import needs
from lab.measured import jax_steps
from lab.measured.compiled import FOLDER, pieces, profiled, unprofiled
from lab.pages import heading
from lab.places import MODELS
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, demands
from wavecast.steps.ranges import host_factors
from wavecast.traces.graphs import CALL, GUARDS, XLA_CALL

COUNTS = FOLDER / "eager_counts.json"
"""How often the eager trace of each step needs each cost of a host."""
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
class CompiledDemand:
    """What a compiled step asks of the host, and how long the host took."""

    step: str
    family: str
    seconds: float
    eager_s: float
    """The host's time for the same step in eager PyTorch, right after; 0 where unknown."""
    known_s: float
    """What the reference host takes for optimizer, step, convolutions and further kernels."""
    eager_known_s: float
    """What the reference host takes for the eager step."""
    launches: int
    attentions: int
    guards: float
    calls: float

    @property
    def is_blind(self) -> bool:
        """Whether it is a step of the blind test, which no fit reads."""
        return self.step.startswith("blind")

    @property
    def machine(self) -> float:
        """The machine's time for the eager step over that of the reference host."""
        return self.eager_s / self.eager_known_s if self.eager_s else 1.0

    def predicted_s(self, costs_s: Vector) -> float:
        """The host's time with the costs of a launch, of attention, and of guards or a call."""
        launch_s, attention_s, call_s = costs_s[:3]
        return float(
            self.known_s
            + self.launches * launch_s
            + self.attentions * attention_s
            + (self.guards + self.calls) * call_s
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
def read() -> tuple[CompiledDemand, ...]:
    """All steps that were measured without a profiler, by mode "default"."""
    counted = json.loads(COUNTS.read_text(encoding="utf-8"))
    host = REFERENCE_HOST
    demands = []
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
        demands.append(
            CompiledDemand(
                *(name, row["family"], seconds),
                eager_s=host_s(timed["eager"], row["eager"]["busy_s"]) or 0.0,
                known_s=known_s,
                eager_known_s=sum(asked.get(c, 0) * getattr(host, c) for c in COSTS),
                launches=count,
                attentions=attentions,
                guards=regions.get("TorchDynamo Cache Lookup", [0])[0],
                calls=regions.get("## Call CompiledFxGraph", [0])[0] / 2,  # each is there twice
            )
        )
    return tuple(demands)


LISTS = ("other_s", "tensor_s")
"""The costs of optimizers."""


def looped_s() -> tuple[float, float, float]:
    """A launch, guards or one call of a graph, and one input of it, in a loop of small pieces."""
    timed = {name: row["compiled_s"] for name, row in pieces().items() if "compiled_s" in row}
    launch_s = (timed["kernels-40"] - timed["kernels-8"]) / 32
    call_s = (timed["kernels-1"] - launch_s) / 2
    input_s = (timed["adamw-64"] - timed["adamw-8"]) / (56 * MOMENTS)
    return launch_s, call_s, input_s


def fit(steps: Sequence[CompiledDemand]) -> Vector:
    """Seconds of a launch, of attention, of guards or a call, and of an input."""
    looped = looped_s()
    asked = np.array([[step.launches, step.attentions] for step in steps], dtype=float)
    seconds = np.array([step.seconds / step.machine for step in steps])
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


def left_out(steps: Sequence[CompiledDemand]) -> dict[str, float]:
    """Predicted over measured time of each step on the reference host, its family left out.

    Steps of the blind test are in no fit.
    """
    ratios = {}
    for family in sorted({step.family for step in steps}):
        costs = fit([step for step in steps if step.family != family and not step.is_blind])
        for step in steps:
            if step.family == family:
                ratios[step.step] = step.predicted_s(costs) / step.seconds
    return ratios


def count(folder: Path) -> None:
    """Count what the eager traces of a folder ask of a host, and write it."""
    import wavecast

    counted: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("*.eager.json.gz")):
        trace = wavecast.load_trace(path)
        name = path.name.partition(".")[0]
        totals = demands(trace.calls).sum(axis=0).tolist()
        pairs = zip(COSTS, totals, strict=True)
        counted[name] = {c: round(times, 1) for c, times in pairs if times}
    text = json.dumps(counted, indent=1, sort_keys=True)
    COUNTS.write_text(text + "\n", encoding="utf-8")


_UNHINDERED = 0.35
"""Where the host issues a step in less than this share of its time, nothing held it back."""
_LIMITING = 0.99
"""Where it issues a step in more than this share, the host limits the step."""


def jax_costs() -> tuple[float, float]:
    """The cost of calling a jitted JAX step, and of each of its inputs, in forward ops.

    Both follow from the steps in which the host is alone: where it issues a step much faster than
    the GPU runs it, or where it limits the step. Steps that call cuDNN, and loops, are launched in
    several parts, and left out.
    """
    host, counts, found_s = REFERENCE_HOST, [], []
    for group in ("fit", "more"):
        for name, row in jax_steps.steps(group).items():
            times = row["jitted" if "jitted" in row else "default"]
            schedule = jax_steps.schedule_of(name, group)
            share = times["issue_s"] / times["seconds"]
            names = {call.op.base for call in schedule.calls}
            in_parts = any("convolution" in op_name or "attention" in op_name for op_name in names)
            loops = len(schedule.calls) > 1.5 * len(set(schedule.sources))
            if in_parts or loops or _UNHINDERED < share < _LIMITING:
                continue
            found_s.append(times["issue_s"] - host.graph_s - host.node_s * len(schedule.calls))
            counts.append((1.0, float(len(schedule.arguments))))
    seconds = np.array(found_s)[:, None]
    relative = lsq_linear(np.array(counts) / seconds, np.ones(len(counts)), (0, np.inf)).x
    call, per_input = relative / host.forward_s
    return float(call), float(per_input)


def to_toml(costs: Vector, steps: Sequence[CompiledDemand], error: float) -> str:
    """The content of the file."""
    launch, attention, call, per_input = costs / REFERENCE_HOST.forward_s
    jax_call, jax_input = jax_costs()
    return "\n".join(
        [
            "# What compiled code costs the host, as a number of ops that Python issues in the",
            "# forward pass. Written by python -m lab fit compiled_host.",
            f"# Fitted on {len(steps)} steps (measurements/h200/compiled/host.jsonl.gz). With its",
            f"# family left out, a step's mean error is {error:.1%}, its machine's speed apart.",
            "",
            "[forward_ops]",
            f'"{GUARDS}" = {call:.2f}',
            f'"{CALL}" = {call:.2f}',
            f'"input" = {per_input:.2f}',
            f'"launch" = {launch:.2f}',
            f'"attention" = {attention:.1f}',
            f'"{XLA_CALL}" = {jax_call:.2f}',
            f'"xla.input" = {jax_input:.2f}',
            "",
        ]
    )


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the file and print how well steps are described."""
    parser = needs.parser(__doc__)
    parser.add_argument("action", choices=["fit", "count"], nargs="?", default="fit")
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args(given)
    if args.action == "count":
        count(args.folder)
        return
    steps = read()
    ratios = left_out(steps)
    fitted = [step for step in steps if not step.is_blind]
    mean = statistics.mean(abs(ratios[step.step] * step.machine - 1) for step in fitted)
    OUT.write_text(to_toml(fit(fitted), fitted, mean), encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))
    for title, blind in (("Steps of the fit, family left out", False), ("Other steps", True)):
        print(f"{title}:\n")
        print("\n".join(table([step for step in steps if step.is_blind is blind], ratios)), "\n")
    print("\n".join(held(steps, ratios)))


def table(steps: Sequence[CompiledDemand], ratios: Mapping[str, float]) -> Iterator[str]:
    """The errors of steps on the reference host, and on their own machines."""
    yield from heading("step | host, measured | reference host | eager | on its own machine")
    for step in sorted(steps, key=lambda step: step.step):
        ratio = ratios[step.step]
        eager = f"{1 / step.machine - 1:+.0%}" if step.eager_s else ""
        yield (
            f"| {step.step} | {step.seconds * 1e3:.1f} ms | {ratio - 1:+.0%} "
            f"| {eager} | {ratio * step.machine - 1:+.0%} |"
        )
    errors = (
        [ratios[step.step] - 1 for step in steps],
        [1 / step.machine - 1 for step in steps if step.eager_s],
        [ratios[step.step] * step.machine - 1 for step in steps],
    )
    means = [f"{statistics.mean(map(abs, each)):.1%}" for each in errors]
    yield f"| **mean error, {len(steps)} steps** | | {' | '.join(means)} |"


def held(steps: Sequence[CompiledDemand], ratios: Mapping[str, float]) -> Iterator[str]:
    """The shares of steps within the ranges of hosts, calibrated and not."""
    for known in (False, True):
        ends = host_factors(known=known)
        assert ends is not None
        off = [step.seconds / step.machine**known for step in steps]
        predicted = [ratios[step.step] * step.seconds for step in steps]
        inside = [
            ends.low <= took / said <= ends.high for took, said in zip(off, predicted, strict=True)
        ]
        name = "on its own machine, as if calibrated" if known else "on the reference host"
        yield f"within the range {name}: {sum(inside)} of {len(inside)}"
