"""Fit what it costs a host to issue a step, from host-bound steps measured on our H200.

    python -m lab.fit.host

The host's seconds for a step are the sum of `timeline.COSTS` times how often its calls ask for
them, times a factor of the machine: each lease of our GPU came with another virtual machine, and
they differ by up to 1.6. On most of them a profiler had run in the process, which slows all that is
issued (docs/adr/0018): that is in the factor, too. Costs lie within `BOUNDS`; errors are relative
and robust. Prints the constants for `wavecast.steps.timeline.REFERENCE_HOST`, those of a machine `MIDDLE`
times as slow as that of the suite; and the errors with each model left out.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from lab.measured import campaigns
from lab.measured.timed import Machine, Timed, all_machines
from wavecast import Host
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, demands

LEASES = ("suite", "suite-half", "layouts", "measured", "habitat", "population", "inference")
"""Folders of traces, each of another machine (some of several), where a profiler had run. The last
two have forward passes alone, which tell what autograd costs."""
HOST_BOUND = 0.75
"""GPU utilisation below which the host sets the pace."""
BOUNDS = {
    "forward_s": (3e-6, 20e-6),
    "autograd_s": (0.0, 20e-6),
    "backward_s": (3e-6, 80e-6),
    "other_s": (4e-6, 80e-6),
    "view_s": (1e-6, 12e-6),
    "module_s": (1e-6, 15e-6),
    "convolution_s": (3e-6, 80e-6),
    "kernel_s": (1e-6, 28e-6),
    "tensor_s": (0.2e-6, 8e-6),
    "step_s": (75e-6, 1500e-6),
}
"""What a cost may be: an op in Python takes 5 to 15 us, and as much again for autograd."""
MIDDLE = 1.07
"""Of what a host takes on which the suite was measured, slowed by a profiler. Without one five of
our machines take 0.94 to 1.24 times as long as that: this is the middle one."""
ROUNDS = 25
NEAR = 0.05
"""Errors below this count as their square, larger ones as they are."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Steps:
    """Host-bound steps: what they ask for, how long they took, and where."""

    asked: NDArray[np.float64]
    seconds: Vector
    leases: NDArray[np.str_]
    models: NDArray[np.str_]

    def where(self, mask: NDArray[np.bool_]) -> Steps:
        """Those of the steps that a mask selects."""
        return Steps(self.asked[mask], self.seconds[mask], self.leases[mask], self.models[mask])


def read() -> Steps:
    """All steps that the host bounds."""
    rows = [
        ([step.asked.get(name, 0.0) for name in BOUNDS], step.seconds, machine.name, model_of(step))
        for machine in all_machines()
        for step in host_bound(machine)
    ]
    columns = [COSTS.index(name) for name in BOUNDS]
    for lease in LEASES:
        for key, trace in campaigns.traces(lease).items():
            whole = trace.measurement
            if whole is None or not whole.seconds or not whole.gpu_s or not whole.host_s:
                continue
            if "counters" in key or whole.gpu_s > HOST_BOUND * whole.seconds:
                continue
            # Two looks at the same: issued to an idle GPU, and in the steady state.
            seconds = float(np.sqrt(whole.seconds * max(whole.host_s, 0.5 * whole.seconds)))
            model = re.split(r"[-_]b\d", key)[0]
            rows.append((demands(trace.calls).sum(axis=0)[columns].tolist(), seconds, lease, model))
    asked, seconds_, leases, models = zip(*rows, strict=True)
    return Steps(np.array(asked), np.array(seconds_), np.array(leases), np.array(models))


def host_bound(machine: Machine) -> list[Timed]:
    """The steps of a machine for which its host sets the pace."""
    return [step for step in machine.steps if step.gpu_s < HOST_BOUND * step.seconds]


def model_of(step: Timed) -> str:
    """Whose step it is."""
    return re.split(r"[-_ ]b\d", step.name)[0]


def fit(steps: Steps) -> tuple[Vector, dict[str, float]]:
    """The costs on the suite's machine, and how many times as long others take."""
    low, high = np.array(list(BOUNDS.values())).T
    factors = {str(lease): 1.0 for lease in np.unique(steps.leases)}
    weights = np.ones(len(steps.seconds))
    for _ in range(ROUNDS):
        of_each = np.array([factors[lease] for lease in steps.leases])
        seconds = steps.seconds / of_each
        rooted = np.sqrt(weights)
        scaled = steps.asked / seconds[:, None] * rooted[:, None]
        costs = lsq_linear(scaled, rooted, bounds=(low, high)).x
        ratios = steps.seconds / (steps.asked @ costs)
        for lease in factors:
            factors[lease] = float(np.median(ratios[steps.leases == lease]))
        factors = {lease: factor / factors["suite"] for lease, factor in factors.items()}
        weights = 1 / np.maximum(np.abs(steps.asked @ costs / seconds - 1), NEAR)
    return costs, factors


def host_without(machine: str, steps: Steps) -> Host:
    """The reference host as it would be without what was measured on a machine."""
    costs, _ = fit(steps.where(steps.leases != machine))
    return replace(REFERENCE_HOST, **dict(zip(BOUNDS, (MIDDLE * costs).tolist(), strict=True)))


def machine_factor(machine: Machine, host: Host = REFERENCE_HOST) -> float:
    """How many times as long as another host a machine takes for the steps that it bounds."""
    ratios = [
        step.seconds / sum(times * getattr(host, name) for name, times in step.asked.items())
        for step in host_bound(machine)
    ]
    return float(statistics.median(ratios))


def left_out(steps: Steps) -> Vector:
    """The relative error of each step with its model left out of the fit."""
    errors = np.zeros(len(steps.seconds))
    for model in np.unique(steps.models):
        out = steps.models == model
        costs, factors = fit(steps.where(~out))
        of_each = np.array([factors.get(lease, 1.0) for lease in steps.leases[out]])
        errors[out] = steps.asked[out] @ costs * of_each / steps.seconds[out] - 1
    return errors


def main() -> None:
    """Fit, and show how well steps are met."""
    steps = read()
    costs, factors = fit(steps)
    print({lease: round(factor, 2) for lease, factor in factors.items()})
    found = dict(zip(BOUNDS, MIDDLE * costs * 1e6, strict=True))
    for name, cost_us in found.items():
        print(f"{name:14} {cost_us:7.1f} us")
    errors = left_out(steps)
    low, high = np.quantile(1 / (1 + errors), (0.05, 0.95))
    print(f"measured over predicted, nine in ten of the steps: {low:.2f} to {high:.2f}")
    errors = np.abs(errors)
    print(
        f"{len(errors)} steps, models left out: mean error {errors.mean():.1%}, median "
        f"{np.median(errors):.1%}, worst {errors.max():.0%}"
    )


if __name__ == "__main__":
    main()
