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

import dataclasses
import datetime
import importlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin

from wavecast.report import declared, units
from wavecast.report.declared import Declared
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
        found = declared.returned(of) if callable(of) else declared.at_path(kind, of)
        return Declared(self.kind or found.kind, self.meaning or found.meaning)

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
        made: dict[str, Any] = {}
        for field in self.fields:
            if field.name or field.inline:
                value = field.value(result)
                if field.inline:
                    made |= {} if value in (None, ABSENT) else plain(value)
                elif value is not ABSENT:
                    made[field.name] = plain(value)
        refuse_impossible(self.kind.__name__, made)
        return made

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
            said = field.declared(self.kind)
            if field.inline:
                inner = schema_of(declared.without_none(said.kind))
                required += [] if field.optional else inner["required"]
                properties |= inner["properties"]
            elif field.name:
                required += [] if field.optional else [field.name]
                meaning = declared.described(field.name, said)
                kinds = (said.kind, types.NoneType) if field.blank else (said.kind,)
                properties[field.name] = {"description": meaning} | _either(kinds)
        unique = list(dict.fromkeys(required))
        return {"type": "object", "required": unique, "properties": properties}


_DESCRIBED: dict[type, Described] = {}
_HOMES = {
    name: home
    for home, names in {
        "advice": "advice.proposals",
        "checks": "campaigns.checks.checking campaigns.checks.verdicts",
        "comparisons": "analysis.comparison",
        "costs": "planning.cost planning.prices",
        "devices": "doctor hardware.clusters hardware.devices hardware.kept_hosts",
        "evaluations": "analysis.evaluation",
        "memory": "footprint.advice footprint.largest_batch footprint.memory",
        "parallel": "planning.layouts planning.scaling",
        "plans": "planning.schedule.planned",
        "predictions": "analysis.generation analysis.larger_batch",
        "priced_steps": "steps.prediction",
        "profiles": "analysis.profile",
        "run_models": "runs.regression.design runs.regression.end_to_end "
        "runs.regression.extrapolation runs.regression.per_layer runs.run",
        "scripts": "traces.script",
        "selections": "planning.selection",
        "suites": "runs.suite_results suite",
        "traces": "ops.costs predictors.retargeting traces.step",
    }.items()
    for name in names.split()
}
"""The module of this folder that describes the classes of a module, loaded when it is needed."""


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
    made = Described(kind, some(*fields), parts, shown_as, unit)
    _DESCRIBED[kind] = made
    return made


def output(about: str, *fields: Field | str) -> Described:
    """Declare the fields of what a command prints: values by name, each field with its type."""
    return Described(dict, some(*fields), about=about)


def some(*fields: Field | str) -> tuple[Field, ...]:
    """Fields, where a plain name is a field that only JSON has."""
    return tuple(Field(one) if isinstance(one, str) else one for one in fields)


def described(kind: type) -> Described:
    """The fields of results of a type: those of `describe`, else the attributes of a dataclass."""
    home = _HOMES.get(kind.__module__.removeprefix("wavecast."))
    if home is not None:
        importlib.import_module(f"wavecast.report.{home}")
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
        return {str(key): plain(one) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return record(value)
    return [plain(one) for one in value] if isinstance(value, Iterable) else str(value)


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
        return {"type": "string", "enum": [str(one.value) for one in named]}
    if named in _TYPES:
        return {"type": _TYPES[named]}
    if dataclasses.is_dataclass(named):
        return described(named).schema()
    return next((write(inside) for base, write in _WRITTEN if issubclass(named, base)), {})


def _either(options: Sequence[Any]) -> dict[str, Any]:
    """The schema of a choice of types; null is one of them where it may be None."""
    known = [schema_of(one) for one in options if one is not types.NoneType]
    can_be_null = len(known) < len(options)
    if {} in known:
        return {}
    if all(set(one) == {"type"} for one in known):
        named = [one["type"] if isinstance(one["type"], list) else [one["type"]] for one in known]
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
