"""One self-contained page: sections, style, script and data in a single file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import wavecast
from wavecast.report.html.markup import (
    NOTHING,
    Html,
    bullets,
    data_element,
    element,
    escaped,
    html_table,
    joined,
)
from wavecast.report.tables import ANY_WIDTH, fitting, sentence
from wavecast.report.views import Strong, View, ViewPart

DATA = "wavecast-data"
"""The identity of the element that holds the data of a page."""


@dataclass(frozen=True)
class Section:
    """One part of a page, with a heading."""

    identity: str
    """A word for links to it."""
    title: str
    content: Html
    lead: str = ""
    """A sentence under the heading."""
    short: str = ""
    """What links call it; its title if not given."""

    def drawn(self) -> Html:
        """The section as HTML."""
        heading = f"{self.identity}-heading"
        lead = element("p", self.lead, class_="lead") if self.lead else Html()
        title = element("h2", self.title, id=heading)
        return element(
            "section", title, lead, self.content, id=self.identity, aria_labelledby=heading
        )


@dataclass(frozen=True)
class Subject:
    """What details are shown of: one GPU, or one rank of several."""

    identity: str
    name: str
    data: dict[str, Any]
    """Its tree of modules and its timeline, for the script."""


@dataclass(frozen=True)
class Report:
    """What a page shows, before it is put into a file or into another page."""

    title: str
    """What it is about: the target, in plain text."""
    verdict: Html
    """The answer, in a sentence or three."""
    sections: tuple[Section, ...]
    head: Html = NOTHING
    """What stands under the verdict: the main figures."""
    subjects: tuple[Subject, ...] = ()
    """What the reader can choose to see details of."""
    names: tuple[str, ...] = ()
    """The texts to which the data of the subjects refer."""

    @property
    def data(self) -> dict[str, Any]:
        """What the script needs, as plain data for JSON."""
        subjects = {
            subject.identity: {"name": subject.name, **subject.data} for subject in self.subjects
        }
        return {"names": list(self.names), "subjects": subjects}


def report_of(view: View) -> Report:
    """A view as a page."""
    verdict = joined(
        element("strong", text) if isinstance(text, Strong) else text for text in view.verdict
    )
    parts = [part for part in view.parts if part.title]
    return Report(view.title, verdict, tuple(map(section_of, parts)))


def section_of(part: ViewPart) -> Section:
    """A part of a view as a section of a page."""
    drawn = {} if part.drawn is None else {"drawn": part.drawn}
    caption = part.caption or part.title
    columns = fitting(part.columns, ANY_WIDTH)
    content = [
        part.chart() if part.chart is not None else NOTHING,
        html_table(columns, caption=caption, sorts=part.sorts, **drawn) if columns else NOTHING,
        bullets(map(sentence, part.lines)),
    ]
    identity = part.identity or part.title.lower()
    return Section(identity, part.title, joined(content), part.lead, part.short)


def document(report: Report) -> str:
    """A report as a page that needs nothing but itself."""
    style, script = style_sheet(), script_text()
    return filled(
        "report.html",
        {
            "title": escaped(report.title),
            "policy": escaped(
                "default-src 'none'; base-uri 'none'; form-action 'none'; "
                f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
            ),
            "style": style,
            "script": script,
            "verdict": report.verdict,
            "head": report.head,
            "links": section_links(report.sections),
            "choice": subject_choice(report.subjects),
            "sections": joined(section.drawn() for section in report.sections),
            "version": escaped(wavecast.__version__),
            "data": data_element(DATA, report.data),
        },
    )


def style_sheet() -> str:
    """The style of all pages. It concerns only what is in an element of class "wavecast"."""
    return template("report.css")


def script_text() -> str:
    """The script of all pages: `wavecastReport(root, data)` makes a part of a page interactive."""
    return "\n".join(map(template, ("report.js", "icicle.js", "timeline.js")))


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def section_links(sections: Sequence[Section]) -> Html:
    """Links to the sections of a page."""
    items = [
        element("li", element("a", section.short or section.title, href=f"#{section.identity}"))
        for section in sections
    ]
    return element("ul", *items)


def subject_choice(subjects: Sequence[Subject]) -> Html:
    """A list from which the reader chooses whose details are shown; nothing if there is one."""
    if len(subjects) < 2:
        return Html()
    options = [element("option", subject.name, value=subject.identity) for subject in subjects]
    choice = element("select", *options, id="subject")
    return element("label", "Details for ", choice, class_="choice needs-script", for_="subject")


# The shipped templates of pages, and how they are filled.


_PLACE = re.compile(r"\{\{(\w+)\}\}")


@cache
def template(name: str) -> str:
    """The text of a shipped template, style sheet or script."""
    folder = resources.files("wavecast.report").joinpath("templates")
    return folder.joinpath(name).read_text("utf-8")


def filled(name: str, values: Mapping[str, str]) -> str:
    """A template with its places, such as {{title}}, filled with HTML.

    Each place is filled once: what looks like a place within a value stays as it is.
    """
    return _PLACE.sub(lambda place: values[place[1]], template(name))
