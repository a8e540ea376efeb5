"""Fit the costs of the reference host for issuing a step, and write its file.

    python -m lab fit host

Needs scipy and measurements/h200, no GPU and no public tables; takes a minute. Writes
src/wavecast/data/hosts/reference.toml (`lab.fit.host_reference` says what is in it) and prints the
costs, and the errors with each model left out of the fit.

The host time of a step is a sum over the host's costs (`wavecast.hardware.hosts.COSTS`): each cost
times how often the step needs it. The sum is multiplied by a factor of the machine, because each
lease of our GPU came with another virtual machine, and these differ by up to 1.6 times. On most of
them a profiler had run in the process, which slows everything issued afterwards (lab/notes);
the factor includes that. The fit is robust, on relative errors, with costs within `BOUNDS`. The
reference host takes `MIDDLE` times as long as the machine on which the suite was measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from lab import needs
from lab.fit.host_reference import HOST_BOUND, OUT, host_bound, machine_factor, model_of, to_toml
from lab.measured import campaigns
from lab.measured.timed import all_machines, machines
from wavecast import Host
from wavecast.files import write_whole
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, demands

LEASES = ("suite", "suite-half", "layouts", "measured", "habitat", "population", "inference")
"""Campaigns that were measured after a profiler had run, each on other machines. The last two
contain forward passes without a backward pass, which show what autograd costs."""
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
"""The smallest and the largest value of each cost. An op takes 5 to 15 us in Python, and as much
again for autograd."""
MIDDLE = 1.07
"""The costs of the reference host over those of the suite's machine, which a profiler had slowed.
Without a profiler, five of our machines take 0.94 to 1.24 times as long as that machine; this is
the middle of the five."""
ROUNDS = 25
NEAR = 0.05
"""Relative errors above this are weighted linearly, smaller ones quadratically."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Steps:
    """Host-bound steps: `asked` is how often each step (row) needs each cost (column)."""

    asked: NDArray[np.float64]
    seconds: Vector
    leases: NDArray[np.str_]
    models: NDArray[np.str_]

    def where(self, mask: NDArray[np.bool_]) -> Steps:
        """The steps that a mask selects."""
        return Steps(self.asked[mask], self.seconds[mask], self.leases[mask], self.models[mask])


@cache
def read() -> Steps:
    """All host-bound steps that were measured."""
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
            # Two measurements of the host time: issuing to an idle GPU, and the steady state.
            # Take their geometric mean.
            seconds = float(np.sqrt(whole.seconds * max(whole.host_s, 0.5 * whole.seconds)))
            model = re.split(r"[-_]b\d", key)[0]
            # What checkpointing and views without autograd cost was measured on its own, later.
            counts = demands(trace.calls, hooks=0.0, inner_view=1.0).sum(axis=0)[columns]
            rows.append((counts.tolist(), seconds, lease, model))
    asked, seconds_, leases, models = zip(*rows, strict=True)
    return Steps(np.array(asked), np.array(seconds_), np.array(leases), np.array(models))


def fit(steps: Steps) -> tuple[Vector, dict[str, float]]:
    """The costs on the suite's machine, and the factor of each machine relative to it."""
    low, high = np.array(list(BOUNDS.values())).T
    factors = {str(lease): 1.0 for lease in np.unique(steps.leases)}
    weights = np.ones(len(steps.seconds))
    for _ in range(ROUNDS):
        factor_of_step = np.array([factors[lease] for lease in steps.leases])
        seconds = steps.seconds / factor_of_step
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
    """The reference host, fitted without the steps of one machine."""
    costs, _ = fit(steps.where(steps.leases != machine))
    fitted_s: dict[str, Any] = {**reference_costs(costs)}
    return replace(REFERENCE_HOST, **fitted_s)


def reference_costs(costs: Vector) -> dict[str, float]:
    """The costs of the reference host in seconds, from those of the suite's machine."""
    return dict(zip(BOUNDS, (MIDDLE * costs).tolist(), strict=True))


def left_out(steps: Steps) -> Vector:
    """The relative error of each step with its model left out of the fit."""
    errors = np.zeros(len(steps.seconds))
    for model in np.unique(steps.models):
        out = steps.models == model
        costs, factors = fit(steps.where(~out))
        factor_of_step = np.array([factors.get(lease, 1.0) for lease in steps.leases[out]])
        errors[out] = steps.asked[out] @ costs * factor_of_step / steps.seconds[out] - 1
    return errors


def main(given: Sequence[str] = ()) -> None:
    """Fit, write the file, and print how well steps are predicted."""
    needs.parser(__doc__).parse_args(given)
    steps = read()
    costs, factors = fit(steps)
    print({lease: round(factor, 2) for lease, factor in factors.items()})
    fitted_s = reference_costs(costs)
    for name, cost_s in fitted_s.items():
        print(f"{name:14} {cost_s * 1e6:7.1f} us")
    measured = machines()
    write_whole(OUT, to_toml(fitted_s, measured))
    for machine in measured:
        print(f"{machine.name}: {machine_factor(machine):.2f} times the reference host")
    errors = left_out(steps)
    low, high = np.quantile(1 / (1 + errors), (0.05, 0.95))
    print(f"measured over predicted for 90% of the steps: {low:.2f} to {high:.2f}")
    errors = np.abs(errors)
    print(
        f"{len(errors)} steps, models left out: mean error {errors.mean():.1%}, median "
        f"{np.median(errors):.1%}, worst {errors.max():.0%}"
    )
