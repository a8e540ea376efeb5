"""FLOPs and DRAM bytes of kernels from the GPU's hardware counters, read by NVIDIA's `ncu`.

PyTorch's profiler cannot read them in its public builds (tried on an H200 with torch 2.11: no
counter range is ever recorded). So `ncu` runs the program once more and counts. Counting replays
each kernel several times, so only important kernels are counted, once for each name and launch
configuration, and the counts are kept in a file (Habitat, section 4.2).
"""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, MissingExtra
from wavecast.files import cache_folder, write_whole
from wavecast.predictors.wave import kernels_that_matter
from wavecast.reading import MissingFile, parse_json, read_bytes
from wavecast.traces.joining import Counted, KernelKey, key_of, with_counters
from wavecast.traces.kernel_names import function_name, template_words
from wavecast.traces.step import Kernel, Trace

# How many FLOPs one count of each metric stands for.
_PER_INSTRUCTION = {
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": flops
    for op, flops in (
        *(("fadd", 1), ("fmul", 1), ("ffma", 2)),
        *(("hadd", 2), ("hmul", 2), ("hfma", 4)),  # on pairs of float16 numbers
        *(("dadd", 1), ("dmul", 1), ("dfma", 2)),
    )
}
_TENSOR = {
    f"sm__ops_path_tensor_src_{types}.sum": 1
    for types in ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "tf32_dst_fp32")
}
_BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_COLUMNS = ("ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name", "Metric Value")


def with_counted_kernels(trace: Trace, command: Sequence[str]) -> Trace:
    """A measured trace with hardware counters on its longest kernels.

    A kernel is counted once for each GPU; the counts are kept in the user's cache folder.

    Args:
        command: runs the same step between cudaProfilerStart and Stop.
    """
    path = cache_path(trace.measurement.gpu if trace.measurement else "")
    counts = load(path)
    longest = [kernel for call in kernels_that_matter(trace) for kernel in call.kernels]
    missing = [kernel for kernel in longest if key_of(kernel) not in counts]
    if missing:
        counts |= count(missing, command)
        save(counts, path)
    return with_counters(trace, counts)


def count(kernels: Iterable[Kernel], command: Sequence[str]) -> dict[KernelKey, Counted]:
    """The counts of kernels that a program launches between cudaProfilerStart and -Stop."""
    functions = {key: function_name(key[0]) for kernel in kernels if (key := key_of(kernel))}
    if not functions:
        return {}
    tool = shutil.which("ncu")
    if tool is None:
        raise MissingExtra("hardware counters need NVIDIA's ncu (Nsight Compute) on the PATH")
    rows = _run(tool, sorted(set(functions.values())), command)
    launches: dict[tuple[str, int, int], list[_Row]] = {}
    for row in rows:
        launches.setdefault((function_name(row.name), row.blocks, row.threads), []).append(row)
    return {
        key: _mean(_alike(key[0], launches[name, key[1], key[2]]))
        for key, name in functions.items()
        if (name, key[1], key[2]) in launches
    }


def _alike(name: str, rows: Sequence[_Row]) -> list[Counted]:
    """The counts of launches of the same template instance; of all launches if none matches.

    ncu and the profiler write C++ names differently. The function's name is the same in both, and
    the template arguments differ only in casts and suffixes of numbers.
    """
    words = template_words(name)
    same = [row for row in rows if template_words(row.name) == words]
    return [row.counted for row in same or rows]


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    blocks: int
    threads: int
    counted: Counted


def _run(tool: str, names: Sequence[str], command: Sequence[str]) -> list[_Row]:
    pattern = "|".join(map(re.escape, names))
    for metrics in (
        [*_BYTES, *_PER_INSTRUCTION, *_TENSOR],
        [*_BYTES, *_PER_INSTRUCTION],  # GPUs before Ampere do not count tensor-core ops
    ):
        arguments = [
            *(tool, "--csv", "--print-units", "base", "--clock-control", "none"),
            *("--profile-from-start", "off", "--kernel-name", f"regex:^({pattern})$"),
            *("--metrics", ",".join(metrics), *command),
        ]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        rows = _parse(done.stdout)
        if rows:
            return rows
    reason = next(
        (line for line in (done.stdout + done.stderr).splitlines() if "==ERROR==" in line),
        f"it exited with status {done.returncode} and counted nothing",
    )
    raise InvalidInput(f"ncu counted no kernel: {reason}")


def _parse(text: str) -> list[_Row]:
    # The program's output and ncu's messages come before the table and between its lines.
    lines = dropwhile(lambda line: not line.startswith('"ID",'), text.splitlines())
    launches: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        if any(row.get(name) is None for name in _COLUMNS):
            continue  # a line of the program that looks like one of the table, or one cut off
        value = row["Metric Value"].replace(",", "")
        launch = launches.setdefault(row["ID"], {"row": row, "metrics": {}})
        if _is_number(value):
            launch["metrics"][row["Metric Name"]] = float(value)
    return [
        _row(launch["row"], launch["metrics"])
        for launch in launches.values()
        if all(name in launch["metrics"] for name in _BYTES)
    ]


def _row(row: Mapping[str, str], metrics: Mapping[str, float]) -> _Row:
    flops = sum(
        per_count * metrics.get(name, 0.0)
        for name, per_count in (_PER_INSTRUCTION | _TENSOR).items()
    )
    dram_bytes = sum(metrics.get(name, 0.0) for name in _BYTES)
    return _Row(
        row["Kernel Name"],
        _product(row["Grid Size"]),
        _product(row["Block Size"]),
        Counted(flops, dram_bytes),
    )


def _is_number(text: str) -> bool:
    is_written = re.fullmatch(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", text) is not None
    return is_written and math.isfinite(float(text))


def _product(text: str) -> int:
    # CUDA's own limit of a dimension has ten digits.
    return math.prod(int(number) for number in re.findall(r"[0-9]{1,10}", text))


def _mean(runs: Sequence[Counted]) -> Counted:
    return Counted(
        sum(run.flops for run in runs) / len(runs),
        sum(run.dram_bytes for run in runs) / len(runs),
    )


def cache_path(gpu: str) -> Path:
    """The file that keeps the counts of a GPU's kernels."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return cache_folder() / "counters" / f"{name}.json"


def load(path: Path) -> dict[KernelKey, Counted]:
    """The counts in a file; empty if there is no such file."""
    try:
        rows = parse_json(read_bytes(path, prefix="it "), prefix="it ")
        return {
            (str(name), _positive(blocks), _positive(threads)): Counted(
                _amount(flops), _amount(dram_bytes)
            )
            for name, blocks, threads, flops, dram_bytes in rows
        }
    except MissingFile:
        return {}
    except (ValueError, TypeError, OverflowError, InvalidInput) as error:
        raise InvalidInput(
            f"cannot read the counters in {path}: {error}; delete it to count again"
        ) from error


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a size of a launch")
    return value


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e300:
        raise ValueError(f"{value!r} is not a count")
    return float(value)


def save(counted: Mapping[KernelKey, Counted], path: Path) -> None:
    """Write counts to a file. If that fails, the old file stays as it was."""
    rows = [[*key, counts.flops, counts.dram_bytes] for key, counts in sorted(counted.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(rows))
