"""Shortcuts for what all of torch's compiler is built from: nested structures, sets, switches."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from torch.utils import _config_module, _pytree

from wavecast.frameworks.pytorch.compiled.shortcuts import in_place_of

_TREES = "torch.utils._pytree"
_SETS = "torch.utils._ordered_set:OrderedSet"


# Functions that call themselves are no closures here: those would be garbage that only a collection
# finds, and there are a hundred thousand of them in a trace.


def _way_of(value: Any) -> tuple[Any, Any]:
    """The kind of a structure and how torch takes it apart; None instead of that for a leaf."""
    kind: Any = type(value)
    if isinstance(value, tuple) and kind is not tuple and _is_namedtuple(kind):
        kind = _pytree.namedtuple
    return kind, _pytree.SUPPORTED_NODES.get(kind)


@cache
def _is_namedtuple(kind: Any) -> bool:
    return bool(_pytree.is_namedtuple_class(kind))


@in_place_of(_TREES, "tree_flatten", "8961e2f25a32")
def flatten(_original: Any) -> Any:
    """The leaves of a structure, and the structure."""

    def tree_flatten(tree: Any, is_leaf: Any = None) -> tuple[list[Any], Any]:
        leaves: list[Any] = []
        spec = _spec_of(tree, is_leaf, leaves)
        return leaves, spec

    return tree_flatten


def _spec_of(node: Any, is_leaf: Any, leaves: list[Any]) -> Any:
    """Torch's description of a structure, whose leaves are added to a list."""
    kind, way = (None, None) if is_leaf is not None and is_leaf(node) else _way_of(node)
    if way is None:
        leaves.append(node)
        return _pytree._LEAF_SPEC
    children, context = way.flatten_fn(node)
    inner = [_spec_of(child, is_leaf, leaves) for child in children]
    return _pytree.TreeSpec(kind, context, inner)


@in_place_of(_TREES, "tree_iter", "f22b2006bf62")
def iterate(_original: Any) -> Any:
    """The leaves of a structure."""
    return lambda tree, is_leaf=None: iter(leaves_of(tree, is_leaf))


def leaves_of(tree: Any, is_leaf: Any = None) -> list[Any]:
    """The leaves of a structure."""
    leaves: list[Any] = []
    _add_leaves(tree, is_leaf, leaves)
    return leaves


def _add_leaves(node: Any, is_leaf: Any, leaves: list[Any]) -> None:
    way = None if is_leaf is not None and is_leaf(node) else _way_of(node)[1]
    if way is None:
        leaves.append(node)
    else:
        for child in way.flatten_fn(node)[0]:
            _add_leaves(child, is_leaf, leaves)


@in_place_of(_TREES, "tree_map", "0672ad0ef945")
def transform(original: Any) -> Any:
    """The same structure with the results of a function at its leaves."""

    def tree_map(func: Any, tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
        if rests:
            return original(func, tree, *rests, is_leaf=is_leaf)
        return _mapped(func, tree, is_leaf)

    return tree_map


def _mapped(func: Any, node: Any, is_leaf: Any) -> Any:
    way = None if is_leaf is not None and is_leaf(node) else _way_of(node)[1]
    if way is None:
        return func(node)
    children, context = way.flatten_fn(node)
    return way.unflatten_fn([_mapped(func, child, is_leaf) for child in children], context)


@in_place_of(_SETS, "__or__", "3416defbd389")
def unite(original: Any) -> Any:
    """The elements of both sets."""
    kind, make = _set_and_maker()

    def either(self: Any, other: Any) -> Any:
        if type(self) is kind and type(other) is kind:
            return make(self._dict | other._dict)
        return original(self, other)

    return either


@in_place_of(_SETS, "__and__", "2d85979cfacb")
def intersect(original: Any) -> Any:
    """The elements that are in both sets, in the order of the smaller one."""
    kind, make = _set_and_maker()

    def both(self: Any, other: Any) -> Any:
        if type(self) is not kind or type(other) is not kind:
            return original(self, other)
        smaller, larger = other._dict, self._dict
        if len(larger) < len(smaller):
            smaller, larger = larger, smaller
        return make({element: None for element in smaller if element in larger})

    return both


def _set_and_maker() -> tuple[Any, Any]:
    from torch.utils._ordered_set import OrderedSet

    return OrderedSet, OrderedSet._from_dict


@in_place_of("torch.utils._config_module:ConfigModule", "__getattr__", "00f80ea149ec")
def read_switch(original: Any) -> Any:
    """The value of one of torch's switches."""
    unset, plain = _config_module._UNSET_SENTINEL, _config_module._IMMUTABLE_CONFIG_TYPES

    def switch(self: Any, name: str) -> Any:
        entry = self._config.get(name)
        if entry is None or entry.hide or entry.deprecated:
            return original(self, name)
        if entry.alias is not None:
            module, _, alias = entry.alias.rpartition(".")
            known = sys.modules.get(module)
            return original(self, name) if known is None else getattr(known, alias)
        if entry.env_value_force is not unset:
            return entry.env_value_force
        value = entry.user_override.get()
        if value is not unset:
            return value
        if entry.env_value_default is not unset:
            return entry.env_value_default
        if entry.justknob is None and isinstance(entry.default, plain):
            return entry.default
        return original(self, name)

    return switch


SHORTCUTS = (flatten, iterate, transform, unite, intersect, read_switch)
