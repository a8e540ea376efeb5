"""How well is the memory of compiled steps predicted? Whole steps, and single convolutions.

    python -m lab score compiled_memory FOLDER

FOLDER has traces that `lab.score.compiled trace` wrote, of as many steps as there are. What was
measured is in measurements/h200/compiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import wavecast
from lab import needs
from lab.measured.compiled import GPU, by_name, lines
from lab.pages import heading
from wavecast.footprint.convolution_workspaces import NAMES, Convolution
from wavecast.footprint.workspaces import Constants, on_tensor_cores, workspaces_of
from wavecast.hardware.devices import device
from wavecast.traces.graphs import GRAPH_LAUNCH
from wavecast.traces.step import Op, Trace

ENDING = ".compiled.json.gz"
NEAR_BYTES = 8192
"""Workspaces that differ by less than this are equal: cuDNN and the allocator align them."""

Row = dict[str, Any]


def traces(folder: Path) -> Iterator[tuple[str, Trace]]:
    """The compiled steps of a folder that were followed, by name."""
    for path in sorted(folder.glob(f"*{ENDING}")):
        step = wavecast.load_trace(path)
        if not any("could not be followed" in note for note in step.notes):
            yield path.name.removesuffix(ENDING), step


def table(folder: Path) -> str:
    """The errors of the peak and of reserved memory of each step, and their means."""
    known, alone = by_name(), {row["step"] for row in lines("allocations")}
    text = [*heading("step | peak measured | peak | reserved")]
    errors: dict[str, list[tuple[float, float]]] = {"eager kernels": [], "CUDA graphs": []}
    for name, step in traces(folder):
        if name not in known:
            continue
        needed, real = wavecast.memory(step, GPU), known[name]["compiled"]
        peak = needed.peak_bytes / real["peak_bytes"] - 1
        reserved = needed.reserved_bytes / real["reserved_bytes"] - 1
        graphed = any(call.op.name == GRAPH_LAUNCH for call in step)
        errors["CUDA graphs" if graphed else "eager kernels"].append((abs(peak), abs(reserved)))
        mark = "" if name in alone else " (1)"
        cells = f"{real['peak_bytes'] / 1e6:,.0f} MB | {peak:+.1%} | {reserved:+.1%}"
        text.append(f"| {name}{mark} | {cells} |")
    for kind, label in (("eager kernels", "steps"), ("CUDA graphs", "steps with CUDA graphs")):
        pairs = errors[kind]
        for what, of in (("mean error", statistics.mean), ("median error", statistics.median)):
            if pairs:
                cells = " | ".join(f"{of(values):.1%}" for values in zip(*pairs, strict=True))
                text.append(f"| **{what}, {len(pairs)} {label}** | | {cells} |")
    return "\n".join(text)


def called(row: Row) -> list[list[int]]:
    """The bytes that each convolution of a recorded step allocated, in order."""
    calls: list[list[int]] = []
    last = None
    for nbytes, place in row["events"]:
        if nbytes < 0:
            continue
        text = row["places"][place]
        if "convolution" in text and text.startswith("graph"):
            if place != last:
                calls.append([])
            calls[-1].append(nbytes)
            last = place
        else:
            last = None
    return calls


def workspace(op: Op, allocated: list[int]) -> int:
    """The largest workspace among what a convolution allocated, its results left out."""
    rest = list(allocated)
    for result in op.outputs:
        if result.nbytes in rest:
            rest.remove(result.nbytes)
    return max(rest, default=0)


def transposed(folder: Path) -> str:
    """How often the workspace of a channels-last convolution without tensor cores is predicted."""
    recorded = {row["step"]: row for row in lines("allocations")}
    gpu, constants = device(GPU), Constants.shipped()
    seen: dict[Op, int] = {}
    for name, step in traces(folder):
        ops = [call.op for call in step if call.op.base in NAMES]
        real = called(recorded[name]) if name in recorded else []
        if len(ops) == len(real):
            seen |= {op: workspace(op, memory) for op, memory in zip(ops, real, strict=True)}
    right = count = 0
    for op, nbytes in seen.items():
        shapes = Convolution.of(op, on_tensor_cores(op, gpu))
        if shapes.source.channels_last and not shapes.tensor and shapes.groups == 1:
            largest = max((w.nbytes for w in workspaces_of(op, gpu, constants)), default=0)
            count += 1
            right += abs(largest - nbytes) < NEAR_BYTES
    return f"channels-last convolutions without tensor cores: {right} of {count} as recorded"


def main(given: Sequence[str] = ()) -> None:
    """Compare the steps of a folder with what was measured."""
    parser = needs.parser(__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(given)
    print(table(args.folder), "\n\n" + transposed(args.folder))
