"""Calibration of a host: its costs are those of the reference host times one measured factor.

`wavecast calibrate` times a few small patterns of ops (`frameworks.pytorch.measurement.issuing`).
The factor is the median, over the patterns that launch kernels, of this host's time divided by the
reference host's time. The costs of the reference host were fitted on whole steps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date

from wavecast.errors import InvalidInput
from wavecast.files import shipped_toml
from wavecast.hardware.host_files import BENCHMARKS, MEASURED_ON_GPU, HostFile, read_times
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST

_PYTHON_ONLY = ("view_s", "module_s")
"""Patterns that run Python code alone. Slow machines are slower still at these than at whole steps,
which wait for memory and driver as well (lab/notes), so they are left out of the median."""


def calibrated(
    name: str,
    times: Mapping[str, Mapping[str, float]],
    direct: Mapping[str, float],
    *,
    software: str,
    source: str,
    machine: MeasuredMachine | None = None,
    reference: Mapping[str, Mapping[str, float]] | None = None,
) -> HostFile:
    """The calibrated host, from the times of the benchmark.

    All costs get the same factor. On six machines this predicted steps better than a factor for
    each cost (lab/notes).

    Args:
        name: the name of the host.
        times: the benchmark's seconds by cost, on "cpu" and, where there is a GPU, on "cuda".
            Those on "cuda" are used when both are given.
        direct: costs in seconds that were measured on a GPU themselves.
        software: the versions with which the benchmark ran.
        source: how the host was measured.
        machine: the machine, and how busy it was.
        reference: the benchmark's times on the reference host; the shipped ones by default.
    """
    benchmark = "cuda" if "cuda" in times else "cpu"
    factor = factor_of(times[benchmark], (reference or reference_times())[benchmark])
    scaled = REFERENCE_HOST.scaled(factor)
    costs = {
        cost: getattr(REFERENCE_HOST if cost in MEASURED_ON_GPU else scaled, cost) for cost in COSTS
    }
    file = HostFile(name, date.today(), software, source, costs | dict(direct), times)
    return file if machine is None else replace(file, **asdict(machine))


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine that a host was measured on; the fields are those of `HostFile`."""

    processor: str
    machine: str
    gpu: str
    busy_before: float | None
    busy_during: float | None


def reference_times() -> dict[str, dict[str, float]]:
    """The benchmark's seconds by cost on the reference host, for "cpu" and for "cuda"."""
    table = shipped_toml("hosts/reference.toml")
    return {benchmark: read_times(table, benchmark) for benchmark in BENCHMARKS}


def factor_of(times: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """The slowdown of a host relative to the reference host, from its benchmark times."""
    ratios = [
        times[name] / reference[name]
        for name in times
        if reference.get(name) and name not in _PYTHON_ONLY
    ]
    if not ratios or not all(0 < ratio < math.inf for ratio in ratios):
        raise InvalidInput(
            f"these are not times of the host benchmark: {dict(times)}; it needs a positive time "
            f"for at least one of {', '.join(n for n in reference if n not in _PYTHON_ONLY)}"
        )
    return statistics.median(ratios)
