"""The page with advice on a step."""

from __future__ import annotations

from wavecast.advice.proposals import StepAdvice
from wavecast.report.advice import (
    advice_lines,
    change_columns,
    codes_of,
    groups,
    other_lines,
    verdict,
)
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import bullets, element, joined, table
from wavecast.report.html.reports import sentence
from wavecast.report.tables import ANY_WIDTH, fitting

_TITLES = {
    "together": "What helps together",
    "faster": "What makes it faster",
    "smaller": "What makes it smaller",
}


def advice_report(advice: StepAdvice) -> Report:
    """The verdict, the changes that help with their code, and what is of no use."""
    return Report(advice.name, joined([verdict(advice)]), advice_sections(advice))


def advice_sections(advice: StepAdvice) -> tuple[Section, ...]:
    """The sections about advice, for a page of its own or for the report of a step."""
    sections = []
    for name, rows in groups(advice):
        listed = table(fitting(change_columns(advice, rows), ANY_WIDTH), caption=_TITLES[name])
        sections.append(Section(name, _TITLES[name], listed, short=name))
    codes = bullets(
        joined([f"{title}: ", element("code", code)]) for title, code in codes_of(advice)
    )
    if codes:
        sections.append(Section("code", "What to write", codes, short="code"))
    others = other_lines(advice)
    if others:
        listed = bullets(map(sentence, others))
        sections.append(Section("elsewhere", "The step on other GPUs", listed, short="other GPUs"))
    told = bullets(sentence(line) for line in advice_lines(advice) if line not in others)
    sections.append(Section("useless", "What does not help here", told, short="no use"))
    return tuple(sections)
