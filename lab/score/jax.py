"""How well are JAX steps predicted? GPU time, iteration, kernels and memory, as measured.

python -m lab score jax            steps of the fit (kernels of their families were seen)
python -m lab score jax blind      steps of the blind test (second: of the second one)
python -m lab score jax blind --read FILE      as was predicted before they were measured
python -m lab score jax_functions  steps of several jitted functions, from their script

Without --read, today's models predict what XLA compiled on our GPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.measured import jax_steps
from lab.measured.compiled import GPU
from lab.measured.jax_steps import FOLDER
from lab.scores import ScoreTable

FIELDS = ("gpu_s", "seconds", "memory_bytes", "kernels")


def predicted(name: str, group: str) -> dict[str, Any]:
    """What is predicted for a measured step, as XLA compiled it on the GPU."""
    import wavecast
    from wavecast.frameworks.jax.driver import CompiledModule
    from wavecast.frameworks.jax.tracing import trace_of
    from wavecast.hardware.devices import device
    from wavecast.predictors.learned.autotuned import kernels_of

    gpu, row = device(GPU), jax_steps.steps(group)[name]
    module = CompiledModule(jax_steps.hlo_texts(group)[name], row["memory"])
    trace = trace_of(module, gpu, framework=f"jax {row['jax']}")
    prediction = wavecast.predict(trace, gpu)
    return {
        "name": name,
        "gpu_s": prediction.gpu_s,
        "seconds": prediction.seconds,
        "low_s": prediction.low_s,
        "high_s": prediction.high_s,
        "memory_bytes": wavecast.memory(trace, gpu).peak_bytes,
        "kernels": round(sum(kernels_of(call.op) for call in trace)),
    }


def measured(row: jax_steps.Row) -> dict[str, float]:
    """What was measured of a step."""
    sizes = row["memory"]
    return {
        "gpu_s": row["default"]["gpu_s"],
        "seconds": row["default"]["seconds"],
        "memory_bytes": sizes["argument"] + sizes["temp"] + sizes["output"] - sizes["alias"],
        "allocated_bytes": row["memory_after"]["peak_bytes_in_use"],
        "kernels": row["default"]["count"],
    }


def lines(rows: Sequence[dict[str, Any]], group: str) -> Iterator[str]:
    """A table of predictions and measurements, and mean errors."""
    steps = jax_steps.steps(group)
    off: dict[str, list[float]] = {name: [] for name in FIELDS}
    held = []
    yield f"{'step':20} {'GPU ms':>17} {'iteration ms':>17} {'MiB':>15} {'kernels':>13}  in range"
    for row in rows:
        if row["name"] not in steps:
            continue
        true = measured(steps[row["name"]])
        for name in FIELDS:
            off[name].append(row[name] / true[name] - 1)
        inside = row["low_s"] <= true["seconds"] <= row["high_s"]
        held.append(inside)
        yield (
            f"{row['name']:20} {row['gpu_s'] * 1e3:8.3f} {true['gpu_s'] * 1e3:8.3f} "
            f"{row['seconds'] * 1e3:8.3f} {true['seconds'] * 1e3:8.3f} "
            f"{row['memory_bytes'] / 2**20:7.0f} {true['memory_bytes'] / 2**20:7.0f} "
            f"{row['kernels']:6.0f} {true['kernels']:6.0f}  {'yes' if inside else 'no'} "
            f"{off['gpu_s'][-1]:+.1%}"
        )
    for name, errors in off.items():
        size = np.abs(errors)
        median = np.median(size)
        yield f"{name}: mean error {size.mean():.1%}, median {median:.1%}, {len(size)} steps"
    yield f"in range: {sum(held)} of {len(held)}"
    yield f"exponent that ranges need, relative to theirs: {needed_exponent(rows, group):.2f}"


def needed_exponent(rows: Sequence[dict[str, Any]], group: str) -> float:
    """The exponent on the ends of ranges with which they hold nine in ten of other steps.

    Split conformal prediction: of n steps, the one of rank 0.9 (n + 1).
    """
    steps, needed = jax_steps.steps(group), []
    for row in rows:
        if row["name"] in steps:
            off = math.log(measured(steps[row["name"]])["seconds"] / row["seconds"])
            end = row["low_s"] if off < 0 else row["high_s"]
            needed.append(off / math.log(end / row["seconds"]))
    rank = min(math.ceil(0.9 * (len(needed) + 1)), len(needed))
    return sorted(needed)[rank - 1]


def of_functions() -> Iterator[ScoreTable]:
    """Steps of several jitted functions, as predicted from their script before they ran."""
    yield ScoreTable("\n".join(_functions()))


def _functions() -> Iterator[str]:
    """A row for each step, and the mean errors."""
    files = (FOLDER / f"functions{name}.json" for name in ("-predictions", ""))
    rows, measured_rows = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    by_kind = {row["kind"]: row for row in measured_rows}
    errors, memory = [], []
    yield "| step | calls | predicted | measured | error | memory, predicted | measured |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for row in rows:
        true = by_kind[row["kind"]]
        errors.append(row["seconds"] / true["seconds"] - 1)
        memory.append(row["peak_bytes"] / true["peak_bytes"] - 1)
        yield (
            f"| {row['kind']} | {row['holds']} | {row['seconds'] * 1e3:.2f} ms "
            f"| {true['seconds'] * 1e3:.2f} ms | {errors[-1]:+.0%} "
            f"| {row['peak_bytes'] / 2**20:.0f} MiB | {true['peak_bytes'] / 2**20:.0f} MiB |"
        )
    inside = sum(row["low_s"] <= by_kind[row["kind"]]["seconds"] <= row["high_s"] for row in rows)
    yield ""
    yield (
        f"Mean size of the error: {_mean(errors):.1%} of the step, {_mean(memory):.1%} of its "
        f"memory; {inside} of {len(rows)} in range."
    )


def _mean(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / len(errors)


def main(given: Sequence[str] = ()) -> None:
    """Predict the steps of a group and compare them with what was measured."""
    parser = needs.parser(__doc__)
    parser.add_argument("group", nargs="?", default="fit", choices=jax_steps.GROUPS)
    parser.add_argument("--read", type=Path, help="take predictions that were written before")
    options = parser.parse_args(given)
    if options.read:
        rows = json.loads(options.read.read_text(encoding="utf-8"))
    else:
        rows = [predicted(name, options.group) for name in jax_steps.steps(options.group)]
    print("\n".join(lines(rows, options.group)))
