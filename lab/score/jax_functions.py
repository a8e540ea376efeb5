"""How well are JAX steps of several jitted functions predicted, from their script?

    python -m lab score jax_functions

Prints the table of docs/howto/predict-a-jax-step.md: what was predicted before it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from lab import needs
from lab.places import H200

PREDICTED, MEASURED = (H200 / "jax" / f"functions{name}.json" for name in ("-predictions", ""))


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
    """Print the table."""
    needs.parser(__doc__).parse_args(given)
    print("\n".join(lines()))
