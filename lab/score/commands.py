"""One published step on several GPUs of each source, with the command that predicts it.

    python -m lab score commands --data FOLDER

Needs torch, pandas and the public table distributed (docs/sources.md). Prints the commands of
docs/parallel.md. The smallest model of each source is shown whose cluster is the GPU's usual one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab import needs
from lab.measured.distributed_steps import MeasuredStep, NotRebuilt, rebuilt
from lab.measured.tables import read_rows
from lab.measured.user_commands import command_of
from lab.score.distributed import PublishedSteps


def smallest(rows: Iterable[Mapping[str, Any]]) -> dict[str, MeasuredStep]:
    """The step of the smallest model of each source that a command can predict."""
    found: dict[str, MeasuredStep] = {}
    for row in rows:
        try:
            step = rebuilt(row)
        except NotRebuilt:
            continue
        if command_of(step) is None or "far_below_best" in str(row["qc"] or ""):
            continue
        known = found.get(step.source)
        if known is None or _size(step) < _size(known):
            found[step.source] = step
    return found


def _size(step: MeasuredStep) -> int:
    return step.sizes.layers * step.sizes.hidden**2


def main(given: Sequence[str] = ()) -> None:
    """Print each step, what was measured and predicted, and the command."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, "distributed")
    rows = read_rows(parser.parse_args(given).data / "distributed" / "steps.parquet")
    for source, step in sorted(smallest(rows).items()):
        scored = PublishedSteps({}).score_step(step)
        times = f"{step.seconds:.4g} s measured, {scored.seconds:.4g} s predicted"
        print(f"# {source}, {step.row['model']}: {times}\n{command_of(step)}\n", flush=True)
