"""Shortcuts for questions about sizes and strides, which are mostly plain numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import sympy
from torch._inductor import sizevars
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from wavecast.frameworks.pytorch.compiled.shortcuts import in_place_of

_SIZES = "torch._inductor.sizevars:SizeVarAllocator"
_LOADED = ("indirect", "tmp")
"""How the names of symbols begin that stand for indices which a kernel reads."""


def _is_number(size: Any) -> bool:
    return type(size) is int or isinstance(size, sympy.Integer)


@in_place_of(_SIZES, "statically_known_equals", "427b22ef099a")
def compare(original: Any) -> Any:
    """Whether two sizes are known to be equal."""

    def are_equal(self: Any, left: Any, right: Any) -> bool:
        if _is_number(left) and _is_number(right):
            return bool(left == right)
        return bool(original(self, left, right))

    return are_equal


@in_place_of("torch._inductor.ir:Layout", "is_stride_ordered", "c6ec34b31460")
def check_order(original: Any) -> Any:
    """Whether strides ascend in an order of the dimensions."""

    def is_stride_ordered(self: Any, order: Any) -> bool:
        if len(self.stride) != len(order) or not all(map(_is_number, (*self.size, *self.stride))):
            return bool(original(self, order))
        wide = [i for i, size in enumerate(self.size) if size != 1]
        ascending = [int(self.stride[i]) for i in sorted(wide, key=lambda i: order[i])]
        return all(
            left == right or (not _is_above(left, right) and _is_above(right, left))
            for left, right in pairwise(ascending)
        )

    return is_stride_ordered


def _is_above(left: int, right: int) -> bool:
    """Torch's order of strides: one of zero is below all others."""
    if right == 0 or left == 0:
        return right == 0
    return left >= right or left % right == 0


@in_place_of("torch._inductor.ir", "is_contiguous_strides_for_shape", "5f971552aa58")
def check_contiguous(original: Any) -> Any:
    """Whether strides are those of a tensor whose elements follow each other."""

    def is_contiguous(strides: Any, sizes: Any) -> bool:
        if not all(map(_is_number, (*strides, *sizes))):
            return bool(original(strides, sizes))
        expected = of_full = 1
        for size, stride in reversed(tuple(zip(sizes, strides, strict=False))):
            if size != 1:
                if stride not in (expected, of_full):
                    return False
                expected, of_full = expected * size, of_full * max(1, size)
        return True

    return is_contiguous


@in_place_of("torch._inductor.dependencies:_RecordLoadStoreInner", "canonicalize", "a6889ea92374")
def simplify(original: Any) -> Any:
    """An index in its simplest form, with the loops that it depends on. Equal layers ask again."""

    def canonicalize(self: Any, index: Any) -> Any:
        known = vars(V.graph.sizevars).setdefault("_canonical_indices", {})
        key = type(index), index, self._should_normalize, *self._var_ranges.items()
        result = known.get(key)
        if result is None:
            result = original(self, index)
            if _is_static(index, self._var_ranges):
                known[key] = result
        return result

    return canonicalize


def _is_static(index: Any, ranges: Any) -> bool:
    """Whether no size is a symbol, of which more may be known later."""
    symbols = getattr(index, "free_symbols", ())
    return all(map(_is_number, ranges.values())) and all(
        symbol in ranges or symbol.name.startswith(_LOADED) for symbol in symbols
    )


@in_place_of(_SIZES, "simplify", "84989b16b1ad")
def expand(original: Any) -> Any:
    """A size in its simplest form. A number has no simpler one."""
    return lambda self, size: size if isinstance(size, sympy.Integer) else original(self, size)


@in_place_of(_SIZES, "_simplify_with_ranges", "b13209b67ef9")
def simplify_in_ranges(original: Any) -> Any:
    """An index in its simplest form, given the loops. Torch writes down what these say of the
    index before it asks whether there is a division or remainder to which it matters."""

    def simplify_with_ranges(self: Any, index: Any, ranges: Any) -> Any:
        joined = sizevars.join_dimensions(self.simplify(index))
        is_divided = joined.has(ModularIndexing) or joined.has(FloorDiv)
        return original(self, index, ranges) if is_divided else joined

    return simplify_with_ranges


@in_place_of(_SIZES, "optimization_hint", "b1716ebc6e80")
def estimate(original: Any) -> Any:
    """The number that a size is, or most likely is."""

    def optimization_hint(self: Any, size: Any, fallback: Any = None) -> Any:
        return int(size) if _is_number(size) else original(self, size, fallback)

    return optimization_hint


@in_place_of(_SIZES, "is_size_one_or_false", "ecd2a4066417")
def check_one(original: Any) -> Any:
    """Whether a size is known to be one."""
    return lambda self, size: bool(size == 1) if _is_number(size) else original(self, size)


@in_place_of("torch._inductor.ir:IRNode", "is_zero_elements", "d8eb2abc7694")
def check_none(original: Any) -> Any:
    """Whether a tensor is known to have no elements."""

    def is_zero_elements(self: Any) -> bool:
        sizes = self.get_size()
        return 0 in sizes if all(map(_is_number, sizes)) else bool(original(self))

    return is_zero_elements


@in_place_of("torch.fx.experimental._size_hinting", "_sympy_subs", "81d8008e9b46")
def substitute(original: Any) -> Any:
    """An expression with others in place of its symbols, which are mostly no names to be made."""

    def substituted(expression: Any, replacements: Any) -> Any:
        if not replacements:
            return sympy.sympify(expression)
        if any(isinstance(value, str) for value in replacements.values()):
            return original(expression, replacements)
        return sympy.sympify(expression).xreplace(replacements)

    return substituted


SHORTCUTS = (
    *(compare, check_order, check_contiguous, simplify),
    *(expand, simplify_in_ranges, estimate, check_one, check_none, substitute),
)
