"""How well are JAX steps of several jitted functions predicted, from their script?

python -m lab score jax_functions             the table of the four scripts
python -m lab score jax_functions --write     predictions only, before anything is measured
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from lab import needs
from lab.measured.compiled import GPU
from lab.places import H200, ROOT

SCRIPT = ROOT / "lab" / "steps" / "jax_functions.py"
PREDICTED, MEASURED = (H200 / "jax" / f"functions{name}.json" for name in ("-predictions", ""))


def predicted(kind: str) -> dict[str, Any]:
    """What is predicted for a step of the script."""
    import wavecast

    run = wavecast.run_script(SCRIPT, [kind], gpu=GPU)
    prediction = wavecast.predict(run.trace, GPU)
    return {
        "kind": kind,
        "framework": run.trace.framework,
        "holds": run.holds,
        "seconds": prediction.seconds,
        "low_s": prediction.low_s,
        "high_s": prediction.high_s,
        "gpu_s": prediction.gpu_s,
        "peak_bytes": wavecast.memory(run.trace, GPU).peak_bytes,
    }


def lines() -> Iterator[str]:
    """A row for each step, and the mean errors."""
    rows = json.loads(PREDICTED.read_text(encoding="utf-8"))
    found = {row["kind"]: row for row in json.loads(MEASURED.read_text(encoding="utf-8"))}
    errors, memory = [], []
    yield "| step | calls | predicted | measured | error | memory, predicted | measured |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for row in rows:
        true = found[row["kind"]]
        errors.append(row["seconds"] / true["seconds"] - 1)
        memory.append(row["peak_bytes"] / true["peak_bytes"] - 1)
        yield (
            f"| {row['kind']} | {row['holds']} | {row['seconds'] * 1e3:.2f} ms "
            f"| {true['seconds'] * 1e3:.2f} ms | {errors[-1]:+.0%} "
            f"| {row['peak_bytes'] / 2**20:.0f} MiB | {true['peak_bytes'] / 2**20:.0f} MiB |"
        )
    inside = sum(row["low_s"] <= found[row["kind"]]["seconds"] <= row["high_s"] for row in rows)
    yield ""
    yield (
        f"Mean size of the error: {_mean(errors):.1%} of the step, {_mean(memory):.1%} of its "
        f"memory; {inside} of {len(rows)} in range."
    )


def _mean(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / len(errors)


def main(given: Sequence[str] = ()) -> None:
    """Print the table, or write the predictions."""
    parser = needs.parser(__doc__)
    parser.add_argument("--write", action="store_true", help="write the predictions")
    if not parser.parse_args(given).write:
        print("\n".join(lines()))
        return
    from lab.steps.jax_functions import KINDS

    text = json.dumps([predicted(kind) for kind in KINDS], indent=1)
    PREDICTED.write_text(f"{text}\n", encoding="utf-8")
