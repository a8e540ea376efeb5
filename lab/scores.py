"""The commands of `lab score` that print tables, in one table, and how they run.

    python -m lab score NAME [--data FOLDER] [--cache FOLDER] [--write] [TABLE ...]

Each is a function that makes tables. Where a table has a place on a page of the documents,
`--write` puts it there and records its figures (docs/appendix/accuracy.json). Commands with other
options have a `main` of their own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from lab import needs, pages
from lab.figures import Figures, record


@dataclass(frozen=True)
class ScoreTable:
    """A table of a command."""

    text: str
    page: Path | None = None
    """The page that has it; None if no page has."""
    mark: str = ""
    """The mark of its place on the page."""
    figures: Mapping[str, Figures] = field(default_factory=dict)
    """What is recorded of it for docs/accuracy.md."""
    title: str = ""
    on_page: str | None = None
    """What the page has of it; None if it has the whole."""

    @property
    def on_the_page(self) -> str:
        """What the page has of it."""
        return self.text if self.on_page is None else self.on_page


@dataclass(frozen=True)
class Score:
    """A command that prints tables."""

    tables: str
    """The function that makes them, "MODULE:FUNCTION" in `lab.score`. It is given the folders that
    the command asks for, `data` and `cache`, and the `names` of tables."""
    data: tuple[str, ...] = ()
    """The sets of public tables that it reads."""
    cache: str = ""
    """Whether it takes a folder that keeps traces and fits: "required" or "optional"."""
    names: str = ""
    """The name in the module of its tables or cases, if a user can choose some of them."""
    always: bool = False
    """Whether it writes the pages without being asked."""

    @property
    def module(self) -> str:
        """The module in `lab.score` that makes its tables."""
        return self.tables.partition(":")[0]

    def __call__(self, given: Sequence[str] = ()) -> None:
        """Print the tables, and write them into their pages if asked."""
        module = import_module(f"lab.score.{self.module}")
        parser = needs.parser(module.__doc__)
        if self.data:
            needs.add_data(parser, *self.data)
        if self.cache:
            required = self.cache == "required"
            about = "folder that keeps traces and fits"
            parser.add_argument("--cache", type=Path, required=required, help=about)
        known: tuple[str, ...] = tuple(getattr(module, self.names)) if self.names else ()
        if known:
            about = f"of {', '.join(known)}; all by default"
            parser.add_argument("names", nargs="*", metavar="NAME", help=about)
        parser.add_argument("--write", action="store_true", help="put them into their pages")
        asked = vars(parser.parse_args(given))
        writes = asked.pop("write") or self.always
        if known:
            asked["names"] = asked["names"] or known
            if unknown := set(asked["names"]) - set(known):
                parser.error(f"there is no {', '.join(sorted(unknown))}, only {', '.join(known)}")
        warnings.simplefilter("ignore")  # timm warns of models that are older than it
        tables: Callable[..., Iterable[ScoreTable]] = getattr(module, self.tables.partition(":")[2])
        show(tables(**asked), writes)


def show(tables: Iterable[ScoreTable], writes: bool) -> None:
    """Print tables as they are made, and write them into their pages."""
    for table in tables:
        print(*filter(None, (table.title, table.text)), sep="\n\n", end="\n\n")
        sys.stdout.flush()
        if writes and table.page is not None:
            pages.write(table.page, table.mark, table.on_the_page)
        if writes and table.figures:
            record(dict(table.figures))


SCORES = {
    "blind": Score("blind:tables"),
    "blind_tests": Score("blind_torch:of_all_tests"),
    "blind_torch": Score("blind_torch:tables", names="NAMES"),
    "choices": Score("choices:tables", data=needs.OPS_AND_STEPS, cache="required"),
    "collectives": Score("collectives:tables", data=("kernels", "distributed")),
    "commands": Score("distributed:commands", data=("distributed",)),
    "dlperf": Score("dlperf:tables", data=("dlperf",), cache="optional", always=True),
    "families": Score("families:tables", data=needs.SINGLE_OPS, cache="required"),
    "framework_decoders": Score("framework_decoders:tables"),
    "front_door": Score("front_door:tables"),
    "graph_accuracy": Score("graph_accuracy:tables"),
    "grouped": Score("grouped:tables"),
    "half_precision": Score("half_precision:tables", always=True),
    "host_kinds": Score("host_kinds:tables", cache="optional"),
    "iterations": Score("iterations:tables", data=needs.SINGLE_OPS, cache="required"),
    "jax_functions": Score("jax:of_functions"),
    "lambda_runs": Score("lambda_runs:tables", data=("lambda",), always=True),
    "multi_gpu": Score("multi_gpu:tables", always=True),
    "op_accuracy": Score("op_accuracy:tables", data=needs.SINGLE_OPS),
    "questions": Score("questions:tables", names="QUESTIONS"),
    "recipes": Score("recipes:tables", always=True),
    "regret": Score("regret:tables", data=("cluster",)),
    "revisited": Score("blind_torch:of_revisited"),
    "run_grid": Score("run_grid:tables", always=True),
    "run_models": Score("run_models:tables", names="TABLES", always=True),
    "run_ranges": Score("run_ranges:tables", data=("lambda", "dlperf"), always=True),
    "scaling": Score("scaling:tables", data=("lambda",), cache="optional", always=True),
    "schedules": Score("schedules:tables", data=("cluster",), names="TABLES"),
    "suite_accuracy": Score("suite_accuracy:tables", always=True),
    "summary": Score("summary:tables"),
    "tbd_machines": Score("tbd_machines:tables", always=True),
    "unchanged_scripts": Score("unchanged_scripts:tables"),
    "vidur": Score("vidur:tables", data=("kernels",)),
}
"""The commands by name."""
