"""Files of clusters: the pools of GPUs that jobs are planned on, as TOML or CSV.

```toml
[cluster]
power_limit_kw = 20                 # of all GPUs together

[[cluster.pools]]
gpu = "h100-sxm-80gb"
gpus = 16
gpus_per_node = 8                   # as in the GPU's usual machine by default
links = "aws-p5"                    # the usual machine by default, see wavecast clusters
usd_per_hour = 2.5                  # the cheapest known offer by default
available = [["0h", "72h"]]         # always by default
```

As CSV, each row is a pool, and the columns have the names of the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, WavecastError, prefixed
from wavecast.files import read_toml
from wavecast.hardware.clusters import cluster as cluster_of_name
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.hardware.fact_files import NumberRange, number_of, refuse_unknown, text_of
from wavecast.planning.file_values import table_rows, time_s
from wavecast.planning.prices import PriceBook
from wavecast.planning.schedule.jobs import Fleet, Pool

_NUMBERS = {
    "gpus": NumberRange("GPUs", 1, 1e6, whole=True),
    "gpus_per_node": NumberRange("GPUs", 1, 1024, whole=True),
    "usd_per_hour": NumberRange("USD of a GPU and hour", 1e-6, 1e4),
    "power_w": NumberRange("W", 1, 1e5),
    "power_limit_kw": NumberRange("kW", 1e-3, 1e7),
}
_MOST_MACHINES = 10_000
"""Jobs are seated on each machine of a pool, so that the time of a plan grows with them."""
_KEYS = ("name", "gpu", "links", *_NUMBERS, "spot", "available")


def read_fleet(path: Path, book: PriceBook) -> Fleet:
    """The pools of a file.

    Args:
        path: a TOML file with the table `cluster`, or a CSV file with a pool in each row.
        book: the prices of pools that state none.

    Raises:
        InvalidInput: the file cannot be read, or a value is wrong; names the file and the key.
    """
    with prefixed(f"{path}: "):
        table = _csv_table(path) if path.suffix == ".csv" else read_toml(path)
        if not isinstance(table.get("cluster"), dict):
            raise InvalidInput(
                "has no cluster; write its pools as [[cluster.pools]], or give them with "
                "--cluster: a file, or a list such as l4=16,h100-sxm-80gb=8"
            )
        return fleet_of(table, book)


def listed_fleet(text: str, book: PriceBook) -> Fleet:
    """The pools of a list such as `l4=16,h100-sxm-80gb=8`.

    Raises:
        InvalidInput: it is no such list.
    """
    pools = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        gpu, _, gpus = part.partition("=")
        if not gpus.strip().isdigit():
            raise InvalidInput(
                f"--cluster takes a file, or a list such as l4=16,h100-sxm-80gb=8; not {part!r}"
            )
        pools.append({"gpu": device(gpu.strip()).id, "gpus": int(gpus)})
    with prefixed("--cluster: "):
        return fleet_of({"cluster": {"pools": pools}}, book)


def fleet_of(table: Mapping[str, Any], book: PriceBook) -> Fleet:
    """The pools of the content of a TOML file.

    Raises:
        InvalidInput: there are none, or a value is wrong; names the key.
    """
    cluster = table.get("cluster")
    if not isinstance(cluster, dict):
        raise InvalidInput("has no cluster; write its pools as [[cluster.pools]]")
    refuse_unknown(cluster, ("pools", "power_limit_kw"), "a cluster", "cluster.")
    listed = cluster.get("pools", [])
    if not isinstance(listed, list) or not listed:
        raise InvalidInput("cluster has no pools; write each as [[cluster.pools]]")
    pools = tuple(_pool(one, f"cluster.pools[{n}]", book) for n, one in enumerate(listed, 1))
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"two pools have the name {name!r}; give each a name of its own")
    return Fleet(pools, _watts(cluster, "cluster"))


def _watts(table: Mapping[str, Any], where: str) -> float | None:
    if "power_limit_kw" not in table:
        return None
    key = f"{where}.power_limit_kw"
    return 1000 * number_of(table["power_limit_kw"], _NUMBERS["power_limit_kw"], key)


def _pool(table: Any, where: str, book: PriceBook) -> Pool:
    if not isinstance(table, dict):
        raise InvalidInput(f"{where} must be a table, written [[cluster.pools]]")
    refuse_unknown(table, _KEYS, "a pool", f"{where}.")
    with prefixed(f"{where}."):
        gpu = text_of(table, "gpu")
        if "gpus" not in table:
            raise InvalidInput("gpus is missing: how many GPUs there are")
        numbers = {
            key: number_of(table[key], unit, key) for key, unit in _NUMBERS.items() if key in table
        }
        windows = _windows(table.get("available", []))
        links = text_of(table, "links") if "links" in table else ""
    known, power_w, found = gpu, numbers.get("power_w"), None
    try:
        found = device(gpu)
        known, power_w = found.id, power_w or found.tdp_w
    except WavecastError:
        pass  # a GPU that only measured jobs run on need not be known
    with prefixed(f"{where}.links: "):
        usual_size = _machine_size(found, links)
    size = int(numbers.get("gpus_per_node", usual_size))
    if numbers["gpus"] > size * _MOST_MACHINES:
        raise InvalidInput(
            f"{where} has {numbers['gpus']:,.0f} GPUs in machines of {size}; at most "
            f"{_MOST_MACHINES:,} machines of a pool are planned"
        )
    offer = book.cheapest(known)
    limit = _watts(table, where)
    if limit is not None and power_w is None:
        raise InvalidInput(f"{where}.power_limit_kw needs power_w: the power of {gpu} is not known")
    return Pool(
        name=str(table.get("name", known)),
        gpu=known,
        gpus=int(numbers["gpus"]),
        gpus_per_node=size,
        links=links,
        usd_per_hour=numbers.get("usd_per_hour", None if offer is None else offer.usd_per_hour),
        power_w=power_w,
        power_limit_w=limit,
        is_spot=table.get("spot", False) is True,
        windows=windows,
    )


def _machine_size(gpu: Device | None, links: str) -> int:
    """How many GPUs a machine has where the file does not say it."""
    if links:
        return cluster_of_name(links).gpus_per_node
    try:
        return 8 if gpu is None else usual_cluster(gpu).gpus_per_node
    except InvalidInput:  # its links are not known, which only jobs on several GPUs need
        return 8


def _windows(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list):
        raise InvalidInput(f'available must be a list such as [["0h", "72h"]], not {value!r}')
    windows = []
    for one in value:
        if not isinstance(one, list) or len(one) != 2:
            raise InvalidInput(f'available has {one!r}; write a window as ["0h", "72h"]')
        begin, end = (time_s(time, "available") for time in one)
        if not begin < end:
            raise InvalidInput(f"available has a window that ends before it begins: {one!r}")
        windows.append((begin, end))
    return _joined(sorted(windows))


def _joined(windows: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The windows in order, of which those that touch or overlap are one."""
    found: list[tuple[float, float]] = []
    for begin, end in windows:
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return tuple(found)


def _csv_table(path: Path) -> dict[str, Any]:
    rows = [
        {key: _cell(key, text) for key, text in row.items() if text}
        for _, row in table_rows(path, "a table of GPUs", ("gpu", "gpus"))
    ]
    return {"cluster": {"pools": rows}}


def _cell(key: str, text: str) -> object:
    if key == "spot":
        return text.strip().lower() in ("true", "yes", "1")
    if key not in _NUMBERS:
        return text
    try:
        return float(text)
    except ValueError:
        return text
