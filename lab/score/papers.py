"""What the papers say, requirement by requirement, and what Wavecast gives: docs/papers.md.

    python -m lab score papers            runs every check and writes the page
    python -m lab score papers PL-7 HB    runs the checks of these requirements only

Each requirement is one record of a file in lab/score/requirements, one file for each paper. A
record has an id, a title, a status, what the paper says, what Wavecast gives, what differs and why,
and checks. To add or change one, edit the file, run this command, and commit both; a test holds
that the page is made from the records and runs the checks that are not slow. A check is one of

    run     a wavecast command; `prints` lists the texts that it must print
    python  a piece of Python, likewise
    page    a page or source of ours that must have the texts in `prints`
    test    a test of the suite, by its node id
    gpu     a command that needs a GPU: shown, never run
"""

from __future__ import annotations

import io
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lab import needs
from lab.markdown import heading
from lab.places import DOCS, ROOT

PAGE = DOCS / "papers.md"
FOLDER = Path(__file__).with_name("requirements")
KINDS = ("run", "python", "page", "test", "gpu")
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
what Wavecast gives, how to see it, and what differs and why. Every command on it that needs no GPU
was run when the page was made, and its figures were checked; the test suite checks the quick ones.
The numbers (PL-1, ...) are ours.
"""


@dataclass(frozen=True)
class Check:
    """Something that shows a requirement."""

    kind: str
    """One of `KINDS`."""
    what: str
    """The command, code, page or test."""
    prints: tuple[str, ...] = ()
    slow: bool = False
    """Whether only this script runs it, and not the test suite."""

    def failures(self) -> list[str]:
        """The texts that are missing; for a test, its name if there is none such."""
        if self.kind == "gpu":
            return []
        if self.kind == "test":
            return [] if _has_test(self.what) else [self.what]
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
    checks = tuple(map(_check, record.pop("check", ())))
    assert record["status"] in STATUSES, f"{record['id']}: {record['status']}"
    return Requirement(**record, **texts, checks=checks)


_TEXTS = ("paper", "ours", "differs")


def _check(record: dict[str, Any]) -> Check:
    [kind] = record.keys() & set(KINDS)
    what = record.pop(kind).strip()
    return Check(kind, what, tuple(record.pop("prints", ())), **record)


def _plain(text: str) -> str:
    """A text with single blanks, so that the width of a table's columns does not matter."""
    return " ".join(text.split())


def _shown(kind: str, what: str) -> str:
    if kind == "page":
        return (ROOT / what).read_text(encoding="utf-8")
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
    parts += [*heading("status | meaning | requirements", "ll")]
    statuses = [requirement.status for requirement in requirements()]
    for status, meaning in STATUSES.items():
        parts.append(f"| {status} | {meaning} | {statuses.count(status)} |")
    for chapter in chapters():
        parts += ["", f"## {chapter.title}", "", chapter.about, ""]
        parts += [*heading("requirement | status", "ll")]
        for one in chapter.requirements:
            parts.append(f"| [{one.id}](#{_anchor(one)}): {one.title} | {one.status} |")
        for one in chapter.requirements:
            parts += ["", *_section(one)]
    return "\n".join(parts) + "\n"


def _anchor(one: Requirement) -> str:
    """The anchor that mkdocs gives the heading of a requirement."""
    words = re.sub(r"[^\w\s-]", "", f"{one.id}: {one.title}".lower()).strip()
    return re.sub(r"[-\s]+", "-", words)


def _section(one: Requirement) -> Iterator[str]:
    yield from (f"### {one.id}: {one.title}", "")
    yield from (f"**The paper.** {one.paper}", "", f"**Wavecast.** {one.ours}")
    if one.differs:
        yield from ("", f"**What differs.** {one.differs}")
    for check in one.checks:
        if check.kind in _LANGUAGES:
            yield from ("", f"```{_LANGUAGES[check.kind]}", check.what, "```")
        if check.kind in ("run", "python"):
            yield from ("", f"prints {', '.join(map(_code, check.prints))}.")
        elif check.kind == "gpu":
            yield from ("", "needs a GPU.")
    tests = [check.what for check in one.checks if check.kind == "test"]
    pages = [_link(check.what) for check in one.checks if check.kind == "page"]
    if pages:
        yield from ("", f"Figures: {', '.join(pages)}.")
    if tests:
        yield from ("", f"Tests: {', '.join(_test(node) for node in tests)}.")


_LANGUAGES = {"run": "sh", "python": "python", "gpu": "sh"}


def _code(text: str) -> str:
    return f"`{_plain(text)}`"


def _test(node: str) -> str:
    """A test in words, as its name says it."""
    file, _, name = node.partition("::")
    return f"{name.removeprefix('test_').replace('_', ' ')} (`{file}`)"


def _link(page: str) -> str:
    """A page of the documents as a link, and any other file as its path."""
    path = ROOT / page
    if not path.is_relative_to(DOCS):
        return f"`{page}`"
    title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}]({path.relative_to(DOCS)})"


def main(given: Sequence[str] = ()) -> None:
    """Run the checks, and write the page if all were run and hold."""
    parser = needs.parser(__doc__)
    parser.add_argument("requirements", nargs="*", metavar="ID", help="all by default")
    chosen = parser.parse_args(given).requirements
    os.environ.setdefault("COLUMNS", "200")
    failed = 0
    for one in requirements():
        if chosen and not any(f"{one.id}-".startswith(f"{name}-") for name in chosen):
            continue
        for check in one.checks:
            missing = check.failures()
            failed += len(missing)
            verdict = f"MISSING {missing}" if missing else "ok"
            print(
                f"{one.id} {check.kind}: {check.what.splitlines()[0][:70]}: {verdict}", flush=True
            )
    if failed:
        raise SystemExit(1)
    if not chosen:
        PAGE.write_text(rendered(), encoding="utf-8")
