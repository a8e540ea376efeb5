"""The host benchmark's times on the reference host, from the machines where both were measured.

    python -m training.host_reference

On each machine of measurements/h200/host the benchmark ran and host-bound steps were timed. Its
times, divided by how many times as long as the reference host that machine takes for its steps, are
what the reference host would take. Writes src/wavecast/data/hosts/reference.toml: the mean of runs.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.host_accuracy import Run, machine_factor, reference_of, runs
from wavecast import hosts

OUT = Path(hosts.__file__).parent / "data" / "hosts" / "reference.toml"


def to_toml(measured: dict[str, Run]) -> str:
    """The file's content."""
    software = {str(run["host"]["about"]["software"]) for run in measured.values()}
    lines = [
        "# Written by python -m training.host_reference: seconds of the host benchmark's patterns",
        "# (wavecast.frameworks.pytorch.issuing), as the reference host would take them.",
        f"# Measured on {len(measured)} machine(s) of our H200 with {', '.join(sorted(software))}.",
    ]
    for sort, times in reference_of(measured.values()).items():
        lines += ["", f"[{sort}]"]
        lines += [f"{name} = {value:.4g}" for name, value in times.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file; print what a GPU shows as it is."""
    measured = runs()
    OUT.write_text(to_toml(measured), encoding="utf-8")
    for name, run in measured.items():
        print(f"{name}: {machine_factor(run):.2f} times the reference host")
        print({cost: f"{seconds * 1e6:.2f} us" for cost, seconds in run["host"]["gpu"].items()})


if __name__ == "__main__":
    main()
