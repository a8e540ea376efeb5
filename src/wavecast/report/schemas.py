"""The JSON schemas of what commands print with `--json`, and the mark that names them.

A schema is made from the declared fields of what a command prints, and has the command's name. Its
version grows when a key goes away or means something else; new keys may come at any time.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from wavecast.errors import UnknownName
from wavecast.report.fields import Described, plain, schema_of

MARK = "schema"
"""The key that names the schema, in an object or in each object of a list."""

_OUTPUTS = {
    "advise": "advice:StepAdvice",
    "calibrate": "outputs:CALIBRATION outputs:LEARNING [devices:KeptHost]",
    "campaign-export": "campaigns:EXPORTED",
    "campaign-resume": "campaigns:CampaignRun",
    "campaign-run": "campaigns:CampaignRun",
    "campaign-status": "[campaigns:CampaignStatus]",
    "capacity": "capacities:CAPACITY",
    "check": "checks:CHECKED checks:UPDATED",
    "choose": "selections:CHOSEN",
    "clusters": "[clusters:Cluster]",
    "collect": "outputs:TimedLayers",
    "compare": "comparisons:COMPARED side_by_side:SIDE_BY_SIDE",
    "design": "run_models:Design",
    "devices": "[devices:Device]",
    "doctor": "doctor:EXAMINATION",
    "evaluate": "evaluations:PairEvaluation",
    "extrapolate": "[larger_batches:GpuLargerBatch]",
    "fit": "run_models:FITTED outputs:NetworkCard",
    "fits": "[memory:FITS]",
    "import": "outputs:TRACE",
    "layers-fit": "layers:LayerModel",
    "layers-predict": "layers:PREDICTED",
    "max-batch": "[memory:GpuLargestBatch]",
    "measure": "outputs:TRACE",
    "memory": "[memory:AdvisedMemory]",
    "parallelize": "[layouts:TargetLayout]",
    "plan": "plans:JobsPlan",
    "predict": "priced_steps:PREDICTED priced_steps:COMPILED",
    "prices": "prices:OFFERS",
    "profile": "[profiles:Profile]",
    "run": "scripts:RESULT",
    "runs-add": "outputs:StoredRuns outputs:ReadRuns",
    "runs-campaign": "run_splits:CAMPAIGN",
    "runs-export": "outputs:ExportedRuns",
    "runs-list": "[runs:Run]",
    "runs-predict": "run_models:FORECAST",
    "scale": "parallel:SCALING",
    "simulate": "simulations:SIMULATED",
    "suite-list": "[suites:Benchmark]",
    "suite-observe": "observations:OBSERVED",
    "suite-predict": "[suites:SuiteResult]",
    "suite-run": "[suites:SuiteResult]",
    "suite-show": "[suites:SuiteResult]",
    "suite-train": "[suites:small_trainings] [suites:trainings_to_quality]",
    "trace": "outputs:TRACE",
}
"""What each command prints: results by the module that describes them, lists in brackets."""
_VERSIONS = {"calibrate": 2, "parallelize": 3, "predict": 2, "run": 2, "scale": 2}
"""The versions of schemas that are not the first."""


def schema_names() -> tuple[str, ...]:
    """The names of all schemas: those of commands, with `-` for blanks."""
    return tuple(sorted(_OUTPUTS))


def schema(name: str) -> dict[str, Any]:
    """The schema of what a command prints.

    Raises:
        UnknownName: no command of this name prints JSON.
    """
    wanted = "-".join(name.split())
    names = schema_names()
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        raise UnknownName(f"there is no schema {name!r}; {hint}")
    mark = mark_of(wanted)
    forms = [_form(output, mark) for output in _OUTPUTS[wanted].split()]
    about = dict.fromkeys(form.pop("description") for form in forms)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": mark,
        "description": " Or: ".join(about),
        **(forms[0] if len(forms) == 1 else {"oneOf": forms}),
    }


def schema_text(name: str) -> str:
    """The schema of what a command prints, as JSON."""
    return json.dumps(schema(name), indent=1) + "\n"


def _form(output: str, mark: str | None) -> dict[str, Any]:
    module, name = output.strip("[]").split(":")
    named = getattr(importlib.import_module(f"wavecast.report.{module}"), name)
    kind = named() if inspect.isfunction(named) else named
    made = schema_of(kind)
    made["required"] = [MARK, *made["required"]]
    made["properties"] = {
        MARK: {"description": "The name and version of this schema.", "const": mark},
        **made["properties"],
    }
    about = kind.about if isinstance(kind, Described) else ""
    if not about:
        about = inspect.getdoc(kind.kind if isinstance(kind, Described) else kind) or ""
        about = about.split("\n\n")[0].replace("\n", " ")
    if output.startswith("["):
        return {"description": about, "type": "array", "items": made}
    return {"description": about, **made}


def mark_of(name: str) -> str | None:
    """What the output of a command says about its schema: "wavecast/predict/1"."""
    return f"wavecast/{name}/{_VERSIONS.get(name, 1)}" if name in schema_names() else None


def marked(value: Any, name: str) -> Any:
    """The results of a command as `--json` prints them: plain data with the name of its schema."""
    value, mark = plain(value), mark_of(name)
    if mark is None:
        return value
    if isinstance(value, Mapping):
        return {MARK: mark, **value}
    if isinstance(value, list):
        return [{MARK: mark, **row} if isinstance(row, Mapping) else row for row in value]
    return value
