"""How well are published compiled steps on several GPUs predicted?

    python -m lab.score.compiled_distributed --data FOLDER

Needs torch, pandas and the public table distributed (docs/sources.md). Takes its compiled rows,
compiles the blocks of the rebuilt model and spreads the compiled trace. Beside it stand the same
step as if it were eager, and the row's rebuilding in `lab.score.distributed`, where some modules of
eager code are one kernel each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lab import needs
from lab.measured.distributed_steps import MeasuredStep, NotRebuilt, rebuilt
from lab.measured.tables import read_rows
from lab.score.compiled_calls import followed
from lab.score.distributed import PublishedSteps
from wavecast.hardware.devices import device

WAYS: dict[str, Callable[[MeasuredStep], MeasuredStep]] = {
    "compiled": lambda step: step.as_compiled,
    "eager": lambda step: step.as_eager,
    "eager, some modules fused": lambda step: step,
}


META_H100 = "H100-SXM-96GB-HBM2e-500W"
"""torchtitan's GPU, which nobody sells. It is taken for an H100 with six stacks of the memory of
which an A100 with 80 GB has five, and with 500 W."""


def _rebuilt(row: Mapping[str, Any]) -> MeasuredStep:
    if row["gpu"] != META_H100:
        return rebuilt(row)
    usual = device("h100-sxm-80gb")
    stacks = device("a100-sxm-80gb").memory_bytes_per_s * 6 / 5
    own = replace(usual, memory_bytes=96 << 30, memory_bytes_per_s=stacks, tdp_w=500.0)
    return replace(rebuilt({**row, "gpu": usual.id}), device=own)


def errors(row: Mapping[str, Any], steps: PublishedSteps) -> dict[str, float | str]:
    """The relative error of each way to predict a row, or why there is none."""
    found: dict[str, float | str] = {}
    for way, changed in WAYS.items():
        try:
            step = changed(_rebuilt(row))
            if not followed(step.trace):
                raise NotRebuilt("torch.compile was not followed")
            found[way] = steps.score_step(step).ratio - 1
        except NotRebuilt as error:
            found[way] = str(error)
    return found


def line(row: Mapping[str, Any], found: Mapping[str, float | str]) -> str:
    """A line of the table."""
    source = str(row["source"]).split("/")[-1]
    cells = [f"{e:+.1%}" if isinstance(e, float) else "" for e in found.values()]
    how = f"{row['strategy']}, {row['n_gpu']} x {row['gpu']}, {row['precision']}"
    if row["notes"]:
        how += f", {row['notes']}"
    compiled = "compiled" if row["compile"] else "eager"
    return f"| {source} {row['model']}, {how} | {compiled} | {' | '.join(cells)} |"


def main(given: Sequence[str] | None = None) -> None:
    """Print a line for each row, the means, and what could not be rebuilt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, "distributed")
    rows = read_rows(parser.parse_args(given).data / "distributed" / "steps.parquet")
    sources = {row["source"] for row in rows if row["compile"]}
    chosen = [r for r in rows if r["source"] in sources and r["compile"] is not None]
    steps = PublishedSteps({})
    print(f"| step | ran | {' | '.join(WAYS)} |\n|---|---|{'---:|' * len(WAYS)}")
    every: dict[str, list[float]] = {way: [] for way in WAYS}
    reasons = []
    for row in chosen:
        found = errors(row, steps)
        if not any(isinstance(error, float) for error in found.values()):
            reasons.append(f"{row['row_id']}: {next(iter(found.values()))}")
            continue
        print(line(row, found), flush=True)
        if isinstance(found["compiled"], str):
            reasons.append(f"{row['row_id']}, as compiled: {found['compiled']}")
        elif row["compile"]:
            for way, error in found.items():
                every[way] += [abs(error)] if isinstance(error, float) else []
    means = " | ".join(f"{np.mean(own):.1%}" if own else "" for own in every.values())
    print(f"| **mean error, {len(every['compiled'])} compiled steps** | | {means} |")
    for reason in reasons:
        print(f"\nNot rebuilt: {reason}")


if __name__ == "__main__":
    main()
