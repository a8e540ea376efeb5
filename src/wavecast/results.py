"""How results show themselves: short in a console, as HTML in a notebook, as data elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from wavecast.errors import InvalidInput

if TYPE_CHECKING:
    from pandas import DataFrame


_LONGEST_VALUE = 60
_LONGEST = 300
_SHORT_ITEMS = 4


class Brief:
    """A dataclass whose `repr` is one line, however much it holds."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name, None)
            if field.repr and _is_told(value, field.default):
                shown.append(f"{field.name}={_short(value)}")
        inside = ", ".join(shown)
        cut = inside if len(inside) <= _LONGEST else f"{inside[:_LONGEST]}..."
        return f"{type(self).__name__}({cut})"


def _is_told(value: object, default: object) -> bool:
    """Whether a field says something: not where it is empty, or what it is by default."""
    if value is None or value is default:
        return False
    if isinstance(value, str | int | float):
        return value != default and value != ""
    return not isinstance(value, tuple | list | Mapping) or bool(value)


def _short(value: object) -> str:
    """A value in a few characters: of long ones only their type and size."""
    if isinstance(value, tuple | list) and len(value) <= _SHORT_ITEMS:
        text = f"({', '.join(map(_short, value))})"
    elif isinstance(value, str):
        text = repr(str(value))  # the values of enumerations are texts, too
    elif isinstance(value, Sized):
        text = _counted(value)
    else:
        text = repr(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    if isinstance(value, Sized) and not isinstance(value, str):
        return _counted(value)
    if isinstance(value, str):
        return f"{text[:_LONGEST_VALUE]}..."
    name = getattr(value, "id", "") or getattr(value, "name", "")
    return f"<{type(value).__name__} {name}>" if isinstance(name, str) and name else _type(value)


def _type(value: object) -> str:
    return f"<{type(value).__name__}>"


def _counted(value: Sized) -> str:
    return f"<{len(value)} item{'' if len(value) == 1 else 's'}>"


class Shown(Brief):
    """A result that a notebook shows as HTML, and that becomes plain data, a table or a page."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(_notebook().fragment(self))

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data: times in seconds, sizes in bytes, unknown is None."""
        data: dict[str, Any] = _notebook().record(self)
        return data

    def to_pandas(self) -> DataFrame:
        """The result as a table of pandas, one row for each of its parts.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return _notebook().frame(self)

    def to_html(self, path: str | Path) -> None:
        """Write the result as a page that needs nothing but itself.

        Raises:
            InvalidInput: there is no page for such a result, or the file cannot be written.
        """
        from wavecast.files import write_whole

        write_whole(Path(path), _notebook().page(self))


def _notebook() -> Any:
    # Imported only when a result is shown: everything that it can show is above it in the house.
    from wavecast.report import notebook

    return notebook


def _listing(results: Sequence[object]) -> str | None:
    """A list of results of one type as a table; None for any other list."""
    kinds = {type(result) for result in results}
    if len(kinds) != 1 or not issubclass(kinds.pop(), Shown):
        return None
    return str(_notebook().listing(results))


def show_lists() -> None:
    """From here on, notebooks show lists of results as tables."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        html = shell.display_formatter.formatters["text/html"]
        for kind in (list, tuple):
            html.type_printers.setdefault(kind, _listing)


show_lists()


# What holds for the numbers of every result, by the units that end their names.
#
# A class declares a field such as `low_s` or `peak_bytes` once, and the name says what it is:
# times and sizes are finite and at least 0, a range lies around its value, shares are at most 1,
# memory is at least its parts, and a total is the sum of its parts. Results are checked once,
# where they leave the function that made them (`checked`), and their fields again where a report
# tells them.


T = TypeVar("T")

_ROUNDING = 1e-6
"""By how much sums of floating-point numbers may differ, relative to them."""
_DIFFERENCES = ("delta", "saved", "per_sample", "fixed", "added", "slack", "last")
"""How the names of fields begin that may be negative: differences, and parts of a fitted line."""
_AT_LEAST_0 = (
    "seconds",
    "_s",
    "_bytes",
    "_usd",
    "_per_s",
    "_ratio",
    "throughput",
    "efficiency",
    "flops",
)
_SHARES = ("share", "shares")
_AT_MOST = {"peak_bytes": "reserved_bytes", "reserved_bytes": "needed_bytes"}
"""Fields that are part of another one, wherever a result has both."""
_RANGES = (("seconds", "low_s", "high_s"), ("value", "low", "high"))
_TIME = "a time is positive, finite and inside its range"


class _Rule(NamedTuple):
    """The bounds of a number."""

    low: float
    high: float
    said: str


@lru_cache(maxsize=4096)
def _rule(name: str) -> _Rule:
    if name.endswith(_SHARES):
        return _Rule(-_ROUNDING, 1 + _ROUNDING, "a share is from 0 to 1")
    if name.startswith(_DIFFERENCES) or not (name.endswith(_AT_LEAST_0) or name.startswith("usd")):
        return _Rule(-math.inf, math.inf, "a number is finite")
    return _Rule(0.0, math.inf, "it is finite and at least 0")


def checked(
    result: T, what: str, names: Iterable[str], totals: Mapping[str, Iterable[float]] | None = None
) -> T:
    """The result itself, if the fields of these names can be.

    Args:
        result: the result.
        what: what it is and where it comes from, for the message: "the step on l4".
        names: the fields to look at. `seconds` is the time of the whole, which is not 0.
        totals: the parts of which fields are the sums, by their names.

    Raises:
        InvalidInput: they cannot be; says which, and why.
    """
    refuse_impossible(what, {name: getattr(result, name) for name in names}, whole=True)
    for name, parts in (totals or {}).items():
        whole, total = getattr(result, name), math.fsum(parts)
        if not math.isclose(whole, total, rel_tol=_ROUNDING, abs_tol=1e-12):
            raise InvalidInput(
                f"{what}: {name} comes out as {whole:g}, but its parts are {total:g} together, "
                "which cannot be"
            )
    return result


def refuse_impossible(what: str, fields: Mapping[str, Any], *, whole: bool = False) -> None:
    """Raise InvalidInput unless all numbers among the fields of a result can be.

    Args:
        what: what the result is and where it comes from, for the message.
        fields: its fields by their names. Fields that are None or no numbers are left out; of a
            table or a list of numbers, all are looked at.
        whole: whether `seconds` is the time of something whole, which is not 0. A part may be.
    """
    seconds = fields.get("seconds")
    if whole and seconds is not None and not seconds > 0:
        raise InvalidInput(f"{what} comes out as {seconds:g} s; {_TIME}")
    for value, low, high in _RANGES:
        _refuse_outside(what, fields.get(value), fields.get(low), fields.get(high))
    for name, value in fields.items():
        rule = _rule(name)
        for number in _numbers(value):
            if not rule.low <= number <= rule.high or abs(number) == math.inf:
                raise InvalidInput(f"{what}: {name} comes out as {number:g}; {rule.said}")
    for part, all_of_it in _AT_MOST.items():
        smaller, larger = fields.get(part), fields.get(all_of_it)
        if smaller is not None and larger is not None and smaller > larger:
            raise InvalidInput(
                f"{what}: {part} comes out as {smaller}, more than {all_of_it}, {larger}, which "
                "cannot be; trace the step again, or check the sizes in a hand-made trace"
            )


def _refuse_outside(what: str, value: Any, low: Any, high: Any) -> None:
    if value is None or low is None or high is None:
        return
    if not low <= value <= high:
        raise InvalidInput(f"{what} comes out as {value:g}, from {low:g} to {high:g}; {_TIME}")


def _numbers(value: Any) -> Sequence[float]:
    """The numbers in a field: itself, or those of a table or a list."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, list | tuple):
        return ()
    return [item for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
