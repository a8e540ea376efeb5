"""How well were steps of torch that nothing had seen predicted before they ran on our H200?

    python -m lab score blind_torch TEST --predict FOLDER    predict traces, and write what is said
    python -m lab score blind_torch [TEST ...] [--write]     compare it with what was measured

The tests after the first two are in `TESTS`; without a name, all that were measured are compared.
Each set of steps has a folder in measurements/h200: `predictions.json`, committed before anything
was measured, and what `lab collect step_times SET OUT` measured.

FOLDER has traces made by `lab collect step_times SET FOLDER --predict`; they are kept beside the
predictions, so that later models can be compared on them. How fast the host of a lease is cannot be
known before, so each step is predicted with the reference host and with faster and slower ones. The
host benchmark that ran between the measured steps then says which of these predictions stands for a
calibrated host. `--write` puts the tables into docs/appendix/accuracy-blind.md.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import wavecast
from lab import needs
from lab.markdown import heading
from lab.measured.traced_steps import read_traces, write_traces
from lab.places import H200
from lab.score import pages
from lab.steps.timed_sets import steps_of
from wavecast import Trace
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.hardware.kept_hosts import factor_of, reference_times

TRACED = "traced.tar"
GPU = "h200-sxm"
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5)
"""How long the hosts take in multiples of the reference host. Our leases took 0.65 to 1.6."""

FAR_OFF = 0.5
"""Steps with a larger error in GPU time are named, and the means are given without them as well."""


@dataclass(frozen=True)
class TorchTest:
    """A blind test of steps of torch."""

    name: str
    title: str
    """Its line in the table of all blind tests."""
    sets: tuple[str, ...]
    """The names of its folders, and of its sets (`lab.steps.timed_sets`) until it was measured."""

    @property
    def mark(self) -> str:
        """The mark of its tables in the page."""
        return f"{self.name} test"

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of its sets that were measured."""
        every = (H200 / name for name in self.sets)
        return tuple(folder for folder in every if (folder / "rows.jsonl.gz").exists())


TESTS = (
    TorchTest("third", "torch, eager and compiled, models of 2025 and 2026", ("blind_3",)),
    TorchTest("fourth", "torch, other families", ("blind_4",)),
    TorchTest("fifth", "torch, again others", ("blind_5", "blind_6")),
    TorchTest("sixth", "torch, others once more", ("blind_7",)),
    TorchTest("seventh", "torch, families that nobody had run", ("blind_8",)),
    TorchTest("eighth", "torch, usual models of these years", ("blind_9",)),
    TorchTest("repaired", "torch, code that version 0.2 got wrong", ("repaired",)),
)
"""The blind tests of torch that have a page in common, as they were made."""


@dataclass(frozen=True)
class BlindStep:
    """A step, predicted and then measured."""

    name: str
    mode: str
    gpu_error: float
    error: float
    """That of the iteration."""
    memory_error: float | None
    within: bool
    """Whether the iteration lies in its range."""

    @classmethod
    def of(cls, name: str, told: Mapping[str, Any], found: Mapping[str, Any]) -> BlindStep:
        """A step from what was predicted (`told`) and what was measured (`found`)."""
        peak_bytes = found.get("peak_bytes")
        return cls(
            name=name.partition("-")[2],
            mode="compiled" if told["mode"] == "default" else told["mode"],
            # A profiler may slow kernels down that wait for others: no GPU is busy for longer.
            gpu_error=told["gpu_s"] / min(found["busy_s"], found["wall_s"]) - 1,
            error=told["seconds"] / found["wall_s"] - 1,
            memory_error=told["peak_bytes"] / peak_bytes - 1 if peak_bytes else None,
            within=told["low_s"] <= found["wall_s"] <= told["high_s"],
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


def all_told(modes: Mapping[str, str], archive: Path) -> dict[str, Any]:
    """What is predicted of each of these steps whose trace is in the archive, by name."""
    traces = read_traces(archive)
    return {name: told(traces[name], mode) for name, mode in modes.items() if name in traces}


def modes_of(which: str) -> dict[str, str]:
    """How the steps of a set run, by name."""
    return {step.name: step.mode for step in steps_of(which)}


def write_predictions(which: str, traces: Path) -> None:
    """Keep the traces of a set, and write what is predicted of them."""
    folder = H200 / which
    folder.mkdir(parents=True, exist_ok=True)
    write_traces(folder / TRACED, traces)
    traced = json.loads((traces / "predictions.json").read_text(encoding="utf-8"))
    predictions = all_told(modes_of(which), folder / TRACED)
    document = {"traced": traced["about"], "predictions": predictions}
    text = json.dumps(document, indent=1)
    (folder / "predictions.json").write_text(text + "\n", encoding="utf-8")


def predicted(folder: Path) -> dict[str, Any]:
    """The predictions of a set by the name of the step."""
    document = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    predictions: dict[str, Any] = document["predictions"]
    return predictions


def rows(folder: Path) -> list[dict[str, Any]]:
    """All that `lab collect step_times` wrote: steps and rounds of the host benchmark."""
    with gzip.open(folder / "rows.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def measured(folder: Path) -> dict[str, Any]:
    """What was measured of each step, by its name."""
    runs = folder / "measured.json"
    if not runs.exists():
        return {row["step"]: row for row in rows(folder) if "step" in row}
    # The third test had two runs: times are from the first, memory is from the second.
    document = json.loads(runs.read_text(encoding="utf-8"))
    again = document["again"]
    return {
        name: row | {"peak_bytes": again.get(name, {}).get("peak_bytes")}
        for name, row in document["first"].items()
    }


def compared(folder: Path, said: Mapping[str, Any]) -> list[BlindStep]:
    """The steps of a set that were measured, beside what was said of them."""
    found = measured(folder)
    return [BlindStep.of(name, one, found[name]) for name, one in said.items() if name in found]


def steps(test: TorchTest) -> list[BlindStep]:
    """The steps of a test that were measured, beside what was committed before."""
    return [step for folder in test.folders for step in compared(folder, predicted(folder))]


def table(every: Sequence[BlindStep]) -> Iterator[str]:
    """The errors of each step, then their means."""
    yield from heading("step | how | GPU time | iteration | memory | in range", "ll")
    for one in every:
        memory = "" if one.memory_error is None else f"{one.memory_error:+.1%}"
        errors = f"{one.gpu_error:+.0%} | {one.error:+.0%} | {memory}"
        yield f"| {one.name} | {one.mode} | {errors} | {'yes' if one.within else 'no'} |"
    yield ""
    yield from heading("steps | number | GPU time, mean / median | iteration | memory | in range")
    for mode in ("eager", "compiled", ""):
        chosen = [one for one in every if mode in ("", one.mode)]
        gpu, whole = ([abs(getattr(o, f)) for o in chosen] for f in ("gpu_error", "error"))
        sizes = [abs(one.memory_error) for one in chosen if one.memory_error is not None]
        memory = f"{mean(sizes):.1%} ({len(sizes)} steps)" if sizes else ""
        held = sum(one.within for one in chosen)
        yield (
            f"| {mode or 'all'} | {len(chosen)} | {mean(gpu):.1%} / {median(gpu):.1%} | "
            f"{mean(whole):.1%} / {median(whole):.1%} | {memory} | {held} |"
        )


def without_worst(every: Sequence[BlindStep]) -> Iterator[str]:
    """A line with the errors of the other steps, if some are far off in GPU time."""
    rest = [one for one in every if abs(one.gpu_error) <= FAR_OFF]
    if len(rest) < len(every):
        gpu, whole = (mean(abs(getattr(o, f)) for o in rest) for f in ("gpu_error", "error"))
        memory = mean(abs(one.memory_error) for one in rest if one.memory_error is not None)
        yield ""
        yield (
            f"Without those more than {FAR_OFF:.0%} off in GPU time, {len(rest)} of {len(every)} "
            f"steps are {gpu:.1%} off in GPU time, {whole:.1%} in iterations and {memory:.1%} in "
            "memory."
        )


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


def _today(folder: Path) -> str:
    """A line that says how far off today's models are on the traces that were kept."""
    modes = {name: step["mode"] for name, step in predicted(folder).items()}
    today = compared(folder, all_told(modes, folder / TRACED))
    gpu = [abs(step.gpu_error) for step in today]
    return f"Today's models are {mean(gpu):.1%} off in GPU time (median {median(gpu):.1%})."


def tables(test: TorchTest) -> str:
    """The errors of each step as predicted before; where traces were kept, what else they tell."""
    every = steps(test)
    lines = [*table(every), *without_worst(every)]
    for folder in test.folders:
        if (folder / TRACED).exists():
            lines += ["", with_its_host(folder, predicted(folder)), _today(folder)]
    return "\n".join(lines)


def main(given: Sequence[str] = ()) -> None:
    """Predict, or print the tables and write them into the page if asked."""
    parser = needs.parser(__doc__)
    names = [test.name for test in TESTS]
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"one of {', '.join(names)}")
    parser.add_argument("--predict", type=Path, metavar="FOLDER", help="folder of traces")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    args = parser.parse_args(given)
    if unknown := set(args.tests) - set(names):
        parser.error(f"no test is called {', '.join(sorted(unknown))}")
    chosen = [test for test in TESTS if test.name in args.tests or not args.tests]
    if args.predict:
        if len(chosen) != 1 or chosen[0].folders or len(chosen[0].sets) != 1:
            parser.error("--predict needs one test of one set that was not measured yet")
        write_predictions(chosen[0].sets[0], args.predict)
        return
    for test in chosen:
        if not test.folders:
            print(f"The {test.mark} was not measured yet.")
            continue
        text = tables(test)
        print(f"The {test.mark}\n\n{text}\n")
        if args.write:
            pages.write(pages.APPENDIX / "accuracy-blind.md", test.mark, text)
