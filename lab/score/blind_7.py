"""How well were 31 steps of families that nothing had seen predicted before they ran on our H200?

    python -m lab score blind_7 --predict FOLDER    predict traces, and write the predictions
    python -m lab score blind_7 [--write]           compare them with what was measured

The sixth blind test. FOLDER has traces made by `lab collect step_times blind_7 FOLDER --predict`;
they are kept beside the predictions, so that later models can be compared on them. How fast the
host of a lease is cannot be known before, so each step is predicted with the reference host and
with faster and slower ones. The host benchmark that ran between the measured steps then says which
of these predictions stands for a calibrated host. `--write` puts the tables into
docs/appendix/accuracy-blind.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import wavecast
from lab import needs
from lab.measured.traced_steps import read_traces, write_traces
from lab.places import H200
from lab.score import pages
from lab.score.blind_3 import BlindStep, predicted, table
from lab.score.blind_4 import measured, rows
from lab.steps.timed_sets import steps_of
from wavecast import Trace
from wavecast.hardware.calibration import factor_of, reference_times
from wavecast.hardware.hosts import REFERENCE_HOST

FOLDER = H200 / "blind_7"
TRACED = "traced.tar"
GPU = "h200-sxm"
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5)
"""How long the hosts take in multiples of the reference host. Our leases took 0.65 to 1.6."""
ABOUT = (
    "traced with torch 2.13 and transformers 5.17 on a CPU; the GPU has torch 2.11 and "
    "transformers 5.17"
)


def told(trace: Trace, mode: str) -> dict[str, Any]:
    """What is predicted of a traced step, with the reference host and with others."""
    prediction = wavecast.predict(trace, GPU, host=REFERENCE_HOST)
    hosts = {}
    for factor in FACTORS:
        host = replace(REFERENCE_HOST.scaled(factor), known=True)
        one = wavecast.predict(trace, GPU, host=host)
        hosts[str(factor)] = [one.seconds, one.low_s, one.high_s]
    return {
        "mode": mode,
        "seconds": prediction.seconds,
        "gpu_s": prediction.gpu_s,
        "low_s": prediction.low_s,
        "high_s": prediction.high_s,
        "peak_bytes": wavecast.memory(trace, GPU).peak_bytes,
        "hosts": hosts,
        "notes": [str(note) for note in trace.notes],
    }


def all_told(which: str, archive: Path) -> dict[str, Any]:
    """What is predicted of each step of a set whose trace is in the archive, by name."""
    traces = read_traces(archive)
    return {s.name: told(traces[s.name], s.mode) for s in steps_of(which) if s.name in traces}


def write_predictions(traces: Path) -> None:
    """Keep the traces of a folder, and write what is predicted of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_traces(FOLDER / TRACED, traces)
    document = {"about": ABOUT, "predictions": all_told("blind_7", FOLDER / TRACED)}
    text = json.dumps(document, indent=1)
    (FOLDER / "predictions.json").write_text(text + "\n", encoding="utf-8")


def host_factor(folder: Path) -> float:
    """How long the host of the lease took, in multiples of the reference host."""
    return median(
        factor_of(row["host"]["cuda"], reference_times()["cuda"])
        for row in rows(folder)
        if "host" in row
    )


def calibrated(one: Mapping[str, Any], factor: float) -> tuple[float, float, float]:
    """The iteration that was predicted for a host of this speed, and its range."""
    speeds = [float(key) for key in one["hosts"]]
    values = np.array(list(one["hosts"].values()))
    seconds, low_s, high_s = (float(np.interp(factor, speeds, values[:, n])) for n in range(3))
    return seconds, low_s, high_s


def compared(folder: Path, said: Mapping[str, Any]) -> list[BlindStep]:
    """The steps that were measured, beside what was said of them."""
    found = measured(folder)
    return [
        BlindStep.of(name, one, found[name], found[name].get("peak_bytes"))
        for name, one in said.items()
        if name in found
    ]


def with_its_host(folder: Path, said: Mapping[str, Any]) -> str:
    """A line that says how far off iterations are with the calibrated host of the lease."""
    factor, found = host_factor(folder), measured(folder)
    errors, held = [], 0
    for name in said.keys() & found.keys():
        seconds, low_s, high_s = calibrated(said[name], factor)
        wall_s = found[name]["wall_s"]
        errors.append(abs(seconds / wall_s - 1))
        held += low_s <= wall_s <= high_s
    return (
        f"The host of this lease took {factor:.2f} times as long as the reference host. With the "
        f"predictions for such a host, iterations are {mean(errors):.1%} off (median "
        f"{median(errors):.1%}), and {held} of {len(errors)} are in range."
    )


def tables() -> str:
    """The errors of each step as predicted before, and in one line those of today's models."""
    said = predicted(FOLDER)
    today = compared(FOLDER, all_told("blind_7", FOLDER / TRACED))
    gpu = [abs(step.gpu_error) for step in today]
    line = f"Today's models are {mean(gpu):.1%} off in GPU time (median {median(gpu):.1%})."
    return "\n".join([*table(compared(FOLDER, said)), "", with_its_host(FOLDER, said), line])


def main(given: Sequence[str] = ()) -> None:
    """Predict, or print the tables and write them into the page if asked."""
    parser = needs.parser(__doc__)
    parser.add_argument("--predict", type=Path, metavar="FOLDER", help="folder of traces")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    args = parser.parse_args(given)
    if args.predict:
        write_predictions(args.predict)
        return
    text = tables()
    print(text)
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-blind.md", "sixth test", text)
