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
