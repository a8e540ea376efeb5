"""Is a strategy that `parallelize` finds ever slower than another one that `predict` knows?

    python -m lab score strategies [NAME...] [--strategies 200] [--write]

For each model the search names its fastest strategy. Random strategies, with every option of
`--parallel` that says how a step is spread, are then predicted one by one, and for small cases all
strategies are played, with and without the lower bound. The command fails if one that fits is
faster than what the search found, or if a bound is above the time that it bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import wavecast
from lab import needs, pages
from lab.pages import heading
from lab.places import DOCS
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS, ModelOptions
from wavecast.hardware.hosts import host_of
from wavecast.parallel.strategy import OFFLOADS, SCHEDULES, Parallel, option_of
from wavecast.planning.layout_search import search_layouts
from wavecast.planning.layouts import Layout, Search
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.request import ParallelSteps, on_cluster
from wavecast.targets.sources import StepSource, target_source
from wavecast.targets.targets import resolve

PAGE = DOCS / "appendix" / "strategies.md"
_ROUNDING = 1e-9
"""Sums in another order differ in their last digits."""


@dataclass(frozen=True)
class StrategyCase:
    """A model, its GPUs, and the samples of an optimizer step."""

    target: str
    gpu: str
    gpus: int
    global_batch: int
    micro_batches: tuple[int, ...]
    options: ModelOptions = NO_OPTIONS
    exhaustive: bool = False
    """Whether all strategies are played, too."""

    def source(self) -> StepSource:
        """The traces of its micro-batches."""
        return target_source(resolve(self.target, 1, "bf16", self.options))

    def search(self, best: int | None) -> Search:
        """What is looked for."""
        return Search(self.gpus, self.global_batch, self.micro_batches, best=best)


def _decoder(layers: int, hidden: int) -> ModelOptions:
    heads = hidden // 64
    shape = ModelOptions(layers=layers, hidden=hidden, heads=heads, kv_heads=heads)
    return replace(shape, seq=512, vocab=32000)


CASES = {
    "small decoder, all played": StrategyCase(
        "gpt", "h100-sxm-80gb", 4, 8, (1, 2), _decoder(4, 256), exhaustive=True
    ),
    "small mixture, all played": StrategyCase(
        "mixtral", "a100-sxm-80gb", 4, 8, (1,), _decoder(2, 256), exhaustive=True
    ),
    "gpt2 on 16 H100": StrategyCase("gpt2", "h100-sxm-80gb", 16, 64, (1, 2, 4)),
    "ResNet-50 on 8 A100": StrategyCase("resnet50", "a100-sxm-80gb", 8, 256, (32,)),
    "gpt of 1.3 billion on 8 RTX 4090": StrategyCase(
        "gpt", "rtx-4090", 8, 16, (1, 2), _decoder(24, 2048)
    ),
}
"""What is compared, by name."""


@dataclass(frozen=True)
class StrategyComparison:
    """What the search found, and what was compared with it."""

    best: Layout
    strategies: int
    """How many the search had to choose from."""
    played: int
    """How many of them it played."""
    random: int
    """Random strategies that can be predicted and fit."""
    margin: float
    """How much longer the fastest random one takes, as a share; below zero if it is faster."""
    nearest: Parallel
    broken_bounds: int | None = None
    """Bounds above the time that they bound, of all strategies. None if not all were played."""

    @property
    def holds(self) -> bool:
        """Whether nothing better was missed, and no bound is above its time."""
        return self.margin >= -_ROUNDING and not self.broken_bounds


def compare(case: StrategyCase, count: int, seed: int = 0) -> StrategyComparison:
    """Search, then try random strategies and, where asked, all of them."""
    source, device = case.source(), wavecast.device(case.gpu)
    predictor = on_cluster(device, Parallel())
    layouts = _searched(case, 1, source, predictor)
    best_s = layouts[0].seconds
    if best_s is None:
        raise InvalidInput(f"{case.target} does not fit on {case.gpus} x {case.gpu}")
    host = host_of(predictor.cluster)
    steps = {
        micro: ParallelSteps(source.on(device, micro), predictor, host)
        for micro in case.micro_batches
    }
    times = []
    for strategy, micro in _drawn(case, Random(seed), count):
        try:
            step = steps[micro].predict(steps[micro].spread(strategy))
        except InvalidInput:
            continue
        if step.fits:
            times.append((step.seconds, strategy))
    nearest_s, nearest = min(times, key=lambda pair: pair[0])
    broken = _broken_bounds(case, layouts, source, predictor) if case.exhaustive else None
    margin = nearest_s / best_s - 1
    played = sum(layout.seconds is not None for layout in layouts)
    return StrategyComparison(layouts[0], len(layouts), played, len(times), margin, nearest, broken)


def _searched(
    case: StrategyCase, best: int | None, source: StepSource, predictor: ClusterPredictor
) -> list[Layout]:
    host, device = host_of(predictor.cluster), predictor.device
    search = case.search(best)
    return search_layouts(search, lambda micro, _: source.on(device, micro), predictor, host)


def _broken_bounds(
    case: StrategyCase, layouts: Sequence[Layout], source: StepSource, predictor: ClusterPredictor
) -> int:
    """The strategies, of all played, that are faster than the best or than their bound."""
    every = _searched(case, None, source, predictor)
    times = {(layout.strategy, layout.micro_batch): layout.seconds for layout in every}
    least = {(layout.strategy, layout.micro_batch): layout.least_s for layout in layouts}
    best_s = layouts[0].seconds or 0.0
    return sum(
        seconds is not None and seconds < max(least.get(key) or 0.0, best_s) * (1 - _ROUNDING)
        for key, seconds in times.items()
    )


def _drawn(case: StrategyCase, chance: Random, number: int) -> Iterator[tuple[Parallel, int]]:
    """So many random strategies that `--parallel` takes, with their micro-batches."""
    drawn = 0
    while drawn < number:
        tensor = chance.choice(_divisors(min(case.gpus, 8)))
        context = chance.choice(_divisors(case.gpus // tensor))
        pipeline = chance.choice(_divisors(case.gpus // tensor // context))
        data = case.gpus // (tensor * context * pipeline)
        micro = chance.choice(case.micro_batches)
        count, rest = divmod(case.global_batch, data * micro)
        if rest or not count:
            continue
        try:
            strategy = Parallel(
                data=data,
                tensor=tensor,
                context=context,
                pipeline=pipeline,
                sequence=tensor > 1 and chance.random() < 0.5,
                virtual=chance.choice((1, 1, 2, 3, 4, 6)) if pipeline > 1 else 1,
                schedule=chance.choice(SCHEDULES) if pipeline > 1 else "1f1b",
                shard=(shard := chance.choice((0, 1, 2, 3))),
                shard_group=chance.choice((None, *_divisors(data))) if shard else None,
                reshard=chance.random() < 0.5,
                expert=chance.choice(_divisors(data * tensor)) if "mix" in case.target else 1,
                offload=chance.choice(OFFLOADS),
                microbatches=count,
            )
        except InvalidInput:
            continue
        drawn += 1
        yield strategy, micro


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def table(comparisons: dict[str, StrategyComparison]) -> str:
    """The comparisons as a table."""
    names = "case | fastest found | step | strategies | played | random, fit | fastest of them"
    rows = [*heading(f"{names} | all played", "ll")]
    for name, comparison in comparisons.items():
        broken = "-" if comparison.broken_bounds is None else f"{comparison.broken_bounds} better"
        best = comparison.best
        option = f"`{option_of(best.strategy)}`, micro-batch {best.micro_batch}"
        rows.append(
            f"| {name} | {option} | {(best.seconds or 0.0) * 1e3:.1f} ms "
            f"| {comparison.strategies:,} "
            f"| {comparison.played:,} | {comparison.random} | {comparison.margin:+.1%} "
            f"| {broken} |"
        )
    return "\n".join(rows)


def main(given: Sequence[str] = ()) -> None:
    """Compare, print or write the table, and fail where something better was missed."""
    parser = needs.parser(__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(CASES)}; all by default")
    parser.add_argument("--strategies", type=int, default=200, help="random ones for each model")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    args = parser.parse_args(given)
    comparisons = {}
    for name in args.names or CASES:
        comparisons[name] = compare(CASES[name], args.strategies)
        print(table(comparisons), end="\n\n", flush=True)
    if args.write:
        pages.write(PAGE, "table: strategies", table(comparisons))
    missed = [
        f"{name}: {option_of(comparison.nearest)} ({comparison.margin:+.2%})"
        for name, comparison in comparisons.items()
        if not comparison.holds
    ]
    if missed:
        raise SystemExit(f"the search missed something better, or a bound is broken: {missed}")
