"""The page about several steps side by side."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import bullets, element, joined, table
from wavecast.report.html.reports import sentence
from wavecast.report.side_by_side import StepsOnGpu, letters, step_columns, verdict


def side_by_side_report(rows: Sequence[StepsOnGpu]) -> Report:
    """The fastest step on each GPU, and the figures of all."""
    named = zip(letters(rows[0]), rows[0].names, strict=True)
    names = element("p", " ".join(f"{letter}: {name}." for letter, name in named), class_="lead")
    sections = [
        Section(
            f"gpu-{number}",
            f"On {row.gpu}",
            joined(
                [
                    table(step_columns(row), caption="The steps"),
                    bullets(
                        sentence(note)
                        for note in dict.fromkeys(n for step in row.steps for n in step.notes)
                    ),
                ]
            ),
            short=row.gpu,
        )
        for number, row in enumerate(rows)
    ]
    told = joined(f"{verdict(row)} " for row in rows)
    return Report(" and ".join(rows[0].names), told, tuple(sections), names)
