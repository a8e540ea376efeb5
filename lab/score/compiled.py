"""How well are compiled steps predicted? Kernels, GPU time, gain, iteration and memory.

    python -m lab score compiled trace FOLDER [NAME ...]    trace steps eager and compiled
    python -m lab score compiled predict FOLDER OUT.json    predict the traced steps, and write it
    python -m lab score compiled compare OUT.json           compare with what was measured

Tracing needs torch, transformers and, for classifiers of images, torchvision (which does not work
beside transformers and a CPU build of torch: trace these steps in a process of their own). What was
measured is in measurements/h200/compiled. The predictions also have the GPU time by a fit without
the family of the step, and the share of the measured GPU time whose kernels are also in the trace
(`lab.score.compiled_calls`).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import wavecast
from lab import needs
from lab.fit import fused
from lab.measured.compiled import GPU, FusedKernel, Row, by_name, kernels, traced, unslowed
from lab.pages import heading
from lab.score.compiled_calls import agreement, followed
from wavecast import ops
from wavecast.ops import Kind
from wavecast.ops.fused import HOST_CALLS
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Trace

HOWS = ("compiled", "eager")


def trace(folder: Path, names: list[str]) -> None:
    """Write the traces of steps; one that fails is reported and left out."""
    from lab.steps.compiled import EAGER, STEPS

    folder.mkdir(parents=True, exist_ok=True)
    chosen = set(names) or {step.name for step in STEPS}
    for step in STEPS:
        for how in HOWS:
            path = folder / f"{step.name}.{how}.json.gz"
            if path.exists() or step.name not in chosen:
                continue
            try:
                make = partial(step.make, step.mode if how == "compiled" else EAGER)
                wavecast.trace(make, gpu=GPU).save(path)
                print(f"{step.name}, {how}", flush=True)
            except Exception as error:  # the others still count
                print(f"{step.name}, {how}: {str(error)[:200]}", flush=True)


def predicted(step: Trace) -> Row:
    """What is predicted for a traced step on our GPU."""
    prediction = wavecast.predict(step, GPU)
    fused = [call for call in step if ops.kind(call.op) is Kind.FUSED]
    calls = [call for call in step if call.op.name not in HOST_CALLS]
    return {
        "seconds": prediction.seconds,
        "gpu_s": prediction.gpu_s,
        "fused": len(fused),
        "kernels": sum(ops.kernels(call.op) for call in calls),
        "peak_bytes": wavecast.memory(step, GPU).peak_bytes,
        "followed": followed(step),
    }


@cache
def _kernels() -> Sequence[FusedKernel]:
    return kernels()


@cache
def fitted_without(family: str) -> Learned:
    """The predictor whose model of fused kernels was fitted without the steps of a family.

    Nothing else was fitted on the measured steps.
    """
    rows = [row for row in _kernels() if row.family not in ("host", family)]
    models = {**Learned.shipped().models, "fused": fused.fit(rows)}
    return replace(Learned.shipped(), models=models)


def predict(folder: Path, out: Path) -> None:
    """Predict every step of a folder of traces, and write the predictions."""
    rows: dict[str, Row] = {}
    known = by_name()
    for path in sorted(folder.glob("*.compiled.json.gz")):
        name = path.name.removesuffix(".compiled.json.gz")
        eager = folder / f"{name}.eager.json.gz"
        if not eager.exists():
            continue
        step = wavecast.load_trace(path)
        rows[name] = {"compiled": predicted(step), "eager": predicted(wavecast.load_trace(eager))}
        if name in known:
            without = fitted_without(known[name]["family"])
            rows[name]["left_out_gpu_s"] = wavecast.predict(step, GPU, predictor=without).gpu_s
            rows[name]["found"] = agreement(known[name], traced(step)).share
        print(name, rows[name], flush=True)
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def compared(name: str, said: Row, row: Row) -> Row:
    """The relative errors of one step, and the share of its GPU time that the trace has."""
    real, eager = row["compiled"], row["eager"]
    mine, before = said["compiled"], said["eager"]
    kernel_count = sum(kernel["name"] in row["ops"] for kernel in real["kernels"])
    gain = eager["busy_s"] / real["busy_s"]
    return {
        "step": name,
        "family": row["family"],
        "fused": mine["fused"] / max(kernel_count, 1) - 1,
        "found": said.get("found", math.nan),
        "gpu": mine["gpu_s"] / real["busy_s"] - 1,
        "left out": said.get("left_out_gpu_s", math.nan) / real["busy_s"] - 1,
        "gain": before["gpu_s"] / mine["gpu_s"] / gain - 1,
        "iteration": mine["seconds"] / real["wall_s"] - 1,
        "peak": mine["peak_bytes"] / max(real["peak_bytes"], 1) - 1,
    }


COLUMNS = {
    "fused": "fused kernels",
    "found": "GPU time of equal kernels",
    "gpu": "GPU time",
    "left out": "GPU time, family left out",
    "gain": "gain over eager",
    "iteration": "iteration",
    "peak": "peak memory",
}
"""What is shown of each step: relative errors, except for `found`, which is a share."""


def table(predictions: dict[str, Row]) -> str:
    """The errors of the steps that were captured and measured, and their means."""
    rows, unfollowed = [], []
    known = unslowed()
    for name, said in predictions.items():
        if name not in known:
            continue
        if not said["compiled"]["followed"]:
            unfollowed.append(name)
        elif "eager" in known[name]:
            rows.append(compared(name, said, known[name]))
    if not rows:
        return "no steps"
    # Predictions that were made before a step was measured know nothing of its kernels.
    shown = [figure for figure in COLUMNS if not any(math.isnan(row[figure]) for row in rows)]
    text = [*heading(f"step | {' | '.join(COLUMNS[figure] for figure in shown)}")]
    for row in sorted(rows, key=lambda row: str(row["step"])):
        cells = [f"{row[f]:.1%}" if f == "found" else f"{row[f]:+.1%}" for f in shown]
        text.append(f"| {row['step']} | " + " | ".join(cells) + " |")
    for what, of in (("mean error", statistics.mean), ("median error", statistics.median)):
        cells = [f"{of(abs(row[f]) for row in rows):.1%}" for f in shown]
        text.append(f"| **{what}, {len(rows)} steps** | " + " | ".join(cells) + " |")
    if unfollowed:
        text.append(f"\nNot captured, and left out: {', '.join(unfollowed)}.")
    return "\n".join(text)


def main(given: Sequence[str] = ()) -> None:
    """Trace, predict or compare, as the arguments say."""
    parser = needs.parser(__doc__)
    parser.add_argument("action", choices=["trace", "predict", "compare"])
    parser.add_argument("path", type=Path)
    parser.add_argument("more", nargs="*")
    args = parser.parse_args(given)
    if args.action == "trace":
        trace(args.path, args.more)
    elif args.action == "predict":
        predict(args.path, Path(args.more[0]))
    else:
        predictions = json.loads(args.path.read_text(encoding="utf-8"))
        print(table(predictions))
