"""The host benchmark's times on the reference host, from the machines where both were measured.

    python -m lab.fit.host_reference

On each machine of `lab.measured.timed` the benchmark ran and steps were timed, before any profiler.
Its times, divided by how many times as long as the reference host that machine takes for its steps,
are what the reference host would take. Writes src/wavecast/data/hosts/reference.toml: the mean of
machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.fit.host import machine_factor
from lab.measured.timed import Machine, machines
from wavecast import Host
from wavecast.hardware import host_files
from wavecast.hardware.hosts import REFERENCE_HOST

OUT = Path(host_files.__file__).parent / "data" / "hosts" / "reference.toml"


def reference_of(
    measured: Sequence[Machine], host: Host = REFERENCE_HOST
) -> dict[str, dict[str, float]]:
    """What a host would take for the benchmark, from machines that ran it: the geometric mean."""
    found: dict[str, dict[str, list[float]]] = {"cpu": {}, "cuda": {}}
    for machine in measured:
        factor = machine_factor(machine, host)
        for sort, times in (("cpu", machine.start["cpu"]), ("cuda", machine.throughout)):
            for name, seconds in times.items():
                found[sort].setdefault(name, []).append(seconds / factor)
    return {
        sort: {name: statistics.geometric_mean(each) for name, each in times.items()}
        for sort, times in found.items()
    }


def to_toml(measured: Sequence[Machine]) -> str:
    """The file's content."""
    software = {machine.software for machine in measured}
    lines = [
        "# Written by python -m lab.fit.host_reference: seconds of the host benchmark's patterns",
        "# (wavecast.frameworks.pytorch.measurement.host_benchmark), "
        "as the reference host would take them.",
        f"# Measured on {len(measured)} machine(s) of our H200 with {', '.join(sorted(software))}.",
    ]
    for sort, times in reference_of(measured).items():
        lines += ["", f"[{sort}]"]
        lines += [f"{name} = {value:.4g}" for name, value in times.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    measured = machines()
    OUT.write_text(to_toml(measured), encoding="utf-8")
    for machine in measured:
        print(f"{machine.name}: {machine_factor(machine):.2f} times the reference host")


if __name__ == "__main__":
    main()
