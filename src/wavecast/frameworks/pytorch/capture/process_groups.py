"""Process groups of one process that stands for a rank of many, while a step is traced.

Torch's own `fake` backend answers every collective at once. While tracing, a group of any backend
gets that backend, and the environment has the variables that `torchrun` would set for the rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from wavecast.errors import InvalidInput

_LARGEST_MACHINE = 8
"""How many GPUs a machine is assumed to have at most."""


_OWN = "_wavecast_own"
"""The attribute of a replaced function that has torch's own."""


@dataclass(frozen=True)
class RankPlace:
    """The rank that a traced step runs on."""

    ranks: int
    """How many ranks there are."""
    rank: int = 0

    def __post_init__(self) -> None:
        for name, least in (("ranks", 1), ("rank", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(
                    f"{name} is {value!r}; it must be a whole number of at least {least}"
                )
        if self.rank >= self.ranks:
            raise InvalidInput(
                f"rank is {self.rank}, but ranks={self.ranks} are numbered from 0 to "
                f"{self.ranks - 1}"
            )

    @property
    def machine(self) -> int:
        """How many ranks share a machine: at most eight, and as many on each machine."""
        return max(n for n in range(1, _LARGEST_MACHINE + 1) if self.ranks % n == 0)

    @property
    def gpu(self) -> int:
        """The number of the rank's GPU in its machine."""
        return self.rank % self.machine

    def environment(self) -> dict[str, str]:
        """The variables that `torchrun` sets for the rank."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(self.gpu),
            "LOCAL_WORLD_SIZE": str(self.machine),
            "GROUP_RANK": str(self.rank // self.machine),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }


@contextmanager
def fake_process_groups(place: RankPlace) -> Iterator[None]:
    """Let the process groups made inside the block be those of a rank of many.

    Groups from before the block are set aside, and come back after it.
    """
    from torch.distributed import distributed_c10d as c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # Inside of another trace, it is replaced already.
    make = getattr(c10d._new_process_group_helper, _OWN, c10d._new_process_group_helper)

    def rendezvous(*_: Any, **__: Any) -> Iterator[tuple[Any, int, int]]:
        yield FakeStore(), place.rank, place.ranks

    def new_group(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        """Torch's own function, with the fake backend in place of any other."""
        kwargs.pop("device_id", None)
        kwargs.pop("backend_options", None)
        kwargs.pop("pg_options", None)
        if not ranks:  # the group of all
            size, rank = place.ranks, place.rank
        with _disable_current_modes():
            group, store = make(size, rank, ranks, c10d.Backend("fake"), *args[:2], **kwargs)
        if group in c10d._world.pg_map:
            c10d._world.pg_map[group] = (_shown(backend), store)
        return group, store

    setattr(new_group, _OWN, make)
    with ExitStack() as stack:
        stack.enter_context(_environment(place.environment()))
        stack.callback(setattr, sys, "excepthook", sys.excepthook)  # torch adds the rank to errors
        stack.enter_context(_groups_set_aside())
        for name, value in (
            ("rendezvous", rendezvous),
            ("_new_process_group_helper", new_group),
            # Without NCCL torch has no such number, and warns.
            ("default_pg_nccl_timeout", c10d.default_pg_timeout),
        ):
            stack.callback(setattr, c10d, name, getattr(c10d, name))
            setattr(c10d, name, value)
        yield


def _shown(backend: Any) -> str:
    """The name of the backend that code sees: NCCL's wherever it serves GPUs."""
    name = str(backend)
    return "nccl" if name in ("undefined", "fake") or "nccl" in name else name


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag")


@contextmanager
def _groups_set_aside() -> Iterator[None]:
    """Run the block without process groups. Those that it makes end with it."""
    from torch.distributed import distributed_c10d as c10d

    world = c10d._world
    tables = {name: dict(getattr(world, name)) for name in _TABLES}
    default, count = world.default_pg, world.group_count
    _clear(c10d)
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            with _disable_current_modes():
                torch.distributed.destroy_process_group()
        _clear(c10d)
        for name, content in tables.items():
            getattr(world, name).update(content)
        for group, name in tables["pg_names"].items():
            c10d._register_process_group(name, group)
        c10d._update_default_pg(default)
        world.group_count = count


def _clear(c10d: Any) -> None:
    c10d._update_default_pg(None)
    for name in _TABLES:
        getattr(c10d._world, name).clear()
    c10d._unregister_all_process_groups()
    c10d._world.group_count = 0
