"""What the papers say, requirement by requirement, and what Wavecast gives: docs/papers.md.

    python -m lab score papers            runs every check and writes the page
    python -m lab score papers PL-7 HB    runs the checks of these requirements only

Each requirement is one record of a file in lab/score/requirements, one file for each paper. A
record has an id, a title, a status, what the paper says, what Wavecast gives, what differs and why,
checks and mutations. To add or change one, edit the file, run this command, and commit both; a test
holds that the page is made from the records, and runs the checks that are not slow. A check
computes the figures of its requirement. It is one of

    run     a wavecast command, shown on the page; `prints` lists the texts that it must print
    python  a piece of Python, likewise, not shown
    gpu     a command that needs a GPU: shown, never run

A mutation changes a formula or a rule of the package, and some check of its requirement must fail
then (`lab.score.papers`). `pages` and `tests` of a record say where to read on; they check
nothing.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lab import needs
from lab.pages import heading
from lab.places import DOCS, ROOT

PAGE = DOCS / "papers.md"
FOLDER = Path(__file__).with_name("requirements")
KINDS = ("run", "python", "gpu")
STATUSES = {
    "exact": "the figures that can be computed are equal",
    "holds": "it is built, and checked as stated",
    "compared": "the paper measured; our figures stand beside its own",
    "partly": "a part is missing; it is named",
}
"""What a status means."""

INTRODUCTION = """\
# The papers, requirement by requirement

<!-- Made by python -m lab score papers from lab/score/requirements: edit the records. -->

Wavecast builds on five texts. This page takes their statements one by one: what the paper says,
what Wavecast gives, and what differs and why. Each statement has checks that compute its figures:
commands, which are shown, and pieces of Python, which are in the records
(`lab/score/requirements`) with the tests that hold it. `python -m lab score papers PL-7` runs the
checks of one statement; all that need no GPU were run when the page was made, and the test suite
runs the quick ones. The numbers (PL-1, ...) are ours.
"""


@dataclass(frozen=True)
class Check:
    """Something that shows a requirement."""

    kind: str
    """One of `KINDS`."""
    what: str
    """The command or code."""
    prints: tuple[str, ...] = ()
    slow: bool = False
    """Whether only this script runs it, and not the test suite."""

    def failures(self) -> list[str]:
        """The texts that it does not print."""
        if self.kind == "gpu":
            return []
        shown = _plain(_shown(self.kind, self.what))
        return [text for text in self.prints if _plain(text) not in shown]


@dataclass(frozen=True)
class Requirement:
    """One statement of a paper."""

    id: str
    title: str
    status: str
    """One of `STATUSES`."""
    paper: str
    """What the paper says."""
    ours: str
    """What Wavecast gives."""
    differs: str
    """What differs, and why; empty if nothing does."""
    checks: tuple[Check, ...]
    mutations: tuple[Mutation, ...] = ()
    pages: tuple[str, ...] = ()
    """Pages and sources with more figures."""
    tests: tuple[str, ...] = ()
    """Tests of the suite, by their node ids."""

    @property
    def missing(self) -> list[str]:
        """The pages and tests that it names and that do not exist."""
        pages = [page for page in self.pages if not (ROOT / page).is_file()]
        return pages + [node for node in self.tests if not _has_test(node)]

    def survivors(self) -> Iterator[Mutation]:
        """The mutations that no check notices."""
        return (mutation for mutation in self.mutations if not self.notices(mutation))

    def notices(self, mutation: Mutation) -> bool:
        """Whether a check that is not slow fails with a change."""
        with mutation.applied():
            return any(map(_fails, self.checks))


@dataclass(frozen=True)
class Chapter:
    """The requirements of one paper."""

    title: str
    about: str
    """The paper and where its models are explained."""
    requirements: tuple[Requirement, ...]


@cache
def chapters() -> tuple[Chapter, ...]:
    """All chapters, in the order of their files."""
    return tuple(_chapter(path) for path in sorted(FOLDER.glob("*.toml")))


def requirements() -> Iterator[Requirement]:
    """All requirements, in the order of the page."""
    for chapter in chapters():
        yield from chapter.requirements


def _chapter(path: Path) -> Chapter:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    records = tuple(map(_requirement, table["requirement"]))
    return Chapter(table["title"], table["about"].strip(), records)


def _requirement(record: dict[str, Any]) -> Requirement:
    texts = {name: " ".join(str(record.pop(name, "")).split()) for name in _TEXTS}
    lists = {name: tuple(record.pop(name, ())) for name in ("pages", "tests")}
    checks = tuple(map(_check, record.pop("check", ())))
    mutations = tuple(Mutation(**mutation) for mutation in record.pop("mutation", ()))
    assert record["status"] in STATUSES, f"{record['id']}: {record['status']}"
    given: dict[str, Any] = {**record, **texts, **lists}
    return Requirement(**given, checks=checks, mutations=mutations)


_TEXTS = ("paper", "ours", "differs")


def _check(record: dict[str, Any]) -> Check:
    [kind] = record.keys() & set(KINDS)
    what = record.pop(kind).strip()
    return Check(kind, what, tuple(record.pop("prints", ())), **record)


def _plain(text: str) -> str:
    """A text with single blanks, so that the width of a table's columns does not matter."""
    return " ".join(text.split())


def _fails(check: Check) -> bool:
    """Whether a check that is not slow fails, or cannot be computed at all."""
    if check.slow:
        return False
    try:
        return bool(check.failures())
    except Exception:  # a changed formula may be refused before it prints anything
        return True


def _shown(kind: str, what: str) -> str:
    out = io.StringIO()
    with chdir(ROOT), redirect_stdout(out):
        if kind == "run":
            from wavecast.cli import app

            app(shlex.split(what.removeprefix("wavecast ")), standalone_mode=False)
        else:
            exec(compile(what, "a check of lab/score/requirements", "exec"), {})
    return out.getvalue()


def _has_test(node: str) -> bool:
    file, _, name = node.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {name}(" in path.read_text(encoding="utf-8")


def rendered() -> str:
    """The page."""
    parts = [INTRODUCTION]
    parts += [*heading("status | meaning | number | requirements", "llrl")]
    for status, meaning in STATUSES.items():
        links = [f"[{o.id}](#{_anchor(o)})" for o in requirements() if o.status == status]
        parts.append(f"| {status} | {meaning} | {len(links)} | {', '.join(links)} |")
    for chapter in chapters():
        parts += ["", f"## {chapter.title}", "", chapter.about]
        for requirement in chapter.requirements:
            parts += ["", *_section(requirement)]
    parts += ["", *_mutations()]
    return "\n".join(parts) + "\n"


def _anchor(requirement: Requirement) -> str:
    """The anchor that mkdocs gives the heading of a requirement."""
    words = re.sub(r"[^\w\s-]", "", f"{requirement.id}: {requirement.title}".lower()).strip()
    return re.sub(r"[-\s]+", "-", words)


def _section(requirement: Requirement) -> Iterator[str]:
    yield from (f"### {requirement.id}: {requirement.title}", "")
    yield from (
        f"**The paper.** {requirement.paper}",
        "",
        f"**Wavecast** ({requirement.status}). {requirement.ours}",
    )
    if requirement.differs:
        yield from ("", f"**What differs.** {requirement.differs}")
    for check in requirement.checks:
        if check.kind == "run":
            yield from ("", "```sh", check.what, "```", "")
            yield f"prints {', '.join(map(_code, check.prints))}."
        elif check.kind == "gpu":
            yield from ("", "```sh", check.what, "```", "", "needs a GPU.")
    if requirement.pages:
        yield from ("", f"More: {', '.join(map(_link, requirement.pages))}.")


def _mutations() -> Iterator[str]:
    every = [
        (requirement, mutation)
        for requirement in requirements()
        for mutation in requirement.mutations
    ]
    having = len({requirement.id for requirement, _ in every})
    yield from ("## Do the checks notice a changed formula?", "")
    yield (
        f"{len(every)} changes of formulas and rules were made to the package, one at a time "
        "(`mutation` in the records), and a check of the requirement failed each time. "
        f"{having} of {len([*requirements()])} requirements have an equation or a rule to change. "
        "The test suite makes the changes again."
    )


def _code(text: str) -> str:
    return f"`{_plain(text)}`"


def _link(page: str) -> str:
    """A page of the documents as a link, and any other file as its path."""
    path = ROOT / page
    if not path.is_relative_to(DOCS):
        return f"`{page}`"
    title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}]({path.relative_to(DOCS)})"


def _verdicts(requirement: Requirement) -> Iterator[bool]:
    """Whether each check holds and each mutation is noticed; prints what does not."""
    for name in requirement.missing:
        print(f"{requirement.id}: there is no {name}", flush=True)
        yield False
    for check in requirement.checks:
        missing = check.failures()
        verdict = f"MISSING {missing}" if missing else "ok"
        print(
            f"{requirement.id} {check.kind}: {check.what.splitlines()[0][:70]}: {verdict}",
            flush=True,
        )
        yield not missing
    for mutation in requirement.survivors():
        print(f"{requirement.id}: no check noticed: {mutation.what}", flush=True)
        yield False


def main(given: Sequence[str] = ()) -> None:
    """Run the checks, and write the page if all were run and hold."""
    parser = needs.parser(__doc__)
    parser.add_argument("requirements", nargs="*", metavar="ID", help="all by default")
    chosen = parser.parse_args(given).requirements
    os.environ.setdefault("COLUMNS", "200")
    failed = 0
    for requirement in requirements():
        if chosen and not any(f"{requirement.id}-".startswith(f"{name}-") for name in chosen):
            continue
        failed += sum(1 for verdict in _verdicts(requirement) if not verdict)
    if failed:
        raise SystemExit(1)
    if not chosen:
        PAGE.write_text(rendered(), encoding="utf-8")


# Changes to formulas and rules of the package, which the checks of the papers must notice.
#
# A mutation names an attribute as `module:name` or `module:Class.name`, and the Python expression
# that takes its place. The expression sees the names of the module, and what it replaces as
# `original`. Every module that imported the attribute by name gets the changed one too, so that
# nothing goes on with the old formula.


_OURS = ("wavecast", "lab")


@dataclass(frozen=True)
class Mutation:
    """One change, as a record of lab/score/requirements has it."""

    what: str
    """The change in words."""
    where: str
    """The attribute that is changed."""
    to: str
    """The expression that takes its place."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The package with this change, until the end of the block."""
        name, _, path = self.where.partition(":")
        module = importlib.import_module(name)
        *owners, attribute = path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part)
        original = vars(owner)[attribute]
        changed = eval(self.to, {**vars(module), "original": original})
        places = [(owner, attribute)]
        if owner is module:
            places += _importers(original)
        try:
            for place, known_as in places:
                setattr(place, known_as, changed)
            yield
        finally:
            for place, known_as in places:
                setattr(place, known_as, original)


def _importers(original: object) -> list[tuple[Any, str]]:
    """The modules of ours that hold an object, and the names by which they know it."""
    if isinstance(original, (int, float, str)):  # equal numbers may be the same object by chance
        return []
    return [
        (module, known_as)
        for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] in _OURS
        for known_as, value in list(vars(module).items())
        if value is original
    ]
