"""The fields of results: JSON, JSON schemas, tables, Markdown and notebooks are made from them.

A class declares its attributes once: name, type, meaning, and the unit that ends the name. Where a
result shows more, less or otherwise than its attributes, `describe` lists its fields.

```python
describe(
    LargestBatch,
    Field("batch", title="largest batch"),
    Field("limit_bytes", title="available", rank=1),
)
record(answer)  # {"batch": 8, "limit_bytes": 1073741824}
columns([answer])  # the columns of a table: "8", "1.00 GiB"
schema_of(LargestBatch)  # a JSON schema
```
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from wavecast.report import units
from wavecast.report.tables import Column
from wavecast.results import refuse_impossible

Of = str | Callable[[Any], Any]
ABSENT: Any = object()
"""The value of an optional field that JSON leaves out."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a result: where its value is, and where it is shown.

    Its type and meaning are those of the attribute, property, method or function that gives it.
    """

    name: str
    """The key in JSON, and the attribute if `of` is not given. Empty: only tables show it."""
    of: Of = ""
    """A path of attributes such as `device.id`, or a function of the result."""
    title: str | None = None
    """The heading of its column. None: tables do not show it. `{unit}` is what a step counts."""
    rank: int = 0
    """Columns of the highest rank are left out first where the terminal is narrow; 0 stays."""
    text: Callable[[Any], str] | None = None
    """How its value is written. None: in the unit that ends its name."""
    left: bool | None = None
    """Whether its column is aligned to the left. None: as its type is."""
    folds: bool = False
    """Whether long cells continue on a second line."""
    optional: bool = False
    """Whether JSON leaves it out where it is `ABSENT`."""
    inline: bool = False
    """Whether JSON has the fields of its value instead of the value; it needs no name then."""
    absent: str = units.UNKNOWN
    """What tables show where it is None."""
    blank: bool = False
    """Whether an empty text says that it is not known: JSON has null, tables have `?`."""
    drawn: bool = False
    """Whether notebooks draw it as a bar in each row of a table: a number of at least 0."""
    kind: Any = None
    """Its type, where a lambda gives it. `[one]` is a list, `{str: one}` a table of such."""
    meaning: str = ""
    """What it means, where neither its attribute nor its name says so."""

    def value(self, result: Any) -> Any:
        """The value of the field in a result; None if something on the way to it is None."""
        of = self.of or self.name
        if callable(of):
            result = of(result)
        else:
            for name in of.split("."):
                result = _part(result, name, ABSENT if self.optional else None)
            result = result() if isinstance(result, types.MethodType) else result
        return (result or None) if self.blank else result

    def cell(self, value: Any) -> str:
        """The value as tables show it."""
        if value is None:
            return self.absent
        return self.text(value) if self.text else units.text(self.name or str(self.of), value)

    def declared(self, kind: Any) -> Declared:
        """The type and the meaning of the field in results of a type."""
        of = self.of or self.name
        returns = returned(of) if callable(of) else at_path(kind, of)
        return Declared(self.kind or returns.kind, self.meaning or returns.meaning)

    def column(self, rows: Sequence[Any], unit: str = "") -> Column:
        """The field of several results as a column; texts are aligned to the left."""
        values = [self.value(row) for row in rows]
        left = self.left
        if left is None:
            left = any(isinstance(value, str | bool) for value in values)
        title = (self.title or "").replace("{unit}", unit or "samples")
        return Column(title, list(map(self.cell, values)), self.rank, left=left, folds=self.folds)


def _part(whole: Any, name: str, missing: Any) -> Any:
    """An attribute of an object, or a value of a mapping."""
    if whole is None or whole is ABSENT:
        return whole
    return whole.get(name, missing) if isinstance(whole, Mapping) else getattr(whole, name)


@dataclasses.dataclass(frozen=True)
class Described:
    """The fields of results of one type."""

    kind: type
    fields: tuple[Field, ...]
    parts: str = ""
    """The attribute with its parts, such as kernels: notebooks and pandas show a row for each."""
    shown_as: Callable[[Any], Any] | None = None
    """What tables show in place of a result, such as a step with its price."""
    unit: str = ""
    """The path to what a step counts, such as `trace.unit`, for headings."""
    about: str = ""
    """What the results are; empty to take the docstring of their class."""

    def record(self, result: Any) -> dict[str, Any]:
        """A result as JSON takes it: times in seconds, sizes in bytes, unknown is None."""
        values: dict[str, Any] = {}
        for field in self.fields:
            if field.name or field.inline:
                value = field.value(result)
                if field.inline:
                    values |= {} if value in (None, ABSENT) else plain(value)
                elif value is not ABSENT:
                    values[field.name] = plain(value)
        refuse_impossible(self.kind.__name__, values)
        return values

    def records(self, results: Iterable[Any]) -> list[dict[str, Any]]:
        """Several results as JSON takes them."""
        return [self.record(result) for result in results]

    def columns(self, rows: Sequence[Any], unit: str = "") -> list[Column]:
        """Results as the columns of a table: one for each field with a title."""
        if self.unit and not unit:
            unit = Field("", self.unit).value(rows[0])
        return [field.column(rows, unit) for field in self.fields if field.title is not None]

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a record."""
        required: list[str] = []
        properties: dict[str, Any] = {}
        for field in self.fields:
            attribute = field.declared(self.kind)
            if field.inline:
                inner = schema_of(without_none(attribute.kind))
                required += [] if field.optional else inner["required"]
                properties |= inner["properties"]
            elif field.name:
                required += [] if field.optional else [field.name]
                meaning = meaning_of(field.name, attribute)
                kinds = (attribute.kind, types.NoneType) if field.blank else (attribute.kind,)
                properties[field.name] = {"description": meaning} | _either(kinds)
        unique = list(dict.fromkeys(required))
        return {"type": "object", "required": unique, "properties": properties}


_DESCRIBED: dict[type, Described] = {}
_HOMES = {
    name: home
    for home, names in {
        "advice": "advice.proposals",
        "comparisons": "analysis.comparison campaigns.checks.checking campaigns.checks.verdicts",
        "costs": "planning.cost planning.prices",
        "devices": "doctor hardware.clusters hardware.devices hardware.kept_hosts",
        "evaluations": "analysis.evaluation",
        "memory": "footprint.advice footprint.largest_batch footprint.memory",
        "parallel": "planning.layouts planning.scaling",
        "plans": "planning.schedule.planned",
        "predictions": "analysis.generation analysis.larger_batch steps.prediction",
        "profiles": "analysis.profile ops.costs predictors.retargeting traces.script traces.step",
        "run_models": "runs.regression.design runs.regression.end_to_end "
        "runs.regression.extrapolation runs.regression.per_layer runs.run",
        "selections": "planning.selection",
        "suites": "runs.suite_results suite",
    }.items()
    for name in names.split()
}
"""The module of `results` that describes the classes of a module, loaded when it is needed."""


def describe(
    kind: type,
    *fields: Field | str,
    parts: str = "",
    shown_as: Callable[[Any], Any] | None = None,
    unit: str = "",
) -> Described:
    """Declare the fields of results of a type, for every form in which they are shown.

    Args:
        kind: the class of the results.
        fields: the fields in the order of tables; a plain name is a field that only JSON has.
        parts: the attribute with its parts, one row each.
        shown_as: what tables show in place of a result.
        unit: the path to what a step counts, for headings.
    """
    description = Described(kind, some(*fields), parts, shown_as, unit)
    _DESCRIBED[kind] = description
    return description


def output(about: str, *fields: Field | str) -> Described:
    """Declare the fields of what a command prints: values by name, each field with its type."""
    return Described(dict, some(*fields), about=about)


def some(*fields: Field | str) -> tuple[Field, ...]:
    """Fields, where a plain name is a field that only JSON has."""
    return tuple(Field(field) if isinstance(field, str) else field for field in fields)


def described(kind: type) -> Described:
    """The fields of results of a type: those of `describe`, else the attributes of a dataclass."""
    home = _HOMES.get(kind.__module__.removeprefix("wavecast."))
    if home is not None:
        importlib.import_module(f"wavecast.report.results.{home}")
    for base in kind.__mro__:
        if base in _DESCRIBED:
            return _DESCRIBED[base]
    names = [field.name for field in dataclasses.fields(kind)]
    fields = tuple(Field(name, title=units.heading(name)) for name in names)
    return _DESCRIBED.setdefault(kind, Described(kind, fields))


def record(result: Any) -> dict[str, Any]:
    """A result as JSON takes it, by the fields of its type."""
    return described(type(result)).record(result)


def columns(rows: Sequence[Any], unit: str = "") -> list[Column]:
    """Results of one type as the columns of a table; none if there are no results."""
    if not rows:
        return []
    shown = [presented(row) for row in rows]
    return described(type(shown[0])).columns(shown, unit)


def presented(result: Any) -> Any:
    """What tables show in place of a result; most show it as it is."""
    show = described(type(result)).shown_as
    return result if show is None else show(result)


def plain(value: Any) -> Any:
    """A value as JSON takes it: results by their fields, enumerations and dates as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return record(value)
    return [plain(item) for item in value] if isinstance(value, Iterable) else str(value)


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of values of a type; an empty one says nothing."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _either(inside)
    if isinstance(kind, Described):
        return kind.schema()
    if isinstance(kind, list):
        return _array(kind)
    if isinstance(kind, dict):
        return _table(*kind.items())
    named = origin or kind
    if named is Literal:
        return {"type": "string", "enum": list(inside)}
    if not isinstance(named, type):
        return {}
    if issubclass(named, Enum):
        return {"type": "string", "enum": [str(member.value) for member in named]}
    if named in _TYPES:
        return {"type": _TYPES[named]}
    if dataclasses.is_dataclass(named):
        return described(named).schema()
    return next((write(inside) for base, write in _WRITTEN if issubclass(named, base)), {})


def _either(options: Sequence[Any]) -> dict[str, Any]:
    """The schema of a choice of types; null is one of them where it may be None."""
    known = [schema_of(option) for option in options if option is not types.NoneType]
    can_be_null = len(known) < len(options)
    if {} in known:
        return {}
    if all(set(option) == {"type"} for option in known):
        named = [
            option["type"] if isinstance(option["type"], list) else [option["type"]]
            for option in known
        ]
        names = list(dict.fromkeys(name for some_names in named for name in some_names))
        names += ["null"] if can_be_null and "null" not in names else []
        return {"type": names if len(names) > 1 else names[0]}
    known += [{"type": "null"}] if can_be_null else []
    return known[0] if len(known) == 1 else {"anyOf": known}


def _array(inside: Sequence[Any]) -> dict[str, Any]:
    kinds = [kind for kind in inside if kind is not Ellipsis]
    items = schema_of(kinds[0]) if kinds else {}
    return {"type": "array"} | ({"items": items} if items else {})


def _table(inside: Sequence[Any]) -> dict[str, Any]:
    values = schema_of(inside[1]) if len(inside) == 2 else {}
    return {"type": "object"} | ({"additionalProperties": values} if values else {})


def _text(inside: Sequence[Any], **more: str) -> dict[str, Any]:
    return {"type": "string", **more}


_WRITTEN: tuple[tuple[type, Callable[[Sequence[Any]], dict[str, Any]]], ...] = (
    (str, _text),
    (datetime.date, partial(_text, format="date")),
    (Mapping, _table),
    (Iterable, _array),
)


# What a class declares about its attributes: types, and the texts under them that say the meaning.


class Declared(NamedTuple):
    """The type and the meaning of an attribute."""

    kind: Any
    meaning: str = ""


UNDECLARED = Declared(Any)


@cache
def attributes(kind: type) -> Mapping[str, Declared]:
    """The attributes, properties and methods of a class, those of its bases included."""
    by_name: dict[str, Declared] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ != "builtins":
            by_name |= dict(_own(base))
    return by_name


def _own(base: type) -> Iterator[tuple[str, Declared]]:
    names = vars(sys.modules[base.__module__])
    texts = _texts(base)
    for name, annotation in inspect.get_annotations(base).items():
        yield name, Declared(_resolved(annotation, names), texts.get(name, ""))
    for name, member in list(vars(base).items()):
        function = _function(member)
        if function is not None and not name.startswith("_"):
            yield name, returned(function)


def _function(member: object) -> Callable[..., Any] | None:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    return member if isinstance(member, types.FunctionType) else None


def returned(function: Callable[..., Any]) -> Declared:
    """What a function returns, with the first paragraph of its docstring."""
    names = getattr(function, "__globals__", {})
    annotation = getattr(function, "__annotations__", {}).get("return", Any)
    return Declared(_resolved(annotation, names), _first(inspect.getdoc(function) or ""))


def at_path(kind: Any, path: str) -> Declared:
    """The attribute that a path such as `device.id` leads to; it is optional where a part is."""
    attribute, optional = Declared(kind), False
    for name in path.split("."):
        inner = without_none(attribute.kind)
        optional |= inner is not attribute.kind
        attribute = (
            attributes(inner).get(name, UNDECLARED) if isinstance(inner, type) else UNDECLARED
        )
    if optional and attribute.kind is not Any:
        attribute = attribute._replace(kind=attribute.kind | None)
    return attribute


def without_none(kind: Any) -> Any:
    """A type without `None`, if it is a choice of that and one other."""
    if get_origin(kind) in (Union, types.UnionType):
        others = [option for option in get_args(kind) if option is not types.NoneType]
        return others[0] if len(others) == 1 else kind
    return kind


def meaning_of(name: str, attribute: Declared) -> str:
    """The meaning of a field in JSON: its own, or what its name means everywhere."""
    meaning = attribute.meaning or MEANINGS.get(name, "")
    return re.sub(r"\bNone\b", "null", meaning)


def _resolved(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The type that an annotation names; anything, if it cannot be found."""
    if not isinstance(annotation, str):
        return annotation
    holder = type("holder", (), {"__annotations__": {"of": annotation}})
    try:
        return get_type_hints(holder, globalns=dict(names))["of"]
    except NameError:
        return Any


def _texts(base: type) -> dict[str, str]:
    """The texts under the attributes of a class; none where its source is not at hand."""
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
    except (OSError, TypeError, ValueError):
        return {}
    body = getattr(tree, "body", [])
    texts = {}
    for statement, after in pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(statement, ast.AnnAssign) and is_text:
            name = getattr(statement.target, "id", "")
            texts[name] = _first(inspect.cleandoc(str(after.value.value)))
    return texts


def _first(text: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(text.split("\n\n")[0].split())


# What names of fields mean everywhere, where the attribute of a result does not say more.


MEANINGS = {
    "after": "The step as it is now.",
    "aliases": "Other names.",
    "architecture": "The architecture of the GPU.",
    "batch": "The samples of a batch.",
    "before": "The step as it was.",
    "bound_by": "What limits the step: gpu, host or both.",
    "budget_s": "The GPU time that the runs may take, in seconds.",
    "by_kind": "The work of each kind of op.",
    "by_phase": "The work of each phase.",
    "calls": "How many calls of ops there are.",
    "checkpoint_s": "The part of the time in checkpoints, in seconds.",
    "choices": "The verdicts on which GPU is the best choice.",
    "cost_s": "The GPU time that the runs take, in seconds.",
    "cpu_utilisation": "The busy share of the host's cores, from 0 to 1.",
    "criterion": "What the design is good at: D or V.",
    "default_batch": "The batch that is used if none is given.",
    "device_id": "The id of the GPU.",
    "domain": "What the model is for.",
    "dynamic_bytes": "Optimizer state, temporary tensors and weight copies, in bytes.",
    "feature": "What the coefficient is multiplied by.",
    "feature_maps_bytes": "Activations at their peak, in bytes.",
    "figures": "The verdict on each figure of the step.",
    "fits": "Whether the step fits in the GPU's memory.",
    "flops": "Floating-point operations; a multiply-add counts two.",
    "fp32_utilisation": "The share of the peak FP32 rate while the GPU is busy, from 0 to 1.",
    "framework": "The framework and its version.",
    "gpu": "The id of the GPU.",
    "gpu_s": "The time in which the GPU is busy, in seconds.",
    "gpu_utilisation": "The share of the step in which the GPU is busy, from 0 to 1.",
    "gpus": "The number of GPUs.",
    "high": "The high end of the range; null where there is no range.",
    "high_s": "The high end of the range, in seconds; null where there is no range.",
    "host_s": "The time that the host needs to issue the step, in seconds.",
    "id": "The id, as commands take it.",
    "iterations": "The number of iterations.",
    "low": "The low end of the range; null where there is no range.",
    "low_s": "The low end of the range, in seconds; null where there is no range.",
    "measure": "What the quality is.",
    "measured": "What was measured, with the source of each number.",
    "memory_bytes": "The memory of the GPU, in bytes.",
    "model": "The model.",
    "module": "The module that calls it.",
    "name": "The name.",
    "needed": "The least quality that counts as learned.",
    "network": "The network.",
    "notes": "What a reader should know, in whole sentences.",
    "offer": "The offer whose price was used; null without one.",
    "outcome": "The verdict.",
    "peak_bytes": "The peak of allocated memory, in bytes.",
    "precision": "fp32, tf32, bf16 or fp16.",
    "processor": "The processor, as the system names it.",
    "ranks": "The GPUs of the stage.",
    "reached": "The quality after the last step.",
    "read_bytes": "Bytes of GPU memory that are read.",
    "reference": "The paper or the code that it is from.",
    "remarks": "What a reader should know, in whole sentences.",
    "reserved_bytes": "The memory that torch's allocator reserves, in bytes.",
    "runs": "How often it ran.",
    "samples": "Samples of one step; null when unknown.",
    "seconds": "The time of one step, in seconds.",
    "software": "The versions of driver and libraries.",
    "source": "Where it is from.",
    "stage": "The number of the pipeline stage, from 0.",
    "startup_s": "The time before the first step, in seconds.",
    "state": "How it is.",
    "steps": "The steps.",
    "strategy": "How the step is spread over the GPUs.",
    "target": "What was predicted.",
    "task": "What is learned.",
    "tensor_utilisation": "The share of the peak tensor-core rate while the GPU is busy, 0 to 1.",
    "throughput_per_s": "Samples, or what `unit` names, in a second.",
    "title": "The name of the model in words.",
    "unit": "What is counted as samples.",
    "validation_s": "The part of the time in validations, in seconds.",
    "value": "The value.",
    "vendor": "Who makes it.",
    "weight_gradients_bytes": "Gradients of weights at their peak, in bytes.",
    "weights_bytes": "Weights at their peak, in bytes.",
    "what": "What was looked at.",
    "workspace_bytes": "Workspaces of kernels at their peak, in bytes.",
    "written_bytes": "Bytes of GPU memory that are written.",
}
