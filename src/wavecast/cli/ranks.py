"""The option `--ranks`: how many ranks the step's own parallel code has."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target

RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        min=1,
        metavar="N",
        help="Trace the first of N ranks, for code that starts a process group, wraps its model "
        "in DistributedDataParallel, or shards it with fully_shard or DTensor.",
    ),
]


def of_ranks(target: Target, ranks: int | None) -> Target:
    """The target, traced as one of the ranks that `--ranks` gives."""
    if ranks is None:
        return target
    if target.make_step is None:
        raise InvalidInput(
            f"{target.name} is a trace, whose ranks are fixed; give --ranks when the step is traced"
        )
    return replace(target, ranks=ranks)
