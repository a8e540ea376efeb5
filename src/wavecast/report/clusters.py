"""Clusters: their links and networks, each fact with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from rich.console import Group, RenderableType

from wavecast.hardware.cluster import Cluster
from wavecast.report.devices import FACT, facts_with_sources
from wavecast.report.fields import Field, columns, describe
from wavecast.report.tables import shown
from wavecast.report.units import UNKNOWN, count, text


def _of(part: str) -> Callable[[Cluster], dict[str, Any]]:
    """A function that gives the facts of the node or the network."""
    return lambda one: {
        name.partition(".")[2]: {"value": value, "source": one.sources.get(name)}
        for name, value in _facts(one)
        if name.startswith(part)
    }


_NETWORK = "The network between machines; null when there is none, or it is unknown."
_FACTS = {str: FACT}


def _link(one: Cluster) -> str:
    machines = one.node.domain_nodes
    return f"{one.node.link}, {machines} machines" if machines > 1 else str(one.node.link)


describe(
    Cluster,
    Field("id", title="name"),
    "name",
    Field("", lambda one: one.gpu or "any", title="GPU", rank=5),
    Field("gpu"),
    Field("", "gpus_per_node", title="GPUs"),
    Field("", _link, title="link", rank=2),
    Field("", "node.link_bytes_per_s", title="per GPU"),
    Field("", "network.kind", title="network", rank=4, left=True),
    Field("", "network.bytes_per_s", title="per machine", rank=3),
    "aliases",
    "usual_for",
    Field("node", _of("node"), kind=_FACTS, meaning="One machine and the links of its GPUs."),
    Field("network", _of("network"), blank=True, kind=_FACTS, meaning=_NETWORK),
)


def clusters(some: Sequence[Cluster], width: int) -> RenderableType:
    """One row for each cluster with its links."""
    lines = [
        f"{count(len(some))} clusters. Speeds are for one direction. {UNKNOWN} is unknown or "
        "absent.",
        'All facts of one cluster, with their sources: "wavecast clusters NAME".',
    ]
    return Group(*shown(columns(some), width, lines))


def cluster_facts(one: Cluster) -> RenderableType:
    """Every fact of a cluster with its source."""
    rows = [(name, text(name, value), one.sources.get(name)) for name, value in _facts(one)]
    lines = [f"GPU: {one.gpu}"] if one.gpu else []
    if one.aliases:
        lines.append("also called " + ", ".join(one.aliases))
    if one.usual_for:
        lines.append("the usual machine of " + ", ".join(one.usual_for))
    return facts_with_sources(one.name, one.id, lines, rows)


def _facts(one: Cluster) -> Iterator[tuple[str, Any]]:
    """The facts that a cluster's file gives, and the speeds and numbers that follow from it."""
    for part in ("node", "network"):
        links = getattr(one, part)
        for field in fields(links) if links is not None else ():
            value, name = getattr(links, field.name), f"{part}.{field.name}"
            if name in one.sources or (value is not None and value != field.default):
                yield name, value
