"""The section about text generation in the report of a prediction."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.report.generation import generation_columns, meaning
from wavecast.report.html.documents import Section
from wavecast.report.html.markup import element, joined, table
from wavecast.report.html.reports import sentence
from wavecast.steps.generation import TextGeneration

_TITLE = "Text generation"


def generation_sections(rows: Sequence[TextGeneration]) -> tuple[Section, ...]:
    """The times of tokens and what fits; nothing for steps that train."""
    if not rows:
        return ()
    listed = table(generation_columns(rows), caption=_TITLE)
    content = joined([listed, element("p", sentence(meaning(rows)))])
    return (Section("generation", _TITLE, content, short="tokens"),)
