"""One self-contained page: sections, style, script and data in a single file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import wavecast
from wavecast.report.html.markup import Html, data_element, element, escaped, joined
from wavecast.report.templates import filled, template

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


def document(
    title: str,
    verdict: Html,
    head: Html,
    sections: Sequence[Section],
    subjects: Sequence[Subject] = (),
    names: Sequence[str] = (),
) -> str:
    """A page that needs nothing but itself.

    Args:
        title: what the page is about.
        verdict: the answer, in a sentence or two.
        head: what stands under the verdict.
        sections: the parts of the page, in order.
        subjects: what the reader can choose to see details of.
        names: the texts to which the data of the subjects refer.
    """
    style, script = style_sheet(), script_text()
    return filled(
        "report.html",
        {
            "title": escaped(title),
            "policy": escaped(
                "default-src 'none'; base-uri 'none'; form-action 'none'; "
                f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
            ),
            "style": style,
            "script": script,
            "verdict": verdict,
            "head": head,
            "links": _links(sections),
            "choice": subject_choice(subjects),
            "sections": joined(section.drawn() for section in sections),
            "version": escaped(wavecast.__version__),
            "data": data_element(DATA, subjects_data(subjects, names)),
        },
    )


def style_sheet() -> str:
    """The style of all pages, without characters that could end its element."""
    return template("report.css")


def script_text() -> str:
    """The script of all pages: `wavecastReport(root, data)` makes a part of a page interactive."""
    return "\n".join(map(template, ("report.js", "icicle.js", "timeline.js")))


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _links(sections: Sequence[Section]) -> Html:
    items = [
        element("li", element("a", section.title, href=f"#{section.identity}"))
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


def subjects_data(subjects: Sequence[Subject], names: Sequence[str]) -> dict[str, Any]:
    """The data of the subjects, as the script reads it."""
    return {
        "names": list(names),
        "subjects": {
            subject.identity: {"name": subject.name, **subject.data} for subject in subjects
        },
    }
