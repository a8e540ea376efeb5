"""The run of a training script: which step was traced, and what ran outside of it."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from wavecast.report.fields import Described, Field, columns, describe, output, some
from wavecast.report.memory import AdvisedMemory
from wavecast.report.priced_steps import PREDICTED
from wavecast.report.tables import line, table
from wavecast.traces.script import ScriptPart, ScriptRun
from wavecast.traces.step import Trace

describe(
    ScriptPart,
    Field("name", title="outside of the step"),
    Field("calls", title="calls"),
    Field("flops", title="FLOPs"),
)
_NAMES = ("line", "step", "steps", "equal", "choice", "once", "confined")
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


def script_run(run: ScriptRun) -> RenderableType:
    """Which step was traced and why, and what ran outside of it."""
    parts = [line(f"{run.script}: {run.summary}", "bold"), ""]
    if not run.confined:
        parts[1:1] = [line(_WEAKER, "yellow")]
    return Group(*parts, *([table(columns(run.once)), ""] if run.once else []))
