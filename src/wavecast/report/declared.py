"""What a class declares about its attributes: types, and the texts under them that say the meaning.

A result is described once, by its class. `Prediction.low_s: float | None` with its docstring is a
column of a table, a key in JSON, and a property of a JSON schema.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from wavecast.report.meanings import MEANINGS


class Declared(NamedTuple):
    """The type and the meaning of an attribute."""

    kind: Any
    meaning: str = ""


UNDECLARED = Declared(Any)


@cache
def attributes(kind: type) -> Mapping[str, Declared]:
    """The attributes, properties and methods of a class, those of its bases included."""
    found: dict[str, Declared] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ != "builtins":
            found |= dict(_own(base))
    return found


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
    declared, optional = Declared(kind), False
    for name in path.split("."):
        inner = without_none(declared.kind)
        optional |= inner is not declared.kind
        declared = (
            attributes(inner).get(name, UNDECLARED) if isinstance(inner, type) else UNDECLARED
        )
    if optional and declared.kind is not Any:
        declared = declared._replace(kind=declared.kind | None)
    return declared


def without_none(kind: Any) -> Any:
    """A type without `None`, if it is a choice of that and one other."""
    if get_origin(kind) in (Union, types.UnionType):
        others = [one for one in get_args(kind) if one is not types.NoneType]
        return others[0] if len(others) == 1 else kind
    return kind


def described(name: str, declared: Declared) -> str:
    """The meaning of a field in JSON: its own, or what its name means everywhere."""
    meaning = declared.meaning or MEANINGS.get(name, "")
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
    found = {}
    for statement, after in pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(statement, ast.AnnAssign) and is_text:
            name = getattr(statement.target, "id", "")
            found[name] = _first(inspect.cleandoc(str(after.value.value)))
    return found


def _first(text: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(text.split("\n\n")[0].split())
