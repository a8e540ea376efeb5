"""How well are workspaces predicted? The suite's steps on our H200, each family left out.

    python -m lab score memory workspaces

For each model family the constants are fitted without it. Then the workspaces of its steps are
predicted from the ops of its measured traces. Two quantities are compared with the measured ones:
the peak of all workspaces (as TBD counts it), and the allocator's peak when the measured workspaces
are replaced by predicted ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lab.fit.workspaces import GPU, fit, observations, traces
from lab.pages import heading
from wavecast import device
from wavecast.footprint.memory import peak_bytes
from wavecast.footprint.workspaces import Constants, with_workspaces
from wavecast.report.units import memory
from wavecast.traces.step import Op, Role, Trace

FAMILIES = {
    **dict.fromkeys(("vgg16", "vgg19"), "vgg"),
    **dict.fromkeys(("bert-base", "bert-large"), "bert"),
    **dict.fromkeys(("gpt2", "gpt2-medium"), "gpt2"),
    **dict.fromkeys(("googlenet", "inception-v3"), "inception"),
}
"""The family of models that share layers with others; any other model is a family by itself."""


@dataclass(frozen=True)
class WorkspaceRow:
    """The measured and predicted workspace and peak of one step, in bytes."""

    model: str
    strict: bool
    """Whether the step has convolutions in float32 without TF32."""
    measured: int
    predicted: int
    peak: int
    predicted_peak: int


def family(model: str) -> str:
    """The family of a model; its members are left out together."""
    return FAMILIES.get(model, model)


def compare() -> list[WorkspaceRow]:
    """Every step, predicted with constants fitted without its family."""
    measured = list(traces())
    seen = observations(measured)
    gpu = device(GPU)
    fits: dict[str, Constants] = {}
    for name in {family(model) for model, _ in measured}:
        others: dict[Op, int] = {}
        for model, ops in seen.items():
            if family(model) != name:
                others |= ops
        fits[name] = fit(others, gpu)
    return [_row(model, trace, fits[family(model)]) for model, trace in measured]


def _row(model: str, trace: Trace, constants: Constants) -> WorkspaceRow:
    tensors = tuple(a for a in trace.allocations if a.role is not Role.WORKSPACE)
    bare = replace(trace, allocations=tensors)
    predicted = with_workspaces(bare, device(GPU), constants)
    return WorkspaceRow(
        model,
        any(op.attr("precision") == "ieee" and "conv" in op.name for op in trace.counts),
        workspace_bytes(trace),
        workspace_bytes(predicted),
        peak_bytes(trace.allocations),
        peak_bytes(predicted.allocations),
    )


def workspace_bytes(trace: Trace) -> int:
    """The peak of the memory that workspaces take."""
    return peak_bytes(a for a in trace.allocations if a.role is Role.WORKSPACE)


def table(rows: Sequence[WorkspaceRow]) -> str:
    """A line for each model, and lines for groups of steps and for all."""
    lines = [
        *heading("model | steps | workspace | mean error | worst | mean error of the peak | worst")
    ]
    for model in dict.fromkeys(row.model for row in rows):
        lines.append(_line(model, [row for row in rows if row.model == model]))
    strict = [row for row in rows if row.strict]
    others = [row for row in rows if not row.strict]
    lines.append(_line("**convolutions in strict float32**", strict))
    lines.append(_line("**all others**", others))
    lines.append(_line("**all**", rows))
    errors = [abs(row.predicted / row.measured - 1) for row in rows]
    return (
        "\n".join(lines) + f"\n\nThe median error of all steps is {statistics.median(errors):.1%}."
    )


def _line(name: str, rows: Iterable[WorkspaceRow]) -> str:
    chosen = list(rows)
    errors = [row.predicted / row.measured - 1 for row in chosen]
    peaks = [row.predicted_peak / row.peak - 1 for row in chosen]
    largest = memory(max(row.measured for row in chosen))
    cells = (_mean(errors), _worst(errors), _mean(peaks), _worst(peaks))
    return f"| {name} | {len(chosen)} | up to {largest} | {' | '.join(cells)} |"


def _mean(errors: Sequence[float]) -> str:
    return f"{statistics.mean(map(abs, errors)):.1%}"


def _worst(errors: Sequence[float]) -> str:
    return f"{max(errors, key=abs):+.0%}"
