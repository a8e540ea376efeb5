"""Compiled steps and their kernels, measured on our H200."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from lab.places import H200
from wavecast import ops
from wavecast.frameworks.pytorch.compiled.fused_ops import FEW_PLACES
from wavecast.ops.fused import FUSED, HOST_CALLS
from wavecast.traces.step import Op, TensorSpec, Trace

FOLDER = H200 / "compiled"
GPU = "h200-sxm"
SMALL = "small functions"
"""The family of kernels that belong to no step."""

MEMORY = ("held_bytes", "peak_bytes", "reserved_bytes")
"""Steps whose memory was measured again."""

BLIND_FILES = {"blind": "blind-", "blind_2": "blind2-"}
"""The files of the blind tests, and how the names of their steps begin."""


class FusedKernel(NamedTuple):
    """A kernel of Inductor with its measured time."""

    family: str
    source: str
    """The step or the bundle of functions."""
    op: Op
    seconds: float
    runs: int
    """How often it ran in one iteration of its step; 1 for functions."""
    name: str


Row = dict[str, Any]


def lines(name: str, folder: Path = FOLDER) -> Iterator[Row]:
    """The rows of a file."""
    path = folder / f"{name}.jsonl.gz"
    if not path.exists():
        return
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def steps(folder: Path = FOLDER) -> list[Row]:
    """The measured steps."""
    return list(lines("steps", folder))


def by_name(folder: Path = FOLDER) -> dict[str, Row]:
    """All measured steps by name, those of the blind tests too.

    Memory is that of a process of its own, where this was recorded: other processes measured many
    steps, and still had the buffers of cuBLAS when a step needed none.
    """
    files = ("steps", *BLIND_FILES)
    rows = {row["step"]: row for file in files for row in lines(file, folder)}
    for row in lines("allocations", folder):
        alone = {key: row[key] for key in MEMORY if key in row}
        rows[row["step"]]["compiled"] |= alone
    return rows


def op_of(encoded: Any) -> Op | None:
    """The op that was written as JSON; None where the node could not be described."""
    if isinstance(encoded, str):
        return None
    name, count, tensors, attrs = encoded
    attrs = _repaired(attrs, tensors[count:])
    specs = [
        TensorSpec(tuple(shape), dtype, None if strides is None else tuple(strides), place)
        for shape, dtype, strides, place in tensors
    ]
    return Op(name, tuple(specs[:count]), tuple(specs[count:]), tuple(attrs.items()))


def _repaired(attrs: Row, outputs: list[Any]) -> Row:
    """Attributes of atomic additions, which the first collection counted by distinct places."""
    if not attrs.get("atomic_bytes") or "colliding_bytes" in attrs:
        return attrs
    atomic = max(attrs["atomic_bytes"], 4 * attrs["points"])
    fewest = min(math.prod(shape) for shape, *_ in outputs)
    few = attrs["reduction"] > 1 and fewest <= FEW_PLACES
    return {**attrs, "atomic_bytes": atomic, "colliding_bytes": atomic if few else 0}


def kernels(folder: Path = FOLDER) -> list[FusedKernel]:
    """All fused kernels: those of steps, equal ones of a step once, and those of functions."""
    return [*_of_steps(folder), *_of_functions(folder)]


def _of_steps(folder: Path) -> Iterator[FusedKernel]:
    for row in steps(folder):
        times: dict[str, list[float]] = {}
        for kernel in row["compiled"]["kernels"]:
            times.setdefault(kernel["name"], []).append(kernel["us"] * 1e-6)
        for name, each in times.items():
            op = op_of(row["ops"][name]) if name in row["ops"] else None
            if op is not None and op.name in FUSED:
                mean_s = sum(each) / len(each)
                yield FusedKernel(row["family"], row["step"], op, mean_s, len(each), name)


def _of_functions(folder: Path) -> Iterator[FusedKernel]:
    for row in lines("kernels", folder):
        for kernel in row["kernels"]:
            op = op_of(kernel["op"])
            if op is not None and op.name in FUSED:
                source = f"bundle {row['bundle']}"
                yield FusedKernel(SMALL, source, op, kernel["us"] * 1e-6, 1, kernel["name"])


# The host's side of compiled steps, as it was measured on our H200.
#
# In `steps.jsonl.gz` and `blind.jsonl.gz` a profiler had run in most processes before a step was
# timed, and what a profiler leaves behind slows the host (lab/notes). `host.jsonl.gz` was made
# without one.


GPU_BOUND = 0.9
"""If the GPU is busy for this share of an iteration, the host's time makes no difference."""
FRESH = (
    "hf-gpt2-bf16 resnet50-bf16-last hf-bert-bf16 resnet18-fp32 hand-gpt-bf16 "
    "mobilenet-v2-bf16-last hf-llama-bf16-weights unet-bf16 hf-vit-bf16 convnext-bf16-last"
).split()
"""The first step of each of the ten processes of `steps.jsonl.gz`: compiled, it was timed before a
profiler ran."""


@dataclass(frozen=True)
class Timing:
    """What the iteration of a step took, compiled or eager."""

    step: str
    family: str
    mode: str
    seconds: float
    """The wall time. The geometric mean, if it was measured more than once."""
    busy_s: float
    """The time in which the GPU was busy."""
    is_clean: bool
    """Whether no profiler can have slowed it."""

    @property
    def is_host_bound(self) -> bool:
        """Whether the GPU waited for the host."""
        return self.busy_s < GPU_BOUND * self.seconds


@cache
def profiled() -> dict[str, Row]:
    """The steps with their kernels, by name."""
    return by_name()


@cache
def unprofiled() -> dict[str, Row]:
    """The steps that were timed without a profiler, by name."""
    return {row["step"]: row for row in lines("host") if "step" in row}


@cache
def pieces() -> dict[str, Row]:
    """Small pieces of code that were timed without a profiler, by name."""
    return {row["part"]: row for row in lines("host") if "part" in row}


def timing(name: str, how: str) -> Timing:
    """The iteration of a step ("compiled" or "eager"), from all measurements that can be trusted.

    If there is none, from the one after a profiler.
    """
    row = profiled()[name]
    half = row[how]
    clean_s = []
    if name in unprofiled():
        clean_s.append(float(unprofiled()[name][how]["wall_s"]))
    is_fresh = how == "compiled" and name in FRESH
    if is_fresh or half["busy_s"] >= GPU_BOUND * half["wall_s"]:
        clean_s.append(float(half["wall_s"]))
    seconds = statistics.geometric_mean(clean_s) if clean_s else float(half["wall_s"])
    return Timing(
        name, row["family"], row["mode"], seconds, float(half["busy_s"]), is_clean=bool(clean_s)
    )


def unslowed() -> dict[str, Row]:
    """The steps with their kernels, by name; compiled iterations as no profiler slowed them."""
    return {
        name: row | {"compiled": row["compiled"] | {"wall_s": timing(name, "compiled").seconds}}
        for name, row in profiled().items()
    }


# What ran in a compiled step, and what a trace says would run. Calls of the same key are the same.
#
# A fused kernel is known by what its node computes: its kind, its points, the length of its sums,
# and the bytes that it reads and writes. A library call is known by its op and the sizes of its
# product, or the shapes of its tensors.


Key = tuple[Hashable, ...]
Shapes = list[tuple[int, ...]]

MAIN = {
    "aten.cross_entropy_loss": "aten._log_softmax",
    "aten.layer_norm": "aten.native_layer_norm",
    "aten.dropout": "aten.native_dropout",
    "aten.embedding_bag": "aten._embedding_bag",
    "aten.to": "aten._to_copy",
}
"""The profiler names the outermost op; a trace has the ops within it. This is the one of these that
does most of the work."""
PARTS = ("aten.nll_loss_forward", "aten.nll_loss2d_forward")
"""Ops of a trace whose time the profiler adds to that of the op in front of them."""
LISTS = ("aten._foreach", "aten._fused_", "aten._amp_foreach")
"""Ops on lists of tensors, whose shapes the profiler does not say."""
PRODUCTS = {"aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1}
"""Products, and the position of their first matrix."""
RECURRENT = "aten._cudnn_rnn"


@dataclass
class Calls:
    """Equal calls of one step."""

    count: int = 0
    seconds: float = 0.0
    """The time of all of them together; 0 for those of a trace."""
    ops: list[Op] = field(default_factory=list)
    """What they are, one by one: they may differ in layout. Empty for measured library calls."""


def ran(row: Row, how: str = "compiled") -> tuple[dict[Key, Calls], float]:
    """The calls of a measured step by key, and the seconds of kernels whose op is not known.

    The profiler has no op for library calls that a CUDA graph launches.
    """
    calls: dict[Key, Calls] = defaultdict(Calls)
    unknown_s = 0.0
    kernels = sorted(row[how]["kernels"], key=lambda kernel: kernel["at_us"])
    for key, group in groupby(kernels, key=lambda kernel: _key(kernel, row)):
        run = list(group)
        seconds = sum(kernel["us"] for kernel in run) * 1e-6
        if key is None:
            unknown_s += seconds
            continue
        calls[key].seconds += seconds
        calls[key].count += _times(key, run)
    return dict(calls), unknown_s


def traced(step: Trace) -> dict[Key, Calls]:
    """The calls of a trace by key."""
    calls: dict[Key, Calls] = defaultdict(Calls)
    for call in step:
        op = call.op
        if op.name in HOST_CALLS or not ops.launches(op) or op.base in PARTS:
            continue
        same = calls[key_of(op)]
        same.count += 1
        same.ops.append(op)
    return dict(calls)


def key_of(op: Op) -> Key:
    """The key of an op of a trace."""
    if op.name in FUSED:
        return fused_key(op)
    return library_key(op.base, [tuple(t.shape) for t in op.inputs])


def fused_key(op: Op) -> Key:
    """The kind of a fused kernel, its points, the length of its sums, and its bytes."""
    figures = ("points", "reduction", "read_bytes", "write_bytes")
    return ("fused", op.name, *(op.attr(name) for name in figures))


def library_key(name: str, shapes: Shapes) -> Key:
    """The name of a library call, and the sizes of its product or the shapes of its tensors."""
    if name == "aten.linear" and len(shapes) > 1:
        rows = math.prod(shapes[0][:-1])
        name = "aten.addmm" if len(shapes) > 2 and shapes[2] else "aten.mm"
        return (name, 1, rows, shapes[1][0], shapes[1][1])
    if name in PRODUCTS and len(shapes) > PRODUCTS[name] + 1:
        a, b = shapes[PRODUCTS[name] :][:2]
        return (name, math.prod(a[:-2]), a[-2], b[-1], a[-1])
    if name.startswith((*LISTS, RECURRENT)):
        return (name,)
    if name == "aten.lstm":
        return (RECURRENT,)
    # An op within the outermost one has fewer tensors.
    most = 1 if name in MAIN or MAIN.get(name, name) in MAIN.values() else 3
    return (MAIN.get(name, name), *[shape for shape in shapes if shape][:most])


def _key(kernel: Row, row: Row) -> Key | None:
    op = _fused(kernel, row)
    if op is not None:
        return fused_key(op)
    if not kernel["op"]:
        return None
    return library_key(kernel["op"][0].replace("::", "."), _shapes(kernel["op"][1]))


def _fused(kernel: Row, row: Row) -> Op | None:
    op = op_of(row["ops"].get(kernel["name"], "none"))
    return op if op is not None and op.name in FUSED else None


def _times(key: Key, run: list[Row]) -> int:
    """How many calls launched these kernels, which ran one after the other.

    Of library calls, only products follow equal ones directly. A product runs the kernel that takes
    most of its time once.
    """
    if key[0] == "fused":
        return len(run)
    if key[0] not in PRODUCTS:
        return 1
    time_us: Counter[str] = Counter()
    for kernel in run:
        time_us[kernel["name"]] += kernel["us"]
    (longest, _), *_ = time_us.most_common(1)
    return sum(kernel["name"] == longest for kernel in run)


def _shapes(given: Iterable[Any]) -> Shapes:
    """Shapes as the profiler writes them; it writes a list of tensors as a list of shapes."""
    return [tuple(shape) for shape in given if all(isinstance(side, int) for side in shape)]
