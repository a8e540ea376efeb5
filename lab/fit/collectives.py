"""Fit the constants of collectives: latencies, efficiencies and protocols of NCCL.

    python -m lab fit collectives --data FOLDER

Needs scipy, pandas and the public tables kernels and distributed (docs/sources.md); takes five
minutes. Writes src/wavecast/data/models/collectives.toml. The constants are fitted in logarithms,
by least squares of the logarithm of predicted over measured time, with a loss that outliers do not
rule. Each is held near a physically sensible value, so that those without data keep it. Links that
were measured get factors on a few constants, by the generation of NVLink. The ranges are those of
rows that were left out of the fit.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab import needs
from lab.measured.collectives import MeasuredCollective, measured_collectives
from wavecast.files import shipped, write_whole
from wavecast.hardware.clusters import RankPlacement
from wavecast.predictors.collectives import (
    Collectives,
    LinkConstants,
    RankPath,
    generation_of,
    path_of,
)

OUT = shipped("models/collectives.toml")
NOT_FITTED = (
    *("host_hop_s", "host_efficiency", "host_shared_bytes_per_s", "ethernet_efficiency"),
    *("socket_bytes_per_s", "pcie_range", "host_range"),
)
"""No usable table has boxes without peer-to-peer, rings across processors, or Ethernet."""
RANGES = ("node_range", "unseen_range", "network_range")
FITTED = tuple(
    name
    for name in LinkConstants.__dataclass_fields__
    if name not in (*NOT_FITTED, *RANGES, "generations")
)
BY_GENERATION = ("launch_s", "nvlink_hop_s", "nvlink_efficiency", "nvls_efficiency", "fill_s")
PRIOR = 1.0
"""The standard deviation of a constant's logarithm around its first value."""
GENERATION_PRIOR = 0.3
"""The same for the factor of a generation."""
FEWEST_ROWS = 50
"""A kind of link with fewer rows gets no factors of its own."""
OUTLIER = 0.2
"""From this error of the logarithm on, a row counts as an outlier."""
SHORTEST_VIDUR = 1 << 20
"""Vidur's shorter messages wait for other ranks: their times jump between 8 and 60 us."""
GROUP_ROWS = 20
"""A series of messages that differ only in size counts as so many rows at most."""
RANGE_SHARE = 0.9

_HEAD = """\
# Written by python -m lab fit collectives: the constants of wavecast.predictors.collectives, whose
# dataclass says what each means. Fitted on {rows:,} measured collectives: {sources}.
# Not fitted: {unfitted}.
fitted = {day}
"""

Vector = NDArray[np.float64]


def usable(rows: Sequence[MeasuredCollective]) -> list[MeasuredCollective]:
    """The rows that constants are fitted on. Of several equal ones, the geometric mean."""
    groups: dict[tuple[object, ...], list[MeasuredCollective]] = defaultdict(list)
    for row in rows:
        if row.source == "vidur, two machines":
            continue
        if row.source == "vidur" and row.size < SHORTEST_VIDUR:
            continue
        key = (row.source, row.kind, row.size, row.device.id, row.cluster.id, row.placement)
        groups[key].append(row)
    return [
        replace(some[0], seconds=math.exp(sum(math.log(row.seconds) for row in some) / len(some)))
        for some in groups.values()
    ]


def log_errors(constants: LinkConstants, rows: Sequence[MeasuredCollective]) -> Vector:
    """The logarithm of predicted over measured time, for each row."""
    model, errors = Collectives(constants), np.empty(len(rows))
    paths: dict[tuple[str, str, int, RankPlacement], RankPath | None] = {}
    for index, row in enumerate(rows):
        key = (row.cluster.id, row.device.id, row.cluster.gpus_per_node, row.placement)
        if key not in paths:
            paths[key] = path_of(row.cluster, row.device, row.placement, constants)
        path = paths[key]
        if path is None:
            raise ValueError(f"no answer for {row}")
        errors[index] = math.log(model.fastest(row.kind, row.size, path)[0] / row.seconds)
    return errors


def generations(rows: Sequence[MeasuredCollective]) -> list[str]:
    """The kinds of links inside a machine that enough rows have: "nvlink3", "pcie"."""
    counts = Counter(generation_of(row.cluster, row.device) for row in rows)
    return sorted(name for name, count in counts.items() if count > FEWEST_ROWS)


def fit(rows: Sequence[MeasuredCollective], near: LinkConstants | None = None) -> LinkConstants:
    """The constants that fit these rows best.

    Args:
        rows: what was measured.
        near: constants from which the search starts, to save time.
    """
    from scipy.optimize import least_squares

    start, names = LinkConstants(), generations(rows)
    slots = [
        (name, factor)
        for name in names
        for factor in (BY_GENERATION if name.startswith("nvlink") else BY_GENERATION[:1])
    ]
    build = _builder(start, slots)
    weights = _weights(rows)
    spread = np.array([PRIOR] * len(FITTED) + [GENERATION_PRIOR] * len(slots))

    def residuals(x: Vector) -> Vector:
        return np.concatenate((weights * log_errors(build(x), rows), x / spread * OUTLIER))

    solution = least_squares(
        residuals, _begin(start, near, slots), loss="soft_l1", f_scale=OUTLIER, diff_step=1e-3
    )
    return build(solution.x)


def _begin(
    start: LinkConstants, near: LinkConstants | None, slots: Sequence[tuple[str, str]]
) -> Vector:
    """The logarithms at which the search starts."""
    if near is None:
        return np.zeros(len(FITTED) + len(slots))
    factors = [getattr(near, name) / getattr(start, name) for name in FITTED]
    factors += [near.generations.get(name, {}).get(factor, 1.0) for name, factor in slots]
    begin: Vector = np.log(factors)
    return begin


def _builder(
    start: LinkConstants, slots: Sequence[tuple[str, str]]
) -> Callable[[Vector], LinkConstants]:
    """A function that turns logarithms of factors into constants."""

    def build(x: Vector) -> LinkConstants:
        factors = np.exp(x).tolist()
        values = {
            name: getattr(start, name) * factor
            for name, factor in zip(FITTED, factors[: len(FITTED)], strict=True)
        }
        table: dict[str, dict[str, float]] = {}
        for (name, constant), factor in zip(slots, factors[len(FITTED) :], strict=True):
            table.setdefault(name, {})[constant] = factor
        return replace(start, **values, generations=table)

    return build


def _weights(rows: Sequence[MeasuredCollective]) -> Vector:
    keys = [(row.source, row.device.id, row.kind, row.placement) for row in rows]
    counts = Counter(keys)
    return np.array([min(1.0, math.sqrt(GROUP_ROWS / counts[key])) for key in keys])


def to_toml(constants: LinkConstants, rows: Sequence[MeasuredCollective]) -> str:
    """The text of the shipped file."""
    counts = Counter(row.source for row in rows)
    sources = ", ".join(f"{name} {count}" for name, count in counts.items())
    lines = [
        _HEAD.format(
            rows=len(rows),
            sources=sources,
            unfitted=", ".join(NOT_FITTED),
            day=date.today().isoformat(),
        ),
        "[constants]",
    ]
    for name in (*FITTED, *NOT_FITTED, *RANGES):
        lines.append(f"{name} = {_number(getattr(constants, name))}")
    for name, factors in constants.generations.items():
        lines += ["", f"[generations.{name}]"]
        lines += [f"{key} = {_number(factor)}" for key, factor in factors.items()]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return repr(float(f"{value:.4g}"))


@dataclass(frozen=True)
class LeftOutLinks:
    """Rows that were predicted by constants fitted without them."""

    what: str
    """Which rows were left out: "8 GPUs", "Hopper", "oracle"."""
    rows: tuple[MeasuredCollective, ...]
    log_errors: Vector


def left_out(
    rows: Sequence[MeasuredCollective],
    near: LinkConstants,
    key: Callable[[MeasuredCollective], str | None],
) -> list[LeftOutLinks]:
    """Each group of rows, predicted by constants fitted without it.

    Args:
        rows: what was measured.
        near: constants from which each search starts.
        key: the group of a row. Rows of the group None are never left out.
    """
    parts = []
    for group in sorted({group for row in rows if (group := key(row)) is not None}):
        inside = tuple(row for row in rows if key(row) == group)
        constants = fit(usable([row for row in rows if key(row) != group]), near)
        parts.append(LeftOutLinks(group, inside, log_errors(constants, inside)))
    return parts


def count_of(row: MeasuredCollective) -> str | None:
    """The number of GPUs of a row on one machine."""
    placement = row.placement
    return f"{placement.ranks} GPUs" if placement.nodes == 1 and placement.ranks <= 8 else None


def chip_of(row: MeasuredCollective) -> str | None:
    """The GPU of a row, by its chip."""
    return row.device.id.split("-")[0].removeprefix("g")


def machines_of(row: MeasuredCollective) -> str | None:
    """The source of a row on several machines whose network is stated."""
    stated = row.placement.nodes > 1 and row.source != "vidur, two machines"
    return row.source if stated else None


def with_ranges(
    constants: LinkConstants,
    counts: Sequence[LeftOutLinks],
    chips: Sequence[LeftOutLinks],
    machines: Sequence[LeftOutLinks],
) -> LinkConstants:
    """The constants with ranges that hold nine in ten of the rows that were left out."""
    ranges: dict[str, Any] = {}
    for name, parts in zip(RANGES, (counts, chips, machines), strict=True):
        errors = np.abs(np.concatenate([part.log_errors for part in parts]))
        kept = [row.source != "vidur" for part in parts for row in part.rows]
        ranges[name] = float(np.exp(np.quantile(errors[kept], RANGE_SHARE)))
    return replace(constants, **ranges)


def main(given: Sequence[str] = ()) -> None:
    """Fit the constants and write them."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, "kernels", "distributed")
    args = parser.parse_args(given)
    rows = measured_collectives(args.data)
    constants = fit(usable(rows))
    parts = [left_out(rows, constants, key) for key in (count_of, chip_of, machines_of)]
    write_whole(OUT, to_toml(with_ranges(constants, *parts), usable(rows)))
    errors = np.abs(np.expm1(log_errors(constants, usable(rows))))
    print(f"median error {np.median(errors):.1%}")
    for group in parts:
        for part in group:
            errors = np.abs(np.expm1(part.log_errors))
            print(f"without {part.what}: {np.median(errors):.1%} of {len(errors)} rows")
