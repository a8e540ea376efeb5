"""The help: commands by what people want to do, and options under the headings of their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Predict": ("predict", "run", "memory", "fits", "max-batch", "profile", "extrapolate"),
    "Choose": ("advise", "choose", "prices", "scale", "parallelize", "serve"),
    "Many jobs": ("plan", "simulate", "capacity", "campaign"),
    "Compare and check": ("compare", "evaluate", "check", "doctor"),
    "Get a step": ("trace", "measure", "import"),
    "Hardware": ("devices", "clusters", "calibrate"),
    "Past runs, and models of layers": ("runs", "design", "layers", "collect", "fit"),
}
"""The commands under the headings of the help, the most used ones first."""
OTHERS = "More"
"""The heading of commands that are in no group."""


def ordered(names: Sequence[str]) -> list[str]:
    """The names of commands, in the order of the help."""
    order = [name for group in GROUPS.values() for name in group]
    return sorted(names, key=lambda name: (name not in order, [*order, name].index(name)))


def write_commands(commands: Mapping[str, Any], formatter: Any) -> None:
    """Write the commands of the program, a section for each group."""
    shown = {name: command for name, command in commands.items() if not command.hidden}
    longest = max(map(len, shown))
    limit = formatter.width - 6 - longest
    grouped = {name for group in GROUPS.values() for name in group}
    rest = tuple(name for name in ordered(list(shown)) if name not in grouped)
    for title, names in (*GROUPS.items(), (OTHERS, rest)):
        rows = [
            (name.ljust(longest), shown[name].get_short_help_str(limit))
            for name in names
            if name in shown
        ]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def write_options(params: Sequence[Any], ctx: Any, formatter: Any) -> None:
    """Write the arguments and options of a command, a section for each group of options."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in params:
        record = param.get_help_record(ctx)
        if record is None:
            continue
        usual = "Arguments" if param.param_type_name == "argument" else "Options"
        title = getattr(param, "rich_help_panel", None) or usual
        sections.setdefault(title, []).append(record)
    # What every command has comes first, its groups of options last.
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
