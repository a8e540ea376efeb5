"""What commands print with `--json` where it is more than one result or a list of them."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavecast.analysis.evaluation import LearnedStep
from wavecast.errors import UnknownName
from wavecast.hardware.devices import Fact
from wavecast.hardware.kept_hosts import KeptHost
from wavecast.report.fields import Described, Field, described, output, plain, schema_of
from wavecast.runs.run import Imported, Run
from wavecast.traces.step import Trace

TRACE = output(
    "The calls and the work of a traced or measured step.",
    Field("target", kind=str, meaning="The step."),
    Field("", "trace", kind=Trace, inline=True),
)
CALIBRATION = output(
    "A calibrated host, with the measured facts of its GPU; null where there is no GPU.",
    Field("host", kind=KeptHost, meaning="The host, with the file in which it is kept."),
    Field("gpu", kind=str | None, meaning="The id of the GPU."),
    Field("file", kind=str | None, meaning="The file with the facts of the GPU."),
    Field("measured", kind=Mapping[str, Fact] | None, meaning="What was measured on the GPU."),
)
LEARNING = output(
    "What measured steps and ops teach about predictions for their GPU.",
    Field("gpu", kind=str, meaning="The id of the GPU."),
    Field("steps", kind=Sequence[LearnedStep], meaning="The steps, each judged by the others."),
    Field("ops", kind=int, meaning="The number of ops of single layers that the file keeps."),
    Field("file", kind=str, meaning="The file that keeps it."),
)


@dataclass(frozen=True)
class TimedLayers:
    """The layers that were timed into a file."""

    kind: str
    """The kind of layer."""
    file: str
    """The file with their times."""
    rows: int
    """How many layers it has."""


@dataclass(frozen=True)
class StoredRuns:
    """What importing files of runs into a store did."""

    store: str
    """The store."""
    files: Sequence[Imported]
    """What importing each file did."""
    warnings: Sequence[str]
    """What is doubtful about the files."""
    failed: Sequence[str]
    """Why some files could not be read."""


@dataclass(frozen=True)
class ReadRuns:
    """The runs of some files, which were not stored."""

    runs: Sequence[Run]
    """The runs."""
    warnings: Sequence[str]
    """What is doubtful about the files."""
    failed: Sequence[str]
    """Why some files could not be read."""


@dataclass(frozen=True)
class ExportedRuns:
    """The runs that were written into a file."""

    file: str
    """The file."""
    runs: int
    """How many runs it has."""
    store: str
    """The store that they are from."""


@dataclass(frozen=True)
class NetworkCard:
    """The card of a fitted network: on what it was fitted, and how wrong it is."""

    kind: str
    """The kind of layer."""
    target: str
    """The passes whose time it predicts."""
    fitted: str
    """The day of the fit."""
    data: str
    """Where the times are from."""
    rows: int
    """How many layers it was fitted on."""
    gpus: Sequence[str]
    """The GPUs that the layers ran on."""
    vendors: Sequence[str]
    """The vendors of these GPUs."""
    width: int
    """Neurons of a hidden layer."""
    depth: int
    """Hidden layers."""
    epochs: int
    """Passes over the rows."""
    batch: int
    """Rows of a batch."""
    rate: float
    """The learning rate."""
    late_rate: float
    """The learning rate of the last epochs."""
    late_after: int
    """The epochs before the learning rate falls."""
    decay: float
    """The weight decay."""
    seed: int
    """The seed of the random numbers."""
    least_s: float
    """The shortest time of a row, in seconds."""
    low: float
    """The low end of the range, as a factor."""
    high: float
    """The high end of the range, as a factor."""
    train_error: float
    """The mean error on the rows, in percent."""
    configuration_error: float
    """That on layers left out, in percent."""
    left_out: Mapping[str, float]
    """That on each GPU left out, in percent."""
    ranges: Mapping[str, Sequence[float]]
    """The ends of each feature."""


NETWORK_CARD = described(NetworkCard)


# The JSON schemas of what commands print with `--json`, and the mark that names them.
#
# A schema is made from the declared fields of what a command prints, and has the command's name.
# Its version grows when a key goes away or means something else; new keys may come at any time.


MARK = "schema"
"""The key that names the schema, in an object or in each object of a list."""

_OUTPUTS = {
    "advise": "advice:StepAdvice",
    "calibrate": "outputs:CALIBRATION outputs:LEARNING [devices:KeptHost]",
    "campaign-export": "evaluations:EXPORTED",
    "campaign-resume": "evaluations:CampaignRun",
    "campaign-run": "evaluations:CampaignRun",
    "campaign-status": "[evaluations:CampaignStatus]",
    "capacity": "plans:CAPACITY",
    "check": "comparisons:CHECKED comparisons:UPDATED",
    "choose": "selections:CHOSEN",
    "clusters": "[devices:Cluster]",
    "collect": "outputs:TimedLayers",
    "compare": "comparisons:COMPARED comparisons:SIDE_BY_SIDE",
    "design": "run_models:Design",
    "devices": "[devices:Device]",
    "doctor": "devices:EXAMINATION",
    "evaluate": "evaluations:PairEvaluation",
    "extrapolate": "[predictions:GpuLargerBatch]",
    "fit": "run_models:FITTED outputs:NetworkCard",
    "fits": "[memory:FITS]",
    "import": "outputs:TRACE",
    "layers-fit": "run_models:LayerModel",
    "layers-predict": "run_models:PREDICTED",
    "max-batch": "[memory:GpuLargestBatch]",
    "measure": "outputs:TRACE",
    "memory": "[memory:AdvisedMemory]",
    "parallelize": "[parallel:TargetLayout]",
    "plan": "plans:JobsPlan",
    "predict": "predictions:PREDICTED predictions:COMPILED",
    "prices": "costs:OFFERS",
    "profile": "[profiles:Profile]",
    "run": "profiles:RESULT",
    "runs-add": "outputs:StoredRuns outputs:ReadRuns",
    "runs-campaign": "run_models:CAMPAIGN",
    "runs-export": "outputs:ExportedRuns",
    "runs-list": "[run_models:Run]",
    "runs-predict": "run_models:FORECAST",
    "scale": "parallel:SCALING",
    "simulate": "plans:SIMULATED",
    "suite-list": "[suites:Benchmark]",
    "suite-observe": "suites:OBSERVED",
    "suite-predict": "[suites:SuiteResult]",
    "suite-run": "[suites:SuiteResult]",
    "suite-show": "[suites:SuiteResult]",
    "suite-train": "[suites:small_trainings] [suites:trainings_to_quality]",
    "trace": "outputs:TRACE",
}
"""What each command prints: results by the module that describes them, `results` or this one; lists
in brackets."""
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
    command = "-".join(name.split())
    names = schema_names()
    if command not in names:
        near = difflib.get_close_matches(command, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        raise UnknownName(f"there is no schema {name!r}; {hint}")
    mark = mark_of(command)
    forms = [_form(output, mark) for output in _OUTPUTS[command].split()]
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
    home = module if module == "outputs" else f"results.{module}"
    named = getattr(importlib.import_module(f"wavecast.report.{home}"), name)
    kind = named() if inspect.isfunction(named) else named
    schema = schema_of(kind)
    schema["required"] = [MARK, *schema["required"]]
    schema["properties"] = {
        MARK: {"description": "The name and version of this schema.", "const": mark},
        **schema["properties"],
    }
    about = kind.about if isinstance(kind, Described) else ""
    if not about:
        about = inspect.getdoc(kind.kind if isinstance(kind, Described) else kind) or ""
        about = about.split("\n\n")[0].replace("\n", " ")
    if output.startswith("["):
        return {"description": about, "type": "array", "items": schema}
    return {"description": about, **schema}


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
