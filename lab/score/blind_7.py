"""How well were 31 steps of families that nothing had seen predicted before they ran on our H200?

    python -m lab score blind_7 --predict FOLDER    predict traces, and write the predictions
    python -m lab score blind_7 [--write]           compare them with what was measured

The sixth blind test. FOLDER has traces made by `lab collect step_times blind_7 FOLDER --predict`.
How fast the host of a lease is cannot be known before, so each step is predicted with the reference
host and with faster and slower ones. The host benchmark that ran between the measured steps then
says which of these predictions stands for a calibrated host. `--write` puts the tables into
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
from lab.places import H200
from lab.score import pages
from lab.score.blind_3 import predicted, table
from lab.score.blind_4 import measured, rows, steps
from lab.steps.timed_sets import steps_of
from wavecast.hardware.calibration import factor_of, reference_times
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.traces.step import load_trace

FOLDER = H200 / "blind_7"
GPU = "h200-sxm"
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5)
"""How long the hosts take in multiples of the reference host. Our leases took 0.65 to 1.6."""
ABOUT = (
    "traced with torch 2.13 and transformers 5.17 on a CPU; the GPU has torch 2.11 and "
    "transformers 5.17"
)


def told(path: Path, mode: str) -> dict[str, Any]:
    """What is predicted of a traced step, with the reference host and with others."""
    trace = load_trace(path)
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


def write_predictions(traces: Path) -> None:
    """Predict the traces in a folder, and write the predictions beside the measurements."""
    found = {
        step.name: told(path, step.mode)
        for step in steps_of("blind_7")
        if (path := traces / f"{step.name}.traced.json.gz").exists()
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": ABOUT, "predictions": found}, indent=1)
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


def with_its_host() -> str:
    """A line that says how far off iterations are with the calibrated host of the lease."""
    factor, found, all_told = host_factor(FOLDER), measured(FOLDER), predicted(FOLDER)
    errors, held = [], 0
    for name in all_told.keys() & found.keys():
        seconds, low_s, high_s = calibrated(all_told[name], factor)
        wall_s = found[name]["wall_s"]
        errors.append(abs(seconds / wall_s - 1))
        held += low_s <= wall_s <= high_s
    return (
        f"The host of this lease took {factor:.2f} times as long as the reference host. With the "
        f"predictions for such a host, iterations are {mean(errors):.1%} off (median "
        f"{median(errors):.1%}), and {held} of {len(errors)} are in range."
    )


def main(given: Sequence[str] = ()) -> None:
    """Predict, or print the tables and write them into the page if asked."""
    parser = needs.parser(__doc__)
    parser.add_argument("--predict", type=Path, metavar="FOLDER", help="folder of traces")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    args = parser.parse_args(given)
    if args.predict:
        write_predictions(args.predict)
        return
    text = "\n".join([*table(list(steps(FOLDER))), "", with_its_host()])
    print(text)
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-blind.md", "sixth test", text)
