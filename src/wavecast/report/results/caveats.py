"""How sure predictions are: ops without an answer, GPUs without a rank, and what ranges mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType

from wavecast.hardware.hosts import REFERENCE_HOST, Host
from wavecast.predictors.base import Familiarity
from wavecast.report.tables import by_gpu, from_rows, listed, table, titled
from wavecast.report.units import count, duration, memory, percent, three_digits
from wavecast.steps.prediction import TOO_MUCH, Prediction, Share, comparable
from wavecast.steps.ranges import CoveredHosts, ScaledTo, covered_hosts

_SOURCES = {
    "learned": "learned (physics and fitted models)",
    "attainable": "attainable (the share of the peak rates that measured ops reach)",
    "roofline": "roofline (the peak rates of the data sheet)",
    "mlp": "mlp (neural networks fitted to layer times)",
    "wave scaling": "wave scaling (from the measured kernels)",
}
"""The predictors by the names under which they answer, with a short explanation."""


def cautions(rows: Sequence[Prediction]) -> list[str]:
    """What is wrong with predictions: ops without an answer, GPUs without rank or memory."""
    return [*unpredicted_ops(rows), *not_ranked(rows), *_too_small(rows)]


def methods(rows: Sequence[Prediction]) -> list[str]:
    """How predictions were made: the predictors, the host, and what the ranges mean."""
    return [*predictor_lines(by_predictors(rows)), *host_lines(rows), *range_meanings(rows)]


def host_lines(rows: Sequence[Prediction]) -> list[str]:
    """The host that issues the ops on each GPU, and where costs that nobody measured come from."""
    lines = [f"host: {by_gpu((row.device.id, row.host.name) for row in rows)}"]
    sources = [
        (row.device.id, row.host.source)
        for row in rows
        if isinstance(row.host, Host) and _is_scaled(row)
    ]
    return [*lines, f"its costs: {by_gpu(sources)}"] if sources else lines


def _coverages(rows: Sequence[Prediction]) -> list[str]:
    """Which hosts the ranges cover, where a usual host was asked for or the host matters."""
    uncertain = [row for row in rows if _is_scaled(row) or row.bound_by in ("host", "both")]
    texts = [(row.device.id, _hosts(covered)) for row in uncertain if (covered := covered_by(row))]
    return [f"range covers hosts that take {by_gpu(texts)}"] if texts else []


def covered_by(row: Prediction) -> CoveredHosts | None:
    """The hosts that the range covers; None without a range, or if the host was calibrated."""
    return None if row.low_s is None else covered_hosts(row.host)


def _is_scaled(row: Prediction) -> bool:
    """Whether the host is the reference host, scaled to another machine."""
    return covered_by(row) is not None and row.host != REFERENCE_HOST


def _hosts(covered: CoveredHosts) -> str:
    """The hosts that a range covers: `0.67 to 1.58 times as long as the reference: desktop`."""
    ends = f"{three_digits(covered.low)} to {three_digits(covered.high)}"
    return f"{ends} times as long as the reference: {', '.join(covered.names) or 'no usual host'}"


def _too_small(rows: Sequence[Prediction]) -> list[str]:
    too_small = [row.memory for row in rows if row.fits is False and row.memory is not None]
    if not too_small:
        return []
    needed = memory(max(step_memory.needed_bytes for step_memory in too_small))
    return [
        f"too little memory: the training process needs up to {needed}; "
        '"wavecast memory" shows what for'
    ]


def range_meanings(rows: Sequence[Prediction]) -> list[str]:
    """How many measured steps lay in such ranges, and which GPUs have none."""
    ranged = [row for row in rows if row.held is not None]
    none = [row.device.id for row in rows if row.held is None]
    why = "no measured steps tell how far off such predictions are"
    if not ranged:
        return [f"no range: {why}"]
    known = [row.device.id for row in ranged if _is_known(row)]
    without = "its source" if len(known) == len(ranged) else "its GPU and source"
    if 0 < len(known) < len(ranged):
        without += f" ({listed(known)}: without its source)"
    share, by_set = _held(ranged)
    held = f"holds {share} of measured steps{by_set}, each judged without {without}"
    rest = [f"no range on {listed(none)}: {why}"] if none else []
    return [f"range: {held}", *rest, *_coverages(ranged)]


def _is_known(row: Prediction) -> bool:
    """Whether steps of this very GPU or host made the range."""
    on_itself = row.scaling is ScaledTo.SAME
    return on_itself or row.familiarity is Familiarity.MEASURED or row.host.known


def _held(rows: Sequence[Prediction]) -> tuple[str, str]:
    """The share of measured steps in ranges like these: `90%`, ` (71 to 100% by set)`."""
    shares = [row.held for row in rows if row.held is not None]
    least, most = min(share.least for share in shares), max(share.most for share in shares)
    by_set = f" ({100 * least:.0f} to {100 * most:.0f}% by set)"
    return _percent_range([share.share for share in shares]), by_set


def by_predictors(rows: Sequence[Prediction]) -> list[dict[int, Prediction]]:
    """The rows by the predictors that answered, the largest group first, each by its position."""
    groups: dict[frozenset[str], dict[int, Prediction]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(frozenset(share.name for share in row.sources()), {})[index] = row
    return sorted(groups.values(), key=len, reverse=True)


def marks_of(groups: Sequence[Mapping[int, Prediction]]) -> dict[int, str]:
    """The mark of each row that others answered than most rows, by its position."""
    others = enumerate(groups[1:], start=1)
    return {index: f"[{number}]" for number, group in others for index in group}


def predictor_lines(groups: Sequence[Mapping[int, Prediction]]) -> list[str]:
    """The predictors that answered on most GPUs, then those of the rows that are marked."""
    most, *others = (_predictors(list(group.values())) for group in groups)
    marked = (f"[{number}] op times: {other}" for number, other in enumerate(others, start=1))
    return [f"op times: {most}", *marked]


def _predictors(rows: Sequence[Prediction]) -> str:
    """The predictors of GPUs that have the same ones, with their shares of the GPU time."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        for source in row.sources():
            shares.setdefault(source.name, []).append(source.gpu_s / (row.gpu_s or 1.0))
    if not shares:
        return "no predictor could answer"
    if len(shares) == 1:
        [name] = shares
        return _SOURCES.get(name, name)
    largest_first = sorted(shares.items(), key=lambda item: -max(item[1]))
    return ", ".join(f"{name} {_percent_range(values)}" for name, values in largest_first)


def _percent_range(shares: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{100 * end:.0f}" for end in (min(shares), max(shares)))
    return "-".join(ends) + "%"


def unpredicted_ops(rows: Sequence[Prediction]) -> list[str]:
    """The ops without a prediction, and the GPUs concerned: GPUs have different units."""
    gpus: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for row in rows:
        if row.unpredicted:
            gpus.setdefault(tuple(sorted(row.unpredicted.items())), []).append(row.device.id)
    return [
        f"ops without a prediction{'' if len(names) == len(rows) else f' on {listed(names)}'}, "
        f"counted as 0 s: {counted_ops(dict(missing))}"
        for missing, names in gpus.items()
    ]


def not_ranked(rows: Sequence[Prediction]) -> list[str]:
    """The GPUs on which too much was not predicted to compare them."""
    left_out = [row.device.id for row in rows if not comparable(row)]
    if not left_out:
        return []
    where = "" if len(left_out) == len(rows) else f" on {listed(left_out)}"
    return [
        f"not ranked{where}: the ops without a prediction are more than {percent(TOO_MUCH)} of the "
        "step, so its time is a lower bound and GPUs cannot be compared"
    ]


# The parts of a step's GPU time, and ops with their numbers of calls.


def shares(title: str, parts: Iterable[Share], total_s: float, limit: int = 15) -> RenderableType:
    """The parts of the GPU's time, longest first; parts beyond the limit are added up."""
    rows = list(parts)
    rest = rows[limit:]
    if len(rest) > 1:
        calls, seconds = sum(part.calls for part in rest), sum(part.gpu_s for part in rest)
        rows = [*rows[:limit], Share(f"{len(rest)} others", calls, seconds)]
    cells = [
        (
            part.name,
            count(part.calls),
            duration(part.gpu_s),
            percent(part.gpu_s / total_s if total_s else 0.0, 1),
        )
        for part in rows
    ]
    return Group("", titled(title, table(from_rows(cells, "<...", "calls", "GPU time", "share"))))


def counted_ops(calls: Mapping[str, int]) -> str:
    """Names of ops with their number of calls: `aten.mm (2 calls)`."""
    return ", ".join(
        f"{name} ({number} call{'' if number == 1 else 's'})" for name, number in calls.items()
    )
