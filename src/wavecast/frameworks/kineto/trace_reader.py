"""The measured Trace of a step in a profiler file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto.calls import calls_of
from wavecast.frameworks.kineto.events import RUNTIME_CATEGORIES, text_of
from wavecast.frameworks.kineto.host_time import waits
from wavecast.frameworks.kineto.metadata import capability_of, notes_of, properties_of, software_in
from wavecast.frameworks.kineto.recorded_step import ProfileRecording, record
from wavecast.frameworks.kineto.survey import Survey, choose, steady_s, survey_of
from wavecast.traces.overlap import Interval
from wavecast.traces.step import Measurement, Trace


def read_kineto(
    path: str | PathLike[str],
    *,
    step: int | None = None,
    samples: int | None = None,
    unit: str = "samples",
) -> Trace:
    """The measured trace of a step in a file that torch.profiler wrote (`.json` or `.json.gz`).

    Example:
        ```python
        with torch.profiler.profile(record_shapes=True) as prof:
            step()
        prof.export_chrome_trace("step.json.gz")
        trace = wavecast.read_kineto("step.json.gz")
        wavecast.predict(trace, "h100-sxm-80gb").seconds
        ```

    Args:
        path: the file. `prof.export_chrome_trace(path)` writes one.
        step: the number of the iteration (`ProfilerStep#`) to read. None for the most typical one.
            A file that marks no iterations is read as one iteration.
        samples: how many samples (or other `unit`) one step consumes, for throughput.
        unit: what `samples` counts.

    Raises:
        InvalidInput: the file cannot be read, has no such step, or has no GPU events.
    """
    survey = survey_of(Path(path))
    position = choose(survey, step)
    recording = record(survey, position)
    _refuse_without_step(survey, position, recording)
    window = _host_window(survey, position, recording)
    waited = _waits(recording)
    calls = calls_of(recording, window, waited)
    properties = properties_of(survey, position)
    host_s = None if window is None else sum(call.host_s or 0.0 for call in calls)
    measurement = _measurement(survey, position, recording, text_of(properties.get("name")), host_s)
    return Trace(
        calls=calls,
        framework="torch (profiler file)",
        capability=capability_of(properties),
        samples=samples,
        unit=unit,
        notes=tuple(notes_of(survey, position, recording, calls)),
        measurement=measurement,
    )


_LEAST_BUSY, _LONG_S = 0.02, 1.0
"""A file that marks no steps, takes longer, and in which the GPU works less, is no step."""


def _refuse_without_step(survey: Survey, position: int, recording: ProfileRecording) -> None:
    """Refuse a file that is a whole program rather than a step."""
    extent_s = _extent_s(recording)
    busy_s = survey.busy_s(position)
    is_marked = survey.steps[position].number is not None
    if not is_marked and extent_s > _LONG_S and busy_s < _LEAST_BUSY * extent_s:
        raise InvalidInput(
            f"no step can be found in {survey.path}: it marks none, and the GPU works for "
            f"{busy_s:.3g} of its {extent_s:.3g} s; call prof.step() after each iteration, or "
            "profile one iteration only"
        )


def _host_window(survey: Survey, position: int, recording: ProfileRecording) -> Interval | None:
    """When the host worked on a step: as marked, or the host's events if there is one step only."""
    window = recording.host_window()
    if window is None or len(survey.steps) == 1:
        return window
    step = survey.steps[position]
    return step.begin_us, step.end_us


def _waits(recording: ProfileRecording) -> list[Interval]:
    """When the host waited, in the threads that issue work."""
    issuing = {node.span.thread for node in recording.nodes if node.span.category == "cpu_op"}
    calls = [
        node
        for node in recording.nodes
        if node.span.category in RUNTIME_CATEGORIES and (node.span.thread in issuing or not issuing)
    ]
    ran = {node: (runs[0].begin_us, runs[-1].end_us) for node, runs in recording.launched.items()}
    return waits(calls, ran)


def _measurement(
    survey: Survey, position: int, recording: ProfileRecording, gpu: str, host_s: float | None
) -> Measurement:
    steady = steady_s(survey)
    seconds, repeats = steady or (_extent_s(recording), 1)
    return Measurement(
        gpu=gpu,
        seconds=seconds,
        gpu_s=survey.busy_s(position),
        host_s=host_s,
        repeats=repeats,
        software=software_in(survey.fields),
    )


def _extent_s(recording: ProfileRecording) -> float:
    """The time from the first event of host or GPU to the end of the last one."""
    window = recording.host_window()
    intervals = [(run.begin_us, run.end_us) for run in recording.runs]
    intervals += [] if window is None else [window]
    return (max(end for _, end in intervals) - min(begin for begin, _ in intervals)) / 1e6
