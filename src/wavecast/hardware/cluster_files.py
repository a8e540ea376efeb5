"""Cluster files: one TOML file describes one kind of machine, with a source for each fact."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, prefixed
from wavecast.files import config_folder, read_toml
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.fact_files import (
    NumberRange,
    names_of,
    number_of,
    refuse_unknown,
    slug,
    table_of,
    text_of,
    value_and_source,
)
from wavecast.hardware.links import LinkKind, NetworkKind, NodeLinks, NodeNetwork


def own_clusters_folder() -> Path:
    """The folder of the user's cluster files."""
    return config_folder() / "clusters"


@functools.cache
def read_shipped_cluster(path: Path) -> Cluster:
    """The cluster in a file of the package, where every fact must have a source."""
    return _read(path, need_sources=True)


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """The cluster that a TOML file describes; its id is the file's name.

    Raises:
        InvalidInput: the file cannot be read or is not a cluster file; says which key and why.
    """
    return _read(Path(path), need_sources=False)


_WHAT = "a cluster"
_KEYS = ("name", "gpu", "aliases", "usual_for", "node", "network")
# The slowest link that is believed is 10 Mb/s, so that Gb/s written as a bare number are refused.
_BYTES_PER_S = NumberRange("bytes/s", 1e6, 1e14)
_COUNT = NumberRange("a count", 1, 1e5, whole=True)
_UNITS: Mapping[str, NumberRange] = {
    "node.gpus": _COUNT,
    "node.link_bytes_per_s": _BYTES_PER_S,
    "node.peer_bytes_per_s": _BYTES_PER_S,
    "node.bridged_gpus": _COUNT,
    "node.pcie_bytes_per_s": _BYTES_PER_S,
    "node.host_bytes_per_s": _BYTES_PER_S,
    "node.memory_bytes_per_s": _BYTES_PER_S,
    "node.sockets": _COUNT,
    "node.domain_nodes": _COUNT,
    "network.bytes_per_s": _BYTES_PER_S,
    "network.nics": _COUNT,
    "network.latency_s": NumberRange("s", 1e-8, 1.0),
}
_KINDS: Mapping[str, type[StrEnum]] = {"node.link": LinkKind, "network.kind": NetworkKind}
_NEEDED = {
    "node": ("gpus", "link", "link_bytes_per_s"),
    "network": ("kind", "bytes_per_s"),
}


def _read(path: Path, *, need_sources: bool) -> Cluster:
    with prefixed(f"{path}: "):
        table = read_toml(path)
        refuse_unknown(table, _KEYS, _WHAT)
        sources: dict[str, str] = {}
        node = _facts(table, "node", NodeLinks, sources, need_sources)
        network = None
        if "network" in table:
            network = NodeNetwork(**_facts(table, "network", NodeNetwork, sources, need_sources))
        return Cluster(
            id=slug(path.stem, "cluster"),
            name=text_of(table, "name"),
            node=_checked_node(NodeLinks(**node)),
            network=network,
            gpu=text_of(table, "gpu") if "gpu" in table else None,
            aliases=names_of(table, "aliases"),
            usual_for=names_of(table, "usual_for"),
            sources=sources,
        )


def _facts(
    table: Mapping[str, Any],
    part: str,
    kind: type[NodeLinks] | type[NodeNetwork],
    sources: dict[str, str],
    need_sources: bool,
) -> dict[str, Any]:
    """The checked values of one table of the file. Their sources are added to `sources`."""
    inner = table_of(table, part)
    refuse_unknown(inner, (field.name for field in fields(kind)), _WHAT, f"{part}.")
    for key in _NEEDED[part]:
        if key not in inner:
            raise InvalidInput(f"{part}.{key} is missing")
    values: dict[str, Any] = {}
    for key, raw in inner.items():
        where = f"{part}.{key}"
        value, source = value_and_source(raw, where, _WHAT, need_sources)
        values[key] = _checked(value, where)
        if source:
            sources[where] = source
    return values


def _checked(value: object, where: str) -> object:
    if where in _UNITS:
        return number_of(value, _UNITS[where], where)
    if where in _KINDS:
        kinds = [kind.value for kind in _KINDS[where]]
        if value not in kinds:
            raise InvalidInput(f"{where} is {value!r}; it is one of {', '.join(kinds)}")
        return _KINDS[where](str(value))
    if where == "node.processor":
        return text_of({where: value}, where)
    if not isinstance(value, bool):
        raise InvalidInput(f"{where} must be true or false, not {value!r}")
    return value


def _checked_node(node: NodeLinks) -> NodeLinks:
    if node.link is LinkKind.BRIDGES and (node.bridged_gpus < 2 or node.pcie_bytes_per_s is None):
        raise InvalidInput(
            "node.link is bridges, so node.bridged_gpus (2 for pairs) and node.pcie_bytes_per_s "
            "are needed too"
        )
    if node.link is not LinkKind.BRIDGES and node.bridged_gpus != 1:
        raise InvalidInput(f"node.bridged_gpus is only for bridges, not for {node.link}")
    if node.nvls and node.link is not LinkKind.NVSWITCH:
        raise InvalidInput("node.nvls is true, but only NVSwitches can reduce (NVLink SHARP)")
    return node
