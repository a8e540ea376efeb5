"""How well are published steps on several GPUs predicted, rebuilt from the columns of a table?

    python -m lab score distributed --data FOLDER [--rows 100] [--source vTrain] [--save FILE]

Needs torch, pandas and the public table distributed (docs/sources.md). Prints the tables of
docs/parallel.md. The error is |predicted / measured - 1|. The baseline has one share of the peak
for each GPU and precision, the median of all rows. `--rows` takes so many rows of each source, at
random.
"""

from __future__ import annotations

import csv
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.measured.distributed_steps import MeasuredStep, NotRebuilt, command_of, kind_of, rebuilt
from lab.measured.tables import read_rows
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast.errors import WavecastError
from wavecast.hardware.clusters import Cluster
from wavecast.hardware.devices import Device
from wavecast.hardware.hosts import REFERENCE_HOST, Host, host_of
from wavecast.predictors.collectives import Collectives
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.ranges import RangeParts, parts_of
from wavecast.steps.request import ParallelSteps, default_predictor

SEED = 1


@dataclass(frozen=True)
class ScoredStep:
    """A measured step and its prediction."""

    step: MeasuredStep
    seconds: float
    baseline_s: float | None
    parts: RangeParts | None = None
    """What its range is made of."""

    @property
    def ratio(self) -> float:
        """Predicted through measured."""
        return self.seconds / self.step.seconds


class PublishedSteps:
    """Predicts rows, with one predictor for each cluster."""

    def __init__(
        self, rates: Mapping[tuple[str, str], float], reference_factor: float | None = None
    ) -> None:
        """Predict with the host of each cluster, or with a slower or faster reference host."""
        self._rates = rates
        self._factor = reference_factor
        self._predictors: dict[tuple[Device, Cluster], ClusterPredictor] = {}

    def score(self, row: Mapping[str, Any]) -> ScoredStep:
        """The prediction of a row.

        Raises:
            NotRebuilt: it cannot be rebuilt, or cannot be spread as it says.
        """
        return self.score_step(rebuilt(row))

    def score_step(self, step: MeasuredStep) -> ScoredStep:
        """The prediction of a rebuilt row.

        Raises:
            NotRebuilt: it cannot be spread as it says.
        """
        row = step.row
        key = (step.device, step.cluster)
        if key not in self._predictors:
            self._predictors[key] = ClusterPredictor(
                default_predictor(), Collectives.shipped(), *key
            )
        try:
            host = self._host(step.cluster)
            steps = ParallelSteps(step.trace, self._predictors[key], host)
            prediction = steps.predict(steps.spread(step.strategy))
        except WavecastError as error:
            raise NotRebuilt(str(error).split(";")[0]) from error
        rate = self._rates.get((str(row["gpu"]), str(row["precision"])))
        flops = step_flops(row)
        baseline = None if rate is None or flops is None else flops / rate
        assert prediction.ranks is not None
        times = prediction.seconds, prediction.host_s, prediction.exposed_s, prediction.idle_s
        parts = parts_of(prediction.ranks, prediction.makeup, *times)
        return ScoredStep(step, prediction.seconds, baseline, parts)

    def _host(self, cluster: Cluster) -> Host:
        return host_of(cluster) if self._factor is None else REFERENCE_HOST.scaled(self._factor)


def unstated(step: MeasuredStep) -> MeasuredStep | None:
    """The step as if nobody had said how its framework runs it; None if nothing was said.

    That matmuls are in 8 bits stays: it is a precision.
    """
    habits = [name for name in step.strategy.habits if name != "fp8"]
    if not habits:
        return None
    options: dict[str, Any] = dict.fromkeys(habits, False)
    return replace(step, strategy=replace(step.strategy, **options))


def step_flops(row: Mapping[str, Any]) -> float | None:
    """The model's FLOPs of one GPU in one step: 6 N + 6 L h s for each token."""
    needed = ("params_b", "layers", "hidden", "seq_len", "global_batch", "n_gpu")
    if any(row[name] is None for name in needed):
        return None
    params = 1e9 * (row["active_params_b"] or row["params_b"])
    token = 6 * params + 6 * row["layers"] * row["hidden"] * row["seq_len"]
    return float(token * row["seq_len"] * row["global_batch"] / row["n_gpu"])


def usual_rates(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """The median FLOP/s of each GPU and precision."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        flops = step_flops(row)
        if flops and row["step_s"]:
            rates[str(row["gpu"]), str(row["precision"])].append(flops / row["step_s"])
    return {key: float(np.median(values)) for key, values in rates.items()}


def chosen_rows(rows: Sequence[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    """At most so many rows of each source, at random, in the order of their models."""
    if count is None:
        return list(rows)
    by_source: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_source[str(row["source"]) + str((row["n_gpu"] or 0) > 8)].append(row)
    return [
        row
        for name, own in by_source.items()  # each with its own seed, whatever the other sources
        for row in random.Random(f"{SEED} {name}").sample(own, min(count, len(own)))
    ]


def group_of(row: Mapping[str, Any]) -> str:
    """The source; vTrain's one machine and several apart."""
    source = str(row["source"]).split("/")[-1]
    if source == "vTrain":
        return "vTrain, one machine" if row["n_gpu"] <= 8 else "vTrain, several machines"
    return source


def table(title: str, groups: Mapping[str, tuple[int, Sequence[ScoredStep]]]) -> list[str]:
    """Lines of a table: rows, rebuilt rows, and errors of each group."""
    lines = [*heading(f"{title} | rows | rebuilt | mean | median | bias | baseline mean")]
    for name, (count, scored) in sorted(groups.items()):
        if not scored:
            lines.append(f"| {name} | {count} | 0 | | | | |")
            continue
        ratios = np.array([row.ratio for row in scored])
        errors = np.abs(ratios - 1)
        usual = [abs(s.baseline_s / s.step.seconds - 1) for s in scored if s.baseline_s]
        plain = f"{np.mean(usual):.0%}" if usual else ""
        lines.append(
            f"| {name} | {count} | {len(scored)} | {errors.mean():.1%} | {np.median(errors):.1%} "
            f"| {np.median(ratios) - 1:+.1%} | {plain} |"
        )
    return lines


def ranking(scored: Sequence[ScoredStep]) -> list[str]:
    """nanotron: does the prediction rank the strategies of one model and number of GPUs?

    The figures after the bar are those without the rows that the source's table flags as far below
    the best ones, most of which are runs on an unstable cluster.
    """
    groups: dict[tuple[str, int], list[ScoredStep]] = defaultdict(list)
    for row in scored:
        if row.step.source.startswith("nanotron"):
            groups[str(row.step.row["model"]), int(row.step.row["n_gpu"])].append(row)
    head = "strategies | Kendall's tau | predicted best slower by"
    lines = [*heading(f"nanotron, model and GPUs | {head} | {head}")]
    rankings: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for (model, gpus), own in sorted(groups.items()):
        cells = []
        for sound in (False, True):
            kept = [step for step in own if not (sound and is_flagged(step.step.row))]
            if len(kept) < 3:
                cells.append(f"{len(kept)} | | ")
                continue
            rankings[sound].append(ranked(kept))
            cells.append("{} | {:.2f} | {:.1%}".format(len(kept), *rankings[sound][-1]))
        lines.append(f"| {model}, {gpus} | {' | '.join(cells)} |")
    means = [_mean_ranking(rankings[sound]) for sound in (False, True)]
    lines.append(f"| **mean** | {' | '.join(means)} |")
    return lines if groups else []


def ranked(some: Sequence[ScoredStep]) -> tuple[float, float]:
    """Kendall's tau of strategies, and by how much the predicted best is slower than the best."""
    best = min(some, key=lambda step: step.seconds)
    slower = best.step.seconds / min(step.step.seconds for step in some) - 1
    return kendall([o.seconds for o in some], [o.step.seconds for o in some]), slower


def is_flagged(row: Mapping[str, Any]) -> bool:
    """Whether a row of nanotron's is under a third of the best of its model and size."""
    return "far_below_best" in str(row["qc"] or "")


def _mean_ranking(rankings: Sequence[tuple[float, float]]) -> str:
    if not rankings:
        return "0 | | "
    good = sum(slower <= 0.1 for _, slower in rankings)
    return f"{len(rankings)} | {np.mean([tau for tau, _ in rankings]):.2f} | 10% or less in {good}"


def kendall(some: Sequence[float], others: Sequence[float]) -> float:
    """The share of pairs in the same order less the share in the other."""
    left, right = np.array(some), np.array(others)
    signs = np.sign(left[:, None] - left) * np.sign(right[:, None] - right)
    pairs = len(left) * (len(left) - 1)
    return float(signs.sum() / pairs)


def main(given: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, "distributed")
    parser.add_argument("--rows", type=int, help="at most so many rows of each source")
    parser.add_argument("--source", default="", help="only sources with one of these, by commas")
    parser.add_argument("--kind", default="", help="only such rows: dense, mixture or LoRA")
    parser.add_argument(
        "--host-factor", type=float, help="the reference host, so many times as slow"
    )
    parser.add_argument("--save", type=Path, help="write each row's times to a CSV file")
    args = parser.parse_args(given)
    every = read_rows(args.data / "distributed" / "steps.parquet")
    steps = PublishedSteps(usual_rates(every), args.host_factor)
    chosen = chosen_rows(
        [
            row
            for row in every
            if any(name in row["source"] for name in args.source.split(","))
            and args.kind in kind_of(row)
        ],
        args.rows,
    )
    chosen.sort(key=lambda row: (row["source"], str(row["model"]), row["micro_batch"] or 0))
    scored: list[ScoredStep] = []
    plain: list[ScoredStep] = []
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for index, row in enumerate(chosen):
        try:
            scored.append(steps.score(row))
            if args.save and (without := unstated(scored[-1].step)):
                plain.append(steps.score_step(without))
        except NotRebuilt as error:
            reasons[group_of(row)][str(error)] += 1
        if index % 20 == 0:
            print(f"{index}/{len(chosen)}", file=sys.stderr, flush=True)
    print_tables(chosen, scored, reasons)
    if args.save:
        save(args.save, scored, plain)


def print_tables(
    rows: Sequence[Mapping[str, Any]],
    scored: Sequence[ScoredStep],
    reasons: Mapping[str, Counter[str]],
) -> None:
    """Print errors by source and by strategy, the ranking, and what was not rebuilt."""
    keys: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "source": group_of,
        "kind": lambda row: f"{kind_of(row)}, {group_of(row)}",
        "strategy": lambda row: str(row["strategy"]),
    }
    for title, key in keys.items():
        counts = Counter(key(row) for row in rows)
        groups = {
            name: (count, [step for step in scored if key(step.step.row) == name])
            for name, count in counts.items()
        }
        print("\n".join(table(title, groups)), end="\n\n")
    print("\n".join(ranking(scored)), end="\n\n")
    print(*heading("source | not rebuilt | rows", "ll"), sep="\n")
    for name, counter in sorted(reasons.items()):
        for reason, count in counter.most_common():
            print(f"| {name} | {reason} | {count} |")


def save(path: Path, scored: Sequence[ScoredStep], plain: Sequence[ScoredStep]) -> None:
    """Write each row's times, and what its range is made of.

    Args:
        path: the file, a table in CSV.
        scored: the steps as they were rebuilt.
        plain: the steps as if nobody had said how their frameworks run them.
    """
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for stated, steps in (("yes", scored), ("no", plain)):
            for step in steps:
                row = step.step.row
                writer.writerow(
                    {
                        "row_id": row["row_id"],
                        "source": step.step.source,
                        "stated": stated,
                        "predicted_s": step.seconds,
                        "measured_s": step.step.seconds,
                        "flags": row["qc"] or "",
                        **_range_columns(step.parts),
                    }
                )


COLUMNS = (
    *("row_id", "source", "stated", "predicted_s", "measured_s", "flags"),
    *("computing", "weight", "alone_low", "alone_high", "hosts_low", "hosts_high"),
)
"""The columns of a file of scored steps."""


def _range_columns(parts: RangeParts | None) -> dict[str, Any]:
    if parts is None:
        return {}
    ends = {
        f"{name}_{end}": getattr(getattr(parts, name), end)
        for name in ("alone", "hosts")
        for end in ("low", "high")
    }
    return {"computing": parts.computing, "weight": parts.weight, **ends}


DRAWN = {
    "vtrain": "--source vTrain,calculon --rows 60",
    "eager": "--source llm-foundry,torchtitan,InternEvo,fms-fsdp --rows 40",
    "bigscience": "--source bigscience --rows 10",
    "nanotron": "--source nanotron --rows 70",
    "dgxc": "--source dgxc --kind dense --rows 8",
    "tuned": "--source NeMo,Megatron-Bridge --kind dense --rows 5",
    "mlperf": "--source training_results --kind dense",
}
"""The rows of each source whose ranges are judged, as docs/parallel.md has them."""


def scored(data: Path, cache: Path) -> list[Path]:
    """The files of predicted rows of all sources; those that the cache lacks are made."""
    files = []
    for name, options in DRAWN.items():
        file = cache / f"distributed-{name}.csv"
        if not file.exists():
            cache.mkdir(parents=True, exist_ok=True)
            main(["--data", str(data), "--save", str(file), *options.split()])
        files.append(file)
    return files


def _smallest(rows: Iterable[Mapping[str, Any]]) -> dict[str, MeasuredStep]:
    """The step of the smallest model of each source that a command can predict."""
    smallest: dict[str, MeasuredStep] = {}
    for row in rows:
        try:
            step = rebuilt(row)
        except NotRebuilt:
            continue
        if command_of(step) is None or "far_below_best" in str(row["qc"] or ""):
            continue
        known = smallest.get(step.source)
        if known is None or _size(step) < _size(known):
            smallest[step.source] = step
    return smallest


def _size(step: MeasuredStep) -> int:
    return step.sizes.layers * step.sizes.hidden**2


def commands(data: Path) -> Iterator[ScoreTable]:
    """One step of each source, of the smallest model whose cluster is the GPU's usual one.

    For docs/parallel.md: what was measured and predicted, and the command that predicts it.
    """
    rows = read_rows(data / "distributed" / "steps.parquet")
    for source, step in sorted(_smallest(rows).items()):
        scored = PublishedSteps({}).score_step(step)
        times = f"{step.seconds:.4g} s measured, {scored.seconds:.4g} s predicted"
        yield ScoreTable(f"# {source}, {step.row['model']}: {times}\n{command_of(step)}")
