"""From a job as it is written to the ways to run it: measured hours, or our own predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from wavecast.errors import InvalidInput, prefixed
from wavecast.hardware.clusters import Cluster, cluster, usual_cluster, with_device
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import option_of
from wavecast.planning.cost import Ranged, exactly
from wavecast.planning.schedule.job_files import JobSpec, counted_gpus
from wavecast.planning.schedule.jobs import HOUR_S, Fleet, Job, Pool, RunOption
from wavecast.planning.schedule.refusals import with_room
from wavecast.planning.selection import Candidate

Predict = Callable[[JobSpec, Mapping[str, Cluster | None]], Sequence[Candidate]]
"""Predicts a job on GPUs in machines of a kind, None for the usual one, for each of its counts:
from `find_candidates`."""
_LONGEST_YEARS = 100
"""A plan reaches no further: longer times do not fit into the whole numbers of the search."""
_LONGEST_S = _LONGEST_YEARS * 365 * 24 * HOUR_S


def make_jobs(specs: Sequence[JobSpec], fleet: Fleet, predict: Predict) -> tuple[Job, ...]:
    """The jobs with the ways to run them; one for each run of a job that runs several times.

    Raises:
        InvalidInput: a job can run nowhere; says why, and what would help.
    """
    jobs: list[Job] = []
    for spec in specs:
        [first] = with_room(fleet, [make_job(spec, fleet, predict)])  # before more are traced
        names = (
            [spec.name] if spec.runs == 1 else [f"{spec.name}-{n + 1}" for n in range(spec.runs)]
        )
        jobs += [replace(first, name=name) for name in names]
    return tuple(jobs)


def make_job(spec: JobSpec, fleet: Fleet, predict: Predict) -> Job:
    """A job with the ways to run it on a fleet.

    Raises:
        InvalidInput: it names a GPU that the fleet does not have.
    """
    pools = [pool for pool in fleet.pools if _allowed(spec, pool)]
    known = {name for pool in fleet.pools for name in (pool.gpu, pool.name)}
    for name in spec.gpus:
        if name not in known:
            raise InvalidInput(
                f"job {spec.name} names {name}, which the cluster does not have; it has "
                f"{', '.join(sorted(known))}"
            )
    refused: list[str] = []
    if spec.target:
        options = tuple(
            option
            for alike in _rounds(spec, pools)
            for option in _predicted(
                predict(spec, {gpu: _machines(spec, same[0]) for gpu, same in alike.items()}),
                [pool for same in alike.values() for pool in same],
                refused,
            )
        )
    else:
        options = tuple(_measured(spec, pools))
    roomy = tuple(one for one in options if fleet.holds(one.pool, one.gpus))
    small = [one.name for one in options if one not in roomy]
    refused += [f"{name}: the pool has no room or power for so many GPUs" for name in small]
    endless = [one for one in roomy if one.planned_s(robust=True) > _LONGEST_S]
    refused += [f"{one.name}: takes more than {_LONGEST_YEARS} years" for one in endless]
    roomy = tuple(one for one in roomy if one not in endless)
    deadline = spec.deadline_s
    if spec.due_in_s is not None:
        deadline = spec.submit_s + spec.due_in_s
    if max(spec.submit_s, deadline or 0.0) > _LONGEST_S:
        raise InvalidInput(
            f"job {spec.name} begins or is due after more than {_LONGEST_YEARS} years; times count "
            "from now, and a number without a unit is in seconds"
        )
    return Job(
        name=spec.name,
        options=roomy,
        kind=spec.name,
        submit_s=spec.submit_s,
        deadline_s=deadline,
        priority=spec.priority,
        impossible=tuple(refused),
    )


def _allowed(spec: JobSpec, pool: Pool) -> bool:
    named = not spec.gpus or pool.gpu in spec.gpus or pool.name in spec.gpus
    return named and (spec.spot or not pool.is_spot)


def _rounds(spec: JobSpec, pools: Sequence[Pool]) -> Iterator[dict[str, list[Pool]]]:
    """Pools by GPU, so that a round has one kind of machine for each; nearly always it is one."""
    kinds: dict[str, dict[tuple[str, int], list[Pool]]] = {}
    for pool in pools:
        kind = pool.links, pool.gpus_per_node if max(spec.counts) > 1 else 0
        kinds.setdefault(pool.gpu, {}).setdefault(kind, []).append(pool)
    for index in range(max(map(len, kinds.values()), default=0)):
        yield {gpu: list(kind.values())[index] for gpu, kind in kinds.items() if index < len(kind)}


def _machines(spec: JobSpec, pool: Pool) -> Cluster | None:
    """The machines of a pool; None for the usual ones, and where their links are not known."""
    if not pool.links and max(spec.counts) == 1:
        return None
    with prefixed(f"pool {pool.name}: "):
        gpu = device(pool.gpu)
        if pool.links:
            found = with_device(cluster(pool.links), gpu)
        else:
            try:
                found = usual_cluster(gpu)
            except InvalidInput:
                return None
        if pool.gpus_per_node > found.node.gpus:
            raise InvalidInput(
                f"gpus_per_node is {pool.gpus_per_node}, and a machine of {found.id} has "
                f"{found.node.gpus}; name the machine with links (list them with "
                '"wavecast clusters"), or write a file for it'
            )
        return found.with_gpus_per_node(pool.gpus_per_node)


def _predicted(
    found: Sequence[Candidate], pools: Sequence[Pool], refused: list[str]
) -> Iterator[RunOption]:
    for one in found:
        if one.cost is None:
            refused.append(f"{one.name}: {one.reason}")
            continue
        for pool in pools:
            if pool.gpu == one.device.id:
                layout = "" if one.strategy is None else option_of(one.strategy)
                yield _option(pool, one.gpus, one.cost.seconds, layout)


def _measured(spec: JobSpec, pools: Sequence[Pool]) -> Iterator[RunOption]:
    table: Mapping[str, float] = spec.hours or {}
    if spec.samples_per_s is not None:
        samples = (spec.plan and spec.plan.samples) or 0.0
        table = {key: samples / speed / HOUR_S for key, speed in spec.samples_per_s.items()}
    for key, hours in table.items():
        count, name = counted_gpus(key)
        for pool in pools:
            if name in ("*", pool.gpu, pool.name):
                yield _option(pool, count, exactly(hours * HOUR_S))


def _option(pool: Pool, gpus: int, seconds: Ranged, layout: str = "") -> RunOption:
    """A way to run a job on a pool. Whole machines are paid where more than one is used."""
    paid = gpus
    if gpus > pool.gpus_per_node:
        paid = math.ceil(gpus / pool.gpus_per_node) * pool.gpus_per_node
    usd = (pool.usd_per_hour or 0.0) * paid * seconds.value / HOUR_S
    return RunOption(pool.name, gpus, seconds, usd, layout)
