"""The reference host: its benchmark times, and the file that ships them with its costs.

`python -m lab fit host` uses this module and writes src/wavecast/data/hosts/reference.toml.

On each machine of `lab.measured.timed` the host benchmark ran and steps were timed, before any
profiler had run. The factor of a machine is its time for host-bound steps over the time of the
reference host. The benchmark times of a machine divided by its factor estimate those of the
reference host; the file holds the geometric mean over machines.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab.measured.timed import Machine, Timed
from wavecast import Host
from wavecast.files import shipped, shipped_toml
from wavecast.hardware.hosts import REFERENCE_HOST

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
