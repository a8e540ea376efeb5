"""The run of a training script: which step was traced, and what ran outside of it."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from wavecast.report import units
from wavecast.report.fields import Described, Field, columns, describe, output, some
from wavecast.report.memory import AdvisedMemory
from wavecast.report.priced_steps import PREDICTED
from wavecast.report.tables import line, table
from wavecast.traces.script import Loading, ScriptPart, ScriptRun
from wavecast.traces.step import Trace

describe(
    ScriptPart,
    Field("name", title="outside of the step"),
    Field("calls", title="calls"),
    Field("flops", title="FLOPs"),
)
describe(
    Loading,
    Field("seconds", title="one batch"),
    Field("batches", title="batches of a step"),
    Field("workers", title="workers"),
    Field("step_s", title="a step's batches"),
)
_NAMES = (
    *("line", "step", "steps", "equal", "choice", "once", "holds", "left_out", "loading"),
    "confined",
)
_SCRIPT = Described(ScriptRun, some(Field("name", "script"), *_NAMES))
"""The fields of a script's run without those of its trace."""
describe(
    ScriptRun,
    Field("name", "script", title="script"),
    Field("", "summary", title="step"),
    *_NAMES,
    "trace",
    parts="once",
)


_WEAKER = (
    "this kernel cannot confine the script (Linux 6.2 can): Python's functions on files were "
    "redirected, but programs and libraries in C may have written files"
)

RESULT = output(
    "The step of a script, and its prediction, its memory (--memory) or its work.",
    Field("script", kind=_SCRIPT, meaning="The script, and which of its steps was traced."),
    Field("", "predicted", kind=PREDICTED, inline=True, optional=True),
    Field("memory", kind=[AdvisedMemory], optional=True, meaning="The memory on each GPU."),
    Field("", "trace", kind=Trace, inline=True, optional=True),
)


def result_record(run: ScriptRun, **result: Any) -> dict[str, Any]:
    """The run of a script as plain data, with what was predicted of its step."""
    return RESULT.record({"script": _SCRIPT.record(run), **result})


def script_run(run: ScriptRun, step_s: float | None = None) -> RenderableType:
    """Which step was traced and why, what it has, and what is not in it.

    Args:
        run: the run.
        step_s: the shortest predicted time of a step. None if none was predicted.
    """
    first, *further = found_step(run)
    parts: list[RenderableType] = [line(first, "bold"), *map(line, further)]
    if not run.confined:
        parts.append(line(_WEAKER, "yellow"))
    if run.loading is not None:
        parts.append(line(_loading(run.loading, step_s), _style(run.loading, step_s)))
    parts.append("")
    return Group(*parts, table(columns(run.once)), "") if run.once else Group(*parts)


def found_step(run: ScriptRun) -> list[str]:
    """Which step of a script was found and why, and what it has, as lines of text."""
    lines = [f"{run.script}: {run.summary}", f"one step: {run.holds}"]
    lines += [f"left out: {text}" for text in run.left_out]
    if run.largest is not None:
        lines.append("memory: that of the step that needs most of those that ran")
    return lines


def _is_slow(loading: Loading, step_s: float | None) -> bool:
    return step_s is not None and loading.step_s > step_s


def _style(loading: Loading, step_s: float | None) -> str:
    return "yellow" if _is_slow(loading, step_s) else ""


def _loading(loading: Loading, step_s: float | None) -> str:
    """How long loading took, and whether the GPU would wait for it."""
    took = (
        f"loading: a batch took {units.duration(loading.seconds)} here, while tracing, in one "
        "process"
    )
    if loading.workers:
        took += f"; with the script's {loading.workers} workers, one is ready every "
        took += units.duration(loading.seconds / loading.workers)
    if _is_slow(loading, step_s):
        return f"{took}: longer than the predicted step, so the GPU may wait for data"
    return f"{took} (not a part of the predicted step)"
