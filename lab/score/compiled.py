"""How well are compiled steps predicted? Kernels, GPU time, gain, iteration and memory.

    python -m lab.score.compiled trace FOLDER [NAME ...]    trace steps eager and compiled
    python -m lab.score.compiled predict FOLDER OUT.json    predict the traced steps, and write it
    python -m lab.score.compiled compare OUT.json           compare with what was measured

Tracing needs torch, transformers and, for classifiers of images, torchvision (which does not work
beside transformers and a CPU build of torch: trace these steps in a process of their own). Without
names, the steps of the second blind test are left alone; "blind-2" names all of them. What was
measured is in measurements/h200/compiled; steps of the blind tests are in blind.jsonl.gz and
blind_2.jsonl.gz there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from lab.measured.compiled import GPU, lines
from wavecast import ops
from wavecast.ops import Kind
from wavecast.ops.fused import HOST_CALLS

HOWS = ("compiled", "eager")
BLIND_FILES = {"blind": "blind-", "blind_2": "blind2-"}
"""The files of the blind tests, and how the names of their steps begin."""
FAILED = "could not be followed"
"""What a note says where compiled code was traced as eager."""

Row = dict[str, Any]


def trace(folder: Path, names: list[str]) -> None:
    """Write the traces of steps; one that fails is reported and left out."""
    from lab.steps.compiled import EAGER, STEPS
    from lab.steps.compiled_blind import BLIND
    from lab.steps.compiled_blind_2 import BLIND_2

    folder.mkdir(parents=True, exist_ok=True)
    chosen = set(names) or {step.name for step in (*STEPS, *BLIND)}
    if "blind-2" in chosen:
        chosen |= {step.name for step in BLIND_2}
    for step in (*STEPS, *BLIND, *BLIND_2):
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


def predicted(path: Path) -> Row:
    """What is predicted for the step of a trace on our GPU."""
    step = wavecast.load_trace(path)
    prediction = wavecast.predict(step, GPU)
    fused = [call for call in step if ops.kind(call.op) is Kind.FUSED]
    calls = [call for call in step if call.op.name not in HOST_CALLS]
    return {
        "seconds": prediction.seconds,
        "gpu_s": prediction.gpu_s,
        "fused": len(fused),
        "kernels": sum(ops.kernels(call.op) for call in calls),
        "peak_bytes": wavecast.memory(step, GPU).peak_bytes,
        "followed": not any(FAILED in note for note in step.notes),
    }


def predict(folder: Path, out: Path) -> None:
    """Predict every step of a folder of traces, and write the predictions."""
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob("*.compiled.json.gz")):
        name = path.name.removesuffix(".compiled.json.gz")
        eager = folder / f"{name}.eager.json.gz"
        if eager.exists():
            rows[name] = {"compiled": predicted(path), "eager": predicted(eager)}
            print(name, rows[name], flush=True)
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measured() -> dict[str, Row]:
    """The measured steps by name."""
    return {row["step"]: row for file in ("steps", *BLIND_FILES) for row in lines(file)}


def compared(name: str, said: Row, row: Row) -> Row:
    """The relative errors of one step."""
    real, eager = row["compiled"], row["eager"]
    mine, before = said["compiled"], said["eager"]
    fused = sum(kernel["name"] in row["ops"] for kernel in real["kernels"])
    gain = eager["busy_s"] / real["busy_s"]
    return {
        "step": name,
        "family": row["family"],
        "fused": mine["fused"] / max(fused, 1) - 1,
        "gpu": mine["gpu_s"] / real["busy_s"] - 1,
        "gain": before["gpu_s"] / mine["gpu_s"] / gain - 1,
        "iteration": mine["seconds"] / real["wall_s"] - 1,
        "peak": mine["peak_bytes"] / max(real["peak_bytes"], 1) - 1,
    }


def blind_test(name: str) -> str | None:
    """The blind test that a step belongs to; None for a step that a fit may see."""
    return next((test for test, begin in BLIND_FILES.items() if name.startswith(begin)), None)


def table(predictions: dict[str, Row], *, blind: str | None) -> str:
    """The errors of the steps of a test that were captured and measured, and their means."""
    rows, unfollowed = [], []
    known = measured()
    for name, said in predictions.items():
        if name not in known or blind_test(name) != blind:
            continue
        if not said["compiled"]["followed"]:
            unfollowed.append(name)
        elif "eager" in known[name]:
            rows.append(compared(name, said, known[name]))
    figures = ("fused", "gpu", "gain", "iteration", "peak")
    text = ["| step | fused kernels | GPU time | gain over eager | iteration | peak memory |"]
    text.append("|---|---:|---:|---:|---:|---:|")
    for row in sorted(rows, key=lambda row: str(row["step"])):
        text.append(f"| {row['step']} | " + " | ".join(f"{row[f]:+.1%}" for f in figures) + " |")
    for what, of in (("mean error", statistics.mean), ("median error", statistics.median)):
        cells = [f"{of(abs(row[f]) for row in rows):.1%}" for f in figures] if rows else []
        text.append(f"| **{what}, {len(rows)} steps** | " + " | ".join(cells) + " |")
    if unfollowed:
        text.append(f"\nNot captured, and left out: {', '.join(unfollowed)}.")
    return "\n".join(text)


def main() -> None:
    """Trace, predict or compare, as the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["trace", "predict", "compare"])
    parser.add_argument("path", type=Path)
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    if given.action == "trace":
        trace(given.path, given.more)
    elif given.action == "predict":
        predict(given.path, Path(given.more[0]))
    else:
        predictions = json.loads(given.path.read_text(encoding="utf-8"))
        print(table(predictions, blind=None))
        for test in BLIND_FILES:
            print(f"\n\n{test}:\n\n{table(predictions, blind=test)}")


if __name__ == "__main__":
    main()
