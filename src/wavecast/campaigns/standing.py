"""Where a campaign stands, and what one start of it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeWork:
    """What one machine, or one node of a cluster, has done for a campaign."""

    node: str
    done: int
    busy_s: float
    """The time of its tasks together."""
    last_s: float
    """When its last result came, in seconds since 1970."""


@dataclass(frozen=True)
class CampaignStatus:
    """How far a campaign is."""

    name: str
    tasks: int
    done: int
    kinds: Mapping[str, tuple[int, int]]
    """How many tasks of each kind are done, and how many there are."""
    nodes: tuple[NodeWork, ...]
    failed: Mapping[str, str]
    """Tasks without a result whose last attempt failed, with the error."""
    attempts_failed: int
    """How many attempts failed, those included that were made good."""
    remaining_s: float | None
    """How long the rest takes at the pace of the last results. None when unknown or done."""


@dataclass(frozen=True)
class CampaignRun:
    """What one start of a campaign did."""

    name: str
    tasks: int
    done: int
    """How many tasks have a result now."""
    new: int
    """How many of them this start has added."""
    failed: Mapping[str, str]
    """The tasks that were left after several attempts, with the last error."""
    unplaced: Mapping[str, int]
    """How many tasks no worker could run, by the GPU that they need."""
    lost: int
    """How often a worker died with tasks."""
    seconds: float
