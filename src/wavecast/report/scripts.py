"""The run of a training script: which step was traced, and what ran outside of it."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group, RenderableType

from wavecast.report import units
from wavecast.report.fields import Described, Field, columns, describe, output, some
from wavecast.report.memory import AdvisedMemory
from wavecast.report.priced_steps import PREDICTED
from wavecast.report.tables import headed, line, table
from wavecast.steps.prediction import Prediction
from wavecast.traces.script import LoaderTime, Loading, OwnTime, ScriptLength, ScriptPart, ScriptRun
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
    Field("timed"),
)
describe(
    LoaderTime,
    Field("seconds", title="a batch every"),
    Field("cpu_s", title="CPU time"),
    Field("batches", title="batches"),
    Field("workers", title="workers"),
    Field("cores", title="cores"),
)
describe(OwnTime, Field("seconds", title="own Python"), Field("line", title="at"))
describe(
    ScriptLength,
    Field("source", title="source"),
    Field("epochs", title="epochs"),
    Field("batches", title="batches of an epoch"),
    Field("steps", title="steps"),
)
_NAMES = (
    *("line", "step", "steps", "equal", "choice", "once", "holds", "left_out", "loading"),
    *("own_time", "length", "confined"),
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


def script_run(
    run: ScriptRun, fastest: Prediction | None = None, cores: int | None = None
) -> RenderableType:
    """Which step was traced and why, what it has, and what is not in it.

    Args:
        run: the run.
        fastest: the prediction of the shortest step. None if none was predicted.
        cores: the cores of the machine that will load the data. None for those of this one.
    """
    first, *further = found_step(run)
    parts: list[RenderableType] = [line(first, "bold"), *map(line, further)]
    if not run.confined:
        parts.append(line(_WEAKER, "yellow"))
    if run.loading is not None:
        loading = run.loading if cores is None else run.loading.on_cores(cores)
        parts.append(line(_loading(loading, fastest), _style(loading, fastest)))
    if run.own_time is not None:
        is_slow = fastest is not None and run.own_time.seconds > fastest.seconds
        parts.append(line(_own_time(run.own_time, is_slow), "yellow" if is_slow else ""))
    parts.append("")
    return Group(*parts, table(columns(run.once)), "") if run.once else Group(*parts)


def found_step(run: ScriptRun) -> list[str]:
    """Which step of a script was found and why, and what it has, as lines of text."""
    holds = headed(run.holds, [("", run.trace)])
    lines = [f"{run.script}: {run.summary}", f"one step: {holds}"]
    lines += [f"left out: {text}" for text in run.left_out]
    if run.length is not None:
        lines.append(f"{_length(run.length)}; {run.steps} of them ran here")
    if run.largest is not None:
        lines.append("memory: that of the step that needs most of those that ran")
    return lines


def in_total(run: ScriptRun, *, averaged: bool) -> list[str]:
    """What the time of a whole training has of steps that differ, or has not.

    Args:
        run: the run.
        averaged: whether that time is the mean of all steps after which the steps come again.
    """
    if averaged:
        return [f"the time is that of {run.cycle_steps} steps in turn, of which one is shown above"]
    parts = [part.name for part in run.once if part.name.startswith("evaluation")]
    return [f"not in the time: {text}" for text in (*run.left_out, *parts)]


def _length(length: ScriptLength) -> str:
    """How long the script trains, and where it says so."""
    found = []
    if length.epochs is not None:
        found.append(f"{length.epochs:g} epochs")
    if length.batches is not None:
        found.append(f"{units.count(length.batches)} batches in an epoch")
    if length.steps is not None:
        found.append(f"{units.count(length.steps)} steps in all")
    return f"length: {', '.join(found)} ({length.source})"


def _is_slow(loading: Loading, fastest: Prediction | None) -> bool:
    return fastest is not None and loading.step_s > fastest.seconds


def _style(loading: Loading, fastest: Prediction | None) -> str:
    return "yellow" if _is_slow(loading, fastest) else ""


def _loading(loading: Loading, fastest: Prediction | None) -> str:
    """How long loading took, and whether the GPU would wait for it."""
    if loading.timed is not None:
        return _timed(loading, loading.timed, fastest)
    took = (
        f"loading: a batch took {units.duration(loading.seconds)} here, while tracing, in one "
        "process"
    )
    if loading.workers:
        took += f"; with the script's {loading.workers} workers, one is ready every "
        took += units.duration(loading.seconds / loading.workers)
    if _is_slow(loading, fastest):
        return f"{took}: longer than the predicted step, so the GPU may wait for data"
    return f"{took} (not a part of the predicted step)"


def _own_time(own: OwnTime, is_slow: bool) -> str:
    """How long the script's own Python took, and whether the GPU would wait for it."""
    took = (
        f"own code: Python between ops took {units.duration(own.seconds)} of a step here, most of "
        f"it at {own.line}"
    )
    if is_slow:
        return f"{took}: longer than the predicted step, so the GPU may wait for it"
    return f"{took} (not a part of the predicted step)"


def _timed(loading: Loading, timed: LoaderTime, fastest: Prediction | None) -> str:
    """How fast the loader is with its workers, and whether that is enough."""
    who = f"{timed.workers} workers" if timed.workers else "the training process itself"
    took = (
        f"loading: {who} on {timed.cores} cores have a batch ready every "
        f"{units.duration(timed.seconds)} ({units.duration(timed.cpu_s)} of CPU time)"
    )
    if fastest is None:
        return took
    step_s, waits = fastest.seconds, bool(fastest.trace.arrays.syncs)
    needed = f"{took}; the fastest GPU needs one every {units.duration(step_s / loading.batches)}"
    iteration_s = loading.iteration_s(step_s, fastest.host_s, waits=waits)
    if iteration_s <= step_s:
        return f"{needed}, so it does not wait for data"
    enough = math.ceil(timed.cpu_s * loading.batches / step_s)
    many = f"{enough} {'worker' if enough == 1 else 'workers'} on as many cores would be enough"
    if not timed.workers:
        needed += ", and the training process issues no ops while it loads"
    return f"{needed}, so an iteration takes {units.duration(iteration_s)}; {many}"
