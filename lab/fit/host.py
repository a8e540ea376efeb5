"""Fit the costs of the reference host for issuing a step, and write its file.

    python -m lab fit host

Needs scipy and measurements/h200, no GPU and no public tables; takes a minute. Writes
src/wavecast/data/hosts/reference.toml (`lab.fit.host` says what is in it) and prints the
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
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from lab import needs
from lab.measured import campaigns
from lab.measured.timed import Machine, Timed, all_machines, machines
from wavecast import Host
from wavecast.files import shipped, shipped_toml, write_whole
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


# The reference host: its benchmark times, and the file that ships them with its costs.
#
# `python -m lab fit host` uses this module and writes src/wavecast/data/hosts/reference.toml.
#
# On each machine of `lab.measured.timed` the host benchmark ran and steps were timed, before any
# profiler had run. The factor of a machine is its time for host-bound steps over the time of the
# reference host. The benchmark times of a machine divided by its factor estimate those of the
# reference host; the file holds the geometric mean over machines.


FILE = "hosts/reference.toml"
OUT = shipped(FILE)
HOST_BOUND = 0.75
"""A step with a GPU utilisation below this counts as host-bound."""
MEASURED_COSTS = ("sync_s", "launch_s", "graph_s", "node_s")
"""Costs that are measured (measurements/h200/host), not fitted; copied from the shipped file."""

_HEAD = """\
# Written by python -m lab fit host.
# [costs] are the seconds of each cost of a host, fitted on host-bound steps of our H200 (virtual
# machines, Python 3.12, torch 2.11). The {machines} machines on which no profiler had run take
# {fastest:.2f} to {slowest:.2f} times as long; hosts of public tables take 0.4 to 2 times as long
# (lab.score.machine_hosts of commit f445cdb). sync_s, launch_s, graph_s and node_s were measured
# (measurements/h200/host), and so was graph.gap_s, the median of seven steps.
# [cpu] and [cuda] are seconds for the patterns of the host benchmark
# (wavecast.frameworks.pytorch.measurement.calibration), as the reference host would take them.
# Measured with {software}.
"""


def host_bound(machine: Machine) -> list[Timed]:
    """The host-bound steps of a machine."""
    return [step for step in machine.steps if step.gpu_s < HOST_BOUND * step.seconds]


def model_of(step: Timed) -> str:
    """The name of the model that a step trains."""
    return re.split(r"[-_ ]b\d", step.name)[0]


def machine_factor(machine: Machine, host: Host = REFERENCE_HOST) -> float:
    """How many times as long as `host` a machine takes for its host-bound steps (median)."""
    ratios = [
        step.seconds / sum(times * getattr(host, name) for name, times in step.asked.items())
        for step in host_bound(machine)
    ]
    return float(statistics.median(ratios))


def reference_of(
    measured: Sequence[Machine], host: Host = REFERENCE_HOST
) -> dict[str, dict[str, float]]:
    """The benchmark times of `host`, on "cpu" and "cuda": the geometric mean over machines."""
    scaled_s: dict[str, dict[str, list[float]]] = {"cpu": {}, "cuda": {}}
    for machine in measured:
        factor = machine_factor(machine, host)
        for place, times in (("cpu", machine.start["cpu"]), ("cuda", machine.throughout)):
            for name, seconds in times.items():
                scaled_s[place].setdefault(name, []).append(seconds / factor)
    return {
        place: {name: statistics.geometric_mean(values) for name, values in patterns.items()}
        for place, patterns in scaled_s.items()
    }


def to_toml(fitted_s: Mapping[str, float], measured: Sequence[Machine]) -> str:
    """The content of the file.

    Args:
        fitted_s: the fitted costs of the reference host, in seconds.
        measured: machines where the host benchmark ran and steps were timed.
    """
    shipped_now = shipped_toml(FILE)
    costs = {name: f"{cost_s * 1e6:.1f}e-6" for name, cost_s in fitted_s.items()}
    costs |= {name: f"{shipped_now['costs'][name] * 1e6:.1f}e-6" for name in MEASURED_COSTS}
    seconds: dict[str, Any] = {name: float(text) for name, text in costs.items()}
    host = Host(name="reference host", **seconds)
    factors = [machine_factor(machine, host) for machine in measured]
    head = _HEAD.format(
        machines=len(measured),
        fastest=min(factors),
        slowest=max(factors),
        software=", ".join(sorted({machine.software for machine in measured})),
    )
    sections = {
        "costs": costs,
        "graph": {"gap_s": f"{shipped_now['graph']['gap_s'] * 1e6:.1f}e-6"},
        **{
            place: {name: f"{seconds:.4g}" for name, seconds in patterns.items()}
            for place, patterns in reference_of(measured, host).items()
        },
    }
    return head + "".join(
        f"\n[{title}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
        for title, values in sections.items()
    )
