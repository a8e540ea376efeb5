"""Every reader of files, what is done with what it read, and when a result is bad."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import made
from fuzz import planning_seeds, seeds
from fuzz.seeds import Seed

import wavecast
from wavecast.errors import UnknownName, WavecastError
from wavecast.report.fields import plain
from wavecast.runs.run import Run, check
from wavecast.traces.step import Op

GPUS = ("l4", "h100-sxm-80gb", "v100-sxm-16gb", "mi300x", "k80")


class BadResult(Exception):
    """A result is not finite, not positive, or outside of its own range."""


@dataclass(frozen=True)
class Reader:
    """A reader: its seeds, and a function that reads a file and uses what it read."""

    name: str
    seeds: Callable[[], list[Seed]]
    use: Callable[[Path, int], object]
    """Takes the file and the number of the input, by which it chooses among GPUs."""
    weight: int = 1
    """How many of the inputs of a campaign it gets, beside the other readers."""


def _need(holds: bool, what: str, *values: object) -> None:
    if not holds:
        raise BadResult(f"{what}: {', '.join(map(repr, values))}")


def finite(value: Any, where: str) -> None:
    """Raise BadResult if a number within a record is not finite."""
    if isinstance(value, float):
        _need(math.isfinite(value), where, value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            finite(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            finite(inner, where)


def positive(seconds: float, low_s: float | None, high_s: float | None, what: str) -> None:
    """Raise BadResult unless a time is finite, positive and inside its range."""
    _need(math.isfinite(seconds) and seconds > 0, f"{what} is not a time", seconds)
    low, high = seconds if low_s is None else low_s, seconds if high_s is None else high_s
    _need(
        0 <= low <= seconds <= high < math.inf, f"{what} is outside its range", seconds, low, high
    )


def use_trace(trace: wavecast.Trace, number: int) -> None:
    """Predict the time and the memory of a trace that was read, and check every number."""
    gpu = GPUS[number % len(GPUS)]
    try:
        step = wavecast.predict(trace, gpu)
    except UnknownName:  # the GPU of the measurement
        step = wavecast.predict(trace, gpu, origin="v100-sxm-16gb")
    positive(step.seconds, step.low_s, step.high_s, "seconds")
    _need(
        0 <= step.gpu_s < math.inf and 0 <= step.host_s < math.inf, "busy", step.gpu_s, step.host_s
    )
    record = plain(step)
    finite(record, "prediction")
    json.dumps(record, allow_nan=False)
    finite(plain(trace), "trace")
    if trace.allocations:
        memory = wavecast.memory(trace, gpu)
        _need(0 <= memory.peak_bytes <= memory.needed_bytes, "memory", memory.peak_bytes)
        finite(plain(memory), "memory")


def read_trace(path: Path, number: int) -> None:
    use_trace(wavecast.load_trace(path), number)


def read_profile(path: Path, number: int) -> None:
    use_trace(wavecast.read_kineto(path), number)


def read_target(path: Path, number: int) -> None:
    """As the commands do, which find out whether a file is a trace or a profile."""
    from wavecast.targets.targets import resolve

    target = resolve(str(path), None, None)
    assert target.trace is not None
    use_trace(target.trace, number)


def use_runs(runs: Iterable[Run]) -> None:
    """Check each run, and fit a model to those of the first run's network."""
    kept = [check(run) for run in runs]
    for run in kept:
        positive(run.seconds, None, None, "seconds of a run")
    if len(kept) < 3:
        return
    first = kept[0]
    alike = [run for run in kept if (run.model, run.gpu) == (first.model, first.gpu)]
    try:
        model = wavecast.EndToEnd().fit(alike)
        answer = model.predict(batch=64, iterations=1000)
    except WavecastError:  # the runs may not determine a model, and that is said
        return
    positive(answer.seconds, answer.low_s, answer.high_s, "seconds of a predicted run")


def _read_log(format: str | None) -> Callable[[Path, int], None]:
    def read(path: Path, number: int) -> None:
        chosen = format if number % 4 else None
        given: dict[str, Any] = {"model": "net", "batch": 8} if number % 2 else {}
        if number % 3:  # a short log does not show where its warm-up ends
            given["warm_up"] = number % 3
        use_runs(wavecast.read_runs(path, format=chosen, told=lambda line: None, **given))

    return read


def read_store(path: Path, number: int) -> None:
    for kind in ("-wal", "-shm", "-journal"):
        with suppress(OSError, ValueError):  # the path may be one that cannot be
            path.with_name(path.name + kind).unlink()
    with wavecast.RunStore(path) as store:
        use_runs(store.runs(last=100 if number % 2 else None))
        for column in store.arrays().values():
            _need(bool(((column > 0) & (column < math.inf)).all()), "numbers of runs")
        store.count()


def read_suite(path: Path, number: int) -> None:
    from wavecast.report.results.suites import suite_page
    from wavecast.runs.suite_results import read_results

    results = read_results(path)
    finite(plain(results), "results")
    suite_page("suite", results)
    use_runs(wavecast.read_runs(path, format="suite", told=lambda line: None))


def read_layers(path: Path, number: int) -> None:
    from wavecast.campaigns.layer_times import read_rows

    for row in read_rows(path):
        for seconds in (row.time.forward_s, row.time.backward_s):
            if seconds is not None:
                positive(seconds, None, None, "seconds of a layer")


def read_layer_times(path: Path, number: int) -> None:
    from wavecast.runs.regression.complexities import caffe_net
    from wavecast.runs.regression.layer_times import read_caffe_time

    network = caffe_net("alexnet")
    times = read_caffe_time(path, network, batch=64)
    for time in times:
        for seconds in (time.forward_s, time.backward_s):
            if seconds is not None:
                positive(seconds, None, None, "seconds of a layer")


@cache
def _step() -> wavecast.Trace:
    return made.step()


def read_device(path: Path, number: int) -> None:
    gpu = wavecast.device(str(path))
    finite(plain(gpu), "device")
    step = wavecast.predict(_step(), gpu)
    positive(step.seconds, step.low_s, step.high_s, "seconds")
    finite(plain(step), "prediction")


_COLLECTIVES = ("all_reduce", "all_gather", "all_to_all", "broadcast", "send")


def read_cluster(path: Path, number: int) -> None:
    from wavecast.hardware.clusters import read_cluster
    from wavecast.predictors.collectives import Collectives

    cluster = read_cluster(path)
    part = made.tensor(2**20)
    name = f"nccl.{_COLLECTIVES[number % len(_COLLECTIVES)]}"
    for ranks in (2, 8, 64):
        op = Op(name, (part,), (part,), (("ranks", ranks), ("stride", 1)))
        answer = Collectives.shipped().predict(op, cluster, wavecast.device("h100-sxm-80gb"))
        if answer is not None:
            positive(answer.seconds, answer.low_s, answer.high_s, "seconds of a collective")


def read_host(path: Path, number: int) -> None:
    from wavecast.hardware import kept_hosts

    finite(plain(kept_hosts.read_host(path)), "host")
    step = wavecast.predict(_step(), "l4", host=str(path))
    positive(step.seconds, step.low_s, step.high_s, "seconds")


def read_corrections(path: Path, number: int) -> None:
    from wavecast.predictors import corrected
    from wavecast.predictors.learned.predictor import Learned

    own = corrected.read(path)
    predictor = corrected.Corrected(Learned.shipped(), {"l4": own})
    step = wavecast.predict(_step(), "l4", predictor=predictor)
    positive(step.seconds, step.low_s, step.high_s, "seconds")


def read_prices(path: Path, number: int) -> None:
    from wavecast.planning import prices

    for price in prices.read_prices(path).offers:
        _need(0 < price.per_usd(1.0) < math.inf, "samples for a dollar", price)


def read_planned_jobs(path: Path, number: int) -> None:
    from wavecast.planning.prices import price_book
    from wavecast.planning.schedule.jobs import read_fleet, read_jobs

    for spec in read_jobs(path):
        _need(spec.submit_s >= 0 and spec.runs > 0, "a job", spec)
    if path.suffix == ".toml":
        for pool in read_fleet(path, price_book()).pools:
            _need(0 < sum(pool.nodes) == pool.gpus, "the GPUs of a pool", pool)


def read_fleet_file(path: Path, number: int) -> None:
    """Pools, planned by simple rules and simulated with a few jobs."""
    from wavecast.planning.cost import exactly
    from wavecast.planning.prices import price_book
    from wavecast.planning.schedule.jobs import Aims, Job, RunOption, read_fleet
    from wavecast.planning.schedule.planned import make_plan
    from wavecast.planning.schedule.planner import Effort

    fleet = read_fleet(path, price_book())
    options = tuple(
        RunOption(pool.name, gpus, exactly(3600.0 / gpus), usd=1.0)
        for pool in fleet.pools
        for gpus in (1, 8)
        if pool.holds(gpus)
    )
    jobs = [Job(name, options, deadline_s=2 * 3600.0) for name in "abc"]
    plan = make_plan(fleet, jobs, Aims(makespan=1.0), effort=Effort(limit_s=0.0))
    _need(0 < plan.schedule.makespan_s < math.inf, "the makespan of a plan")


def read_campaign_file(path: Path, number: int) -> None:
    from wavecast.campaigns.campaign_files import read_campaign

    campaign = read_campaign(path)
    _need(0 < len(campaign.tasks) <= 1_000_000, "tasks", len(campaign.tasks))
    _need(campaign.attempts >= 1, "attempts", campaign.attempts)


def read_plan_question(path: Path, number: int) -> None:
    """Jobs as the web page sends them, planned as a worker of the server does."""
    from wavecast.server.answers import planned_jobs
    from wavecast.server.questions import PlanQuestion

    text = path.read_bytes().decode(errors="replace")
    if 0 < len(text) <= 24_000:  # else the question is refused before
        by = ("cost", "makespan", "completion", "tardiness")[number % 4]
        asked = {"jobs": text, "by": by, "robust": number % 3 == 0}
        answer = planned_jobs(PlanQuestion.model_validate(asked))
        finite({key: value for key, value in answer.items() if key != "data"}, "plan")
        json.dumps(answer, allow_nan=False)


def read_checks(path: Path, number: int) -> None:
    from wavecast.campaigns.checks.config import read_config

    for target in read_config(path).targets:
        allowed = vars(target.tolerances).values()
        _need(all(share is None or 0 <= share < math.inf for share in allowed), "tolerances")


def read_baseline(path: Path, number: int) -> None:
    from wavecast.campaigns.checks.baseline import read_baseline, to_toml

    baseline = read_baseline(path)
    for steps in baseline.steps.values():
        for step in steps.values():
            _need(0 <= step.seconds < math.inf, "seconds", step.seconds)
    to_toml(baseline)


def read_catalogue(path: Path, number: int) -> None:
    from wavecast.planning import prices

    for offer in prices.read_catalogue(path, "aws").offers:
        _need(0 < offer.per_usd(1.0) < math.inf, "samples for a dollar", offer)
        _need(0 < offer.usd_per_hour_of(8) < math.inf, "USD for eight GPUs", offer)


def read_network(path: Path, number: int) -> None:
    from wavecast.predictors.mlp import Mlp

    networks = Mlp.read([path])
    linear = made.mm(64, 64, 64)
    for gpu in (wavecast.device(name) for name in GPUS[:3]):
        answer = networks.predict(linear, gpu)
        if answer is not None:
            positive(answer.seconds, answer.low_s, answer.high_s, "seconds of an op")
    ratio = networks.ratio(linear, wavecast.device("l4"), wavecast.device("v100-sxm-16gb"))
    if ratio is not None:
        positive(ratio, None, None, "ratio")


def read_config(path: Path, number: int) -> None:
    """A config becomes a recipe; one of a thousand is built and traced, which takes long."""
    from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
    from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of

    recipe = recipe_of(str(path), 2, None, ModelOptions())
    _need(recipe.samples > 0, "samples", recipe.samples)
    _need(bool(recipe.title), "title", recipe.title)
    if number % 1000 == 0:
        from wavecast.frameworks.pytorch.huggingface import training

        use_trace(wavecast.trace(lambda: training.make_step(recipe)), number)


def read_counters(path: Path, number: int) -> None:
    from wavecast.frameworks import ncu

    for key, counted in ncu.load(path).items():
        _need(key[1] > 0 and key[2] > 0, "launch", key)
        _need(0 <= counted.flops < math.inf and 0 <= counted.dram_bytes < math.inf, "counts", key)


def read_graph_plan(path: Path, number: int) -> None:
    from wavecast.frameworks.pytorch.compiled.plans import read_plan

    for step in read_plan(path).steps:
        for planned in step.ops:
            hash(planned.op)


def read_counter_table(path: Path, number: int) -> None:
    from wavecast.frameworks import ncu

    for row in ncu._parse(os.fsdecode(path.read_bytes())):
        counted = row.counted
        _need(0 <= counted.flops < math.inf and 0 <= counted.dram_bytes < math.inf, "counts", row)


READERS = (
    Reader("trace", seeds.traces, read_trace, 6),
    Reader("profile", seeds.profiles, read_profile, 6),
    Reader("target", lambda: [*seeds.traces(), *seeds.profiles()], read_target, 1),
    Reader("caffe log", seeds.caffe, _read_log("caffe"), 10),
    Reader("dllogger log", seeds.dllogger, _read_log("dllogger"), 7),
    Reader("tensorboard log", seeds.tensorboard, _read_log("tensorboard"), 4),
    Reader("lightning log", seeds.lightning, _read_log("lightning"), 9),
    Reader("hugging face log", seeds.trainer, _read_log("huggingface"), 13),
    Reader("mlflow log", seeds.mlflow, _read_log("mlflow"), 7),
    Reader("table of runs", seeds.tables, _read_log("table"), 5),
    Reader("run store", seeds.stores, read_store, 1),
    Reader("suite results", seeds.suite_results, read_suite, 14),
    Reader("layer table", seeds.layer_rows, read_layers, 14),
    Reader("layer times", seeds.layer_times, read_layer_times, 14),
    Reader("device file", seeds.devices, read_device, 12),
    Reader("cluster file", seeds.clusters, read_cluster, 6),
    Reader("host file", seeds.hosts, read_host, 12),
    Reader("corrections", seeds.corrections, read_corrections, 12),
    Reader("price file", planning_seeds.prices, read_prices, 12),
    Reader("file of jobs", planning_seeds.planned_jobs, read_planned_jobs, 12),
    Reader("file of GPUs", planning_seeds.fleets, read_fleet_file, 8),
    Reader("campaign file", planning_seeds.campaigns, read_campaign_file, 8),
    Reader("plan question", planning_seeds.plan_questions, read_plan_question, 1),
    Reader("price catalogue", planning_seeds.catalogues, read_catalogue, 12),
    Reader("file of checks", seeds.checks, read_checks, 12),
    Reader("baseline", seeds.baselines, read_baseline, 12),
    Reader("network and card", seeds.networks, read_network, 7),
    Reader("hugging face config", seeds.configs, read_config, 10),
    Reader("plans of graphs", seeds.plans, read_graph_plan, 13),
    Reader("counters", seeds.counters, read_counters, 13),
    Reader("ncu table", seeds.counter_tables, read_counter_table, 13),
)
