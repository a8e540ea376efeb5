"""How results show themselves: short in a console, as HTML in a notebook, as data elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Sized
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
