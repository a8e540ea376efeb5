"""Pages about profiles: how well a step uses the GPU, and which kernels take the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wavecast.report import profiles as texts
from wavecast.report.fields import columns as columns_of
from wavecast.report.html.compared import ComparedStep
from wavecast.report.html.comparison import tiles, verdict
from wavecast.report.html.details import details
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import bullets, element, joined, table
from wavecast.report.html.reports import prediction_report
from wavecast.steps.prediction import Prediction
from wavecast.steps.profile import Profile
from wavecast.steps.timetable import of_measured
from wavecast.traces.step import Trace

_KERNELS = 20


def predicted_profile_report(
    title: str, profiles: Sequence[Profile], predictions: Sequence[Prediction]
) -> Report:
    """Profiles of a predicted step: the report of its predictions, with utilisation."""
    made = prediction_report(title, predictions)
    first, *others = made.sections
    return replace(made, sections=(first, _utilisation(profiles), *others))


def measured_profile_report(title: str, profile: Profile, trace: Trace) -> Report:
    """The profile of a measured step."""
    candidate = ComparedStep(
        name=f"{profile.device.id} (measured)",
        device=profile.device,
        seconds=profile.seconds,
        low_s=None,
        high_s=None,
        throughput=profile.throughput,
        unit=profile.unit,
        offer=None,
        memory=None,
        bound_by="gpu" if profile.gpu_utilisation > 0.9 else "host",
        is_comparable=True,
        timetables=lambda: {"": of_measured(trace)},
    )
    shown = details([candidate])
    notes = Section("notes", "Notes", bullets(profile.notes)) if profile.notes else None
    return Report(
        title,
        verdict([candidate]),
        (_utilisation([profile]), *shown.sections, *([notes] if notes else [])),
        tiles(candidate),
        shown.subjects,
        shown.names,
    )


def _utilisation(profiles: Sequence[Profile]) -> Section:
    """How well the GPU is used, and the kernels or ops that take most time."""
    parts = [table(texts.profile_columns(profiles), caption="How well the GPU is used")]
    for profile in profiles:
        what = "kernels" if profile.measured else "ops"
        heading = f"Longest {what} on {profile.device.id}"
        columns = columns_of(profile.kernels[:_KERNELS])
        parts += [element("h3", heading), table(columns, caption=heading)]
    lead = " ".join(f"{line[:1].upper()}{line[1:]}." for line in texts.explanations(profiles))
    return Section("utilisation", "How well the GPU is used", joined(parts), lead, "utilisation")
