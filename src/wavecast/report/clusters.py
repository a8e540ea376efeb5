"""Clusters as tables in a terminal and as records for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from rich.console import Group, RenderableType

from wavecast.hardware.cluster import Cluster
from wavecast.hardware.links import NodeLinks, NodeNetwork
from wavecast.report.tables import Column, fitting, line, remarks, table
from wavecast.report.units import UNKNOWN, count, duration, quantity


def clusters(some: Sequence[Cluster], width: int) -> RenderableType:
    """One row for each cluster with its links."""
    columns = [
        Column("name", [one.id for one in some], left=True),
        Column("GPU", [one.gpu or "any" for one in some], 1, left=True),
        Column("GPUs", [count(one.gpus_per_node) for one in some]),
        Column("link", [_link(one.node) for one in some], left=True),
        Column("per GPU", [quantity(one.node.link_bytes_per_s, "B/s") for one in some]),
        Column("network", [_kind(one.network) for one in some], left=True),
        Column("per machine", [_speed(one.network) for one in some]),
    ]
    kept = fitting(columns, width)
    lines = [
        f"{count(len(some))} clusters. Speeds are for one direction. {UNKNOWN} is unknown or "
        "absent.",
        'All facts of one cluster, with their sources: "wavecast clusters NAME".',
    ]
    if len(kept) < len(columns):
        lines.append("A wider terminal shows more columns.")
    return Group(table(kept), "", *remarks(lines))


def cluster_facts(one: Cluster) -> RenderableType:
    """Every fact of a cluster with its source."""
    rows = list(_facts(one))
    columns = [
        Column("fact", [name for name, _ in rows], left=True),
        Column("value", [_shown(name, value) for name, value in rows]),
        Column(
            "source",
            [one.sources.get(name, "not given") for name, _ in rows],
            left=True,
            folds=True,
        ),
    ]
    lines = [f"GPU: {one.gpu}"] if one.gpu else []
    if one.aliases:
        lines.append("also called " + ", ".join(one.aliases))
    if one.usual_for:
        lines.append("the usual machine of " + ", ".join(one.usual_for))
    return Group(line(one.name, "bold") + line(f" ({one.id})"), *remarks(lines), "", table(columns))


def record(one: Cluster) -> dict[str, Any]:
    """The facts of a cluster. Unknown facts are left out; a source that is not given is null."""
    values: dict[str, dict[str, Any]] = {"node": {}, "network": {}}
    for name, value in _facts(one):
        part, _, key = name.partition(".")
        values[part][key] = {"value": value, "source": one.sources.get(name)}
    return {
        "id": one.id,
        "name": one.name,
        "gpu": one.gpu,
        "aliases": list(one.aliases),
        "usual_for": list(one.usual_for),
        "node": values["node"],
        "network": values["network"] or None,
    }


def _facts(one: Cluster) -> Iterator[tuple[str, Any]]:
    """The facts that a cluster's file gives, and the speeds and numbers that follow from it."""
    for part in ("node", "network"):
        links = getattr(one, part)
        for field in fields(links) if links is not None else ():
            value, name = getattr(links, field.name), f"{part}.{field.name}"
            if name in one.sources or (value is not None and value != field.default):
                yield name, value


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if name.endswith("bytes_per_s"):
        return quantity(value, "B/s")
    return duration(value) if name.endswith("_s") else count(value)


def _link(node: NodeLinks) -> str:
    if node.domain_nodes > 1:
        return f"{node.link}, {node.domain_nodes} machines"
    return str(node.link)


def _kind(network: NodeNetwork | None) -> str:
    return UNKNOWN if network is None else str(network.kind)


def _speed(network: NodeNetwork | None) -> str:
    return UNKNOWN if network is None else quantity(network.bytes_per_s, "B/s")
