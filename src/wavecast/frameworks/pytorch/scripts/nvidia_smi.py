"""`nvidia-smi` for the programs that a script starts: it tells of the GPU that is asked about.

A program of this name is put first on the PATH, so that shells and pipes find it, too. What is not
known of a GPU that does not exist, such as its temperature, is "[N/A]", as in the real one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

_DRIVER_VERSION = "570.124.06"
_UNKNOWN = "[N/A]"
_CSV = "--query-gpu="
_RULE = (
    "+-----------------------------------------+------------------------+----------------------+"
)
_UNITS = {"memory": "MiB", "utilization": "%", "power": "W"}


@contextmanager
def nvidia_smi_on_path(facts: Mapping[str, str], count: int, folder: Path) -> Iterator[None]:
    """Put the program into a new folder, and the folder on the PATH of the block.

    Args:
        facts: what is known of the GPU (`facts_of`).
        count: how many such GPUs the machine has.
        folder: where nothing is yet.
    """
    folder.mkdir()
    program = folder / "nvidia-smi"
    text = _PROGRAM.format(sys.executable, [str(path) for path in sys.path], facts, count)
    # A confined process cannot change the mode of a file later.
    descriptor = os.open(program, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


_PROGRAM = """#!{0} -SE
import sys
sys.path[:] = {1!r}
from wavecast.frameworks.pytorch.scripts.nvidia_smi import main
main(sys.argv[1:], {2!r}, {3})
"""


def facts_of(properties: Any, watts: float | None, cuda: str) -> dict[str, str]:
    """What is known of a GPU, by the names of nvidia-smi's queries, without units.

    Args:
        properties: what `torch.cuda.get_device_properties` says.
        watts: its power limit.
        cuda: the version of CUDA.
    """
    total = str(properties.total_memory >> 20)
    return {
        "name": properties.name,
        "gpu_name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "gpu_uuid": f"GPU-{properties.uuid}",
        "driver_version": _DRIVER_VERSION,
        "cuda_version": cuda,
        "compute_cap": f"{properties.major}.{properties.minor}",
        "pstate": "P0",
        "memory.total": total,
        "memory.used": "0",
        "memory.free": total,
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "power.limit": _UNKNOWN if watts is None else f"{watts:.2f}",
    }


def main(arguments: Sequence[str], facts: Mapping[str, str], count: int) -> None:
    """Answer a call of nvidia-smi."""
    chosen = _chosen(arguments, count)
    query = next((a for a in arguments if a.startswith(_CSV)), None)
    if query is not None:
        lines = _csv(query.removeprefix(_CSV).split(","), arguments, facts, chosen, count)
    elif any(a.startswith(("--query-compute-apps", "--query-accounted-apps")) for a in arguments):
        lines = []
    elif {"-L", "--list-gpus"} & set(arguments):
        lines = [f"GPU {index}: {facts['name']} (UUID: {facts['uuid']})" for index in chosen]
    elif unknown := {"-x", "--xml-format"} & set(arguments):
        sys.stderr.write(f"nvidia-smi {min(unknown)} has no answer on a machine without a GPU\n")
        sys.exit(1)
    elif {"-q", "--query"} & set(arguments):
        lines = [line for index in chosen for line in _report(index, facts)]
    elif arguments and arguments[0] in ("topo", "dmon", "pmon", "nvlink", "mig", "stats"):
        sys.stderr.write(f"nvidia-smi {arguments[0]} has no answer on a machine without a GPU\n")
        sys.exit(1)
    else:
        lines = _table(facts, chosen)
    with suppress(BrokenPipeError):
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def _chosen(arguments: Sequence[str], count: int) -> list[int]:
    """The numbers of the GPUs that are asked about."""
    text = ""
    for option, following in pairwise([*arguments, ""]):
        if option in ("-i", "--id"):
            text = following
        elif option.startswith(("-i=", "--id=")):
            text = option.partition("=")[2]
    numbers = [int(part) for part in text.split(",") if part.isdigit()]
    return [n for n in numbers if n < count] or list(range(count))


def _csv(
    fields: Sequence[str],
    arguments: Sequence[str],
    facts: Mapping[str, str],
    chosen: Sequence[int],
    count: int,
) -> list[str]:
    formats = next((a.partition("=")[2] for a in arguments if a.startswith("--format")), "csv")
    plain = {"noheader", "nounits"} & set(formats.replace(" ", "").split(","))
    fields = [field.strip() for field in fields]

    def value(field: str, index: int) -> str:
        known = {**facts, "index": str(index), "count": str(count)}.get(field, _UNKNOWN)
        unit = _unit(field)
        return known if not unit or "nounits" in plain or known == _UNKNOWN else f"{known} {unit}"

    def header(field: str) -> str:
        unit = _unit(field)
        return f"{field} [{unit}]" if unit and "nounits" not in plain else field

    rows = [", ".join(value(field, index) for field in fields) for index in chosen]
    return rows if "noheader" in plain else [", ".join(map(header, fields)), *rows]


def _unit(field: str) -> str:
    return _UNITS.get(field.partition(".")[0], "")


def _report(index: int, facts: Mapping[str, str]) -> list[str]:
    """A part of what `nvidia-smi -q` says."""
    return [
        f"GPU {index:08}:00:00.0",
        f"    Product Name                          : {facts['name']}",
        f"    GPU UUID                              : {facts['uuid']}",
        "    FB Memory Usage",
        f"        Total                             : {facts['memory.total']} MiB",
        "        Used                              : 0 MiB",
        f"        Free                              : {facts['memory.free']} MiB",
    ]


def _table(facts: Mapping[str, str], chosen: Sequence[int]) -> list[str]:
    """The table that nvidia-smi shows without options."""
    driver = f"| NVIDIA-SMI {_DRIVER_VERSION:<23}Driver Version: {_DRIVER_VERSION:<15}"
    memory = f"0MiB / {facts['memory.total']:>6}MiB"
    limit = facts["power.limit"].partition(".")[0]
    power = f"N/A / {'N/A' if limit == _UNKNOWN else limit + 'W':>5}"
    lines = [
        "+" + "-" * (len(_RULE) - 2) + "+",
        f"{driver}CUDA Version: {facts['cuda_version']:<9}|",
        "|" + _RULE[1:-1] + "|",
        f"| {'GPU  Name':<26}Persistence-M | {'Bus-Id':<16}Disp.A | Volatile Uncorr. ECC |",
        f"| {'Fan  Temp   Perf':<26}Pwr:Usage/Cap | {'Memory-Usage':>22} | GPU-Util  Compute M. |",
        "|" + _RULE[1:-1].replace("-", "=") + "|",
    ]
    for index in chosen:
        name = facts["name"]
        lines += [
            f"| {index:>3}  {name:<30.30} Off |   {index:08}:00:00.0 Off |                  N/A |",
            f"| N/A  N/A    P0   {power:>22} | {memory:>22} |      0%      Default |",
            _RULE,
        ]
    return lines
