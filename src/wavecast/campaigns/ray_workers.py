"""A Ray cluster as workers: tasks go to nodes that have their GPU.

Each node says which GPUs it has by resources with the ids of our devices, as
`wavecast campaign resources` prints them: `ray start --resources '{"l4": 4}'`. The driver alone
writes the store, so nodes need no way to it. Ray retries nothing: a bundle that was lost comes back
and is given away again.
"""

from __future__ import annotations

import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from wavecast.campaigns.running import Bundle, Finished
from wavecast.campaigns.work import (
    ANYWHERE,
    CPU,
    CampaignTask,
    TaskOutcome,
    perform_all,
    this_release,
)
from wavecast.errors import WavecastError, needing_extra

LOCAL = "local"
"""Stands for an address: a Ray cluster is started on this machine, and ends with the command."""
_AHEAD = 2
"""How many bundles are given away for each that can run at once, so that no node waits."""
_FRESH_S = 1.0
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class RayWorkers:
    """The nodes of a Ray cluster.

    Args:
        address: HOST:PORT of the head, "auto" for the cluster of this machine, or `LOCAL`.
        own: the resources of this machine, for a cluster that is started here.
    """

    def __init__(self, address: str, own: Mapping[str, float] | None = None) -> None:
        self._ray = connect_ray(address, own)
        self._perform = self._ray.remote(perform_on_node)
        self._running: dict[Any, Bundle] = {}
        self._resources: tuple[float, dict[str, float]] = (-_FRESH_S, {})

    def can_run(self, gpu: str) -> bool:
        """Whether some node that is alive has this GPU."""
        return self._capacity(gpu) > 0

    def has_room(self, gpu: str) -> bool:
        """Whether fewer bundles are given away than the nodes soon have room for."""
        given = sum(bundle[0].gpu == gpu for bundle in self._running.values())
        return given < _AHEAD * self._capacity(gpu)

    def submit(self, bundle: Bundle) -> None:
        """Let Ray place the bundle on a node that has its GPU."""
        gpu = bundle[0].gpu
        options = {
            "num_cpus": 1,
            "num_gpus": 0 if gpu in (ANYWHERE, CPU) else 1,
            "resources": {} if gpu == ANYWHERE else {gpu: 1},
            "max_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        self._running[self._perform.options(**options).remote(bundle, this_release())] = bundle

    def finished(self, timeout_s: float) -> list[Finished]:
        """Wait for nodes. A bundle whose node or process died comes back as lost."""
        if not self._running:
            time.sleep(min(timeout_s, _FRESH_S))
            return []
        waiting = list(self._running)
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [self._taken(reference) for reference in ready]

    def _taken(self, reference: Any) -> Finished:
        bundle = self._running.pop(reference)
        try:
            return Finished(bundle, tuple(self._ray.get(reference)))
        except self._ray.exceptions.RayError as error:
            return Finished(bundle, lost=(str(error) or repr(error)).splitlines()[0][:300])

    def close(self) -> None:
        """Stop what runs, and leave the cluster as it is."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._ray.shutdown()

    def _capacity(self, gpu: str) -> int:
        """How many bundles for this GPU can run at once."""
        asked_s, resources = self._resources
        if time.monotonic() - asked_s >= _FRESH_S:
            resources = self._ray.cluster_resources()
            self._resources = time.monotonic(), resources
        return int(resources.get("CPU" if gpu == ANYWHERE else gpu, 0))


def perform_on_node(tasks: Sequence[CampaignTask], release: str) -> list[TaskOutcome]:
    """Perform tasks on a node of Ray, which goes by its machine and its number in the cluster."""
    import ray

    number = ray.get_runtime_context().get_node_id()[:8]
    return perform_all(tasks, f"{platform.node()}:{number}", release)


def connect_ray(address: str, own: Mapping[str, float] | None = None) -> Any:
    """Ray, connected to a cluster.

    Args:
        address: as `RayWorkers` takes it.
        own: the resources of this machine, for a cluster that is started here.

    Raises:
        MissingExtra: Ray is not installed.
        WavecastError: no cluster answers at the address.
    """
    with needing_extra("a Ray cluster"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about its future releases
        import ray
    if ray.is_initialized():
        return ray
    here = {"include_dashboard": False, "resources": dict(own or {})}
    options = here if address == LOCAL else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises plain ones, as when a busy machine starts none in time
        why = (str(error) or repr(error)).splitlines()[0]
        if address == LOCAL:
            raise WavecastError(
                f"no Ray cluster could be started here ({why}); try again when the machine is less "
                "busy, or leave out --ray"
            ) from None
        raise WavecastError(
            f"no Ray cluster at {address} ({why}); start one with ray start --head, or take "
            f"--ray {LOCAL}"
        ) from None
    return ray


@contextmanager
def spread_over_ray(address: str) -> Iterator[tuple[Callable[..., Iterator[Any]], int]]:
    """A context with a function like `map`, which calls a function on the nodes of a cluster.

    The function must be one of a module, and what comes back is in the order of the items. A call
    whose node died is made again. Beside it comes the number of cores of the cluster.
    """
    ray = connect_ray(address)

    def spread(function: Callable[[_Item], _Answer], items: Iterable[_Item]) -> Iterator[_Answer]:
        remote = ray.remote(function).options(num_cpus=1, max_retries=3)
        for reference in [remote.remote(item) for item in items]:
            try:
                yield ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, WavecastError) else error) from None

    try:
        yield spread, int(ray.cluster_resources().get("CPU", 1))
    finally:
        ray.shutdown()
