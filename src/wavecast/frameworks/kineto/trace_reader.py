"""The measured Trace of a step in a profiler file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto.calls import ProfileRecording, calls_of, record
from wavecast.frameworks.kineto.events import RUNTIME_CATEGORIES, is_communication, text_of, waits
from wavecast.frameworks.kineto.schema import has_torch
from wavecast.frameworks.kineto.survey import Survey, choose, named, steady_s, survey_of
from wavecast.traces.file import Interval
from wavecast.traces.step import Call, Measurement, Trace


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


# The metadata of a profiler file: GPU, software and rank; and the notes of its trace.


_LONGEST_VERSION = 100


def properties_of(survey: Survey, position: int) -> Mapping[str, Any]:
    """The file's entry (`deviceProperties`) for the GPU that worked longest on a step."""
    rows = survey.rows(position)
    spent = survey.end_us[rows] - survey.begin_us[rows]
    devices, which = np.unique(survey.device[rows], return_inverse=True)
    busiest = int(devices[np.bincount(which, weights=spent).argmax()])
    listed = survey.fields.get("deviceProperties")
    gpus = (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )
    return next((gpu for gpu in gpus if gpu.get("id") == busiest), gpus[0] if gpus else {})


def capability_of(properties: Mapping[str, Any]) -> tuple[int, int] | None:
    """The compute capability. None for AMD, whose fields of that name mean something else."""
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    name = text_of(properties.get("name"))
    amd = properties.get("warpSize") == 64 or any(w in name for w in ("AMD", "Radeon", "Instinct"))
    if amd or not isinstance(major, int) or not isinstance(minor, int):
        return None
    return (major, minor) if 0 < major <= 99 and 0 <= minor <= 99 else None


def software_in(fields: Mapping[str, Any]) -> str:
    """The versions of driver and libraries that the file names."""
    named = []
    for key, label in (
        ("cuda_runtime_version", "CUDA runtime"),
        ("cuda_driver_version", "CUDA driver"),
        ("hip_runtime_version", "HIP runtime"),
        ("hip_driver_version", "HIP driver"),
    ):
        version = fields.get(key)
        if isinstance(version, int) and key.startswith("cuda"):
            named.append(f"{label} {version // 1000}.{version % 1000 // 10}")
        elif text := _short(version):
            named.append(f"{label} {text}")
    if cupti := _short(fields.get("cupti_version")):
        named.append(f"CUPTI {cupti}")
    if nccl := _short(_distributed(fields).get("nccl_version")):
        named.append(f"NCCL {nccl}")
    return ", ".join(named)


def _short(value: Any) -> str:
    """A version or a number as text; "" if it is neither."""
    text = str(value) if isinstance(value, int | float) else text_of(value)
    return text if len(text) <= _LONGEST_VERSION else ""


def _distributed(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    info = fields.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def notes_of(
    survey: Survey, position: int, recording: ProfileRecording, calls: Sequence[Call]
) -> Iterator[str]:
    """The notes of the trace: where its numbers come from, and what the file does not have."""
    yield _which_step(survey, position)
    info = _distributed(survey.fields)
    if isinstance(info.get("world_size"), int):
        yield f"rank {_short(info.get('rank')) or '?'} of {info['world_size']}"
    if survey.left_out:
        plural = "" if survey.left_out == 1 else "s"
        yield (
            f"{survey.left_out} GPU event{plural} left out: a time that is negative, no number, "
            "longer than an hour, or more than an hour away from all other events"
        )
    if not properties_of(survey, position).get("name"):
        yield "the file does not name the GPU"
    devices = set(survey.device[survey.rows(position)].tolist())
    if len(devices) > 1:
        yield f"the process used {len(devices)} GPUs; their kernels are counted together"
    exchanged = [k.seconds for call in calls for k in call.kernels if is_communication(k.name)]
    if exchanged:
        yield f"{_counted(exchanged, 'communication kernel')} between GPUs"
    shapes = {"Input Dims", "Input dims"}
    recorded = any(shapes & node.span.arguments.keys() for node in recording.nodes)
    if recorded and not has_torch():
        yield from _without_torch(calls)
    elif not any(call.op.inputs for call in calls if not call.op.name.startswith("nccl.")):
        yield (
            "the file has no shapes, so the FLOPs and bytes of its ops are not known; record with "
            "record_shapes=True"
        )
    nameless = [k.seconds for c in calls if c.op.name.startswith("kernel.") for k in c.kernels]
    if nameless:
        yield f"{_counted(nameless, 'kernel')} outside any known op"
    if recording.orphans:
        unlaunched = [run.kernel.seconds for run in recording.orphans]
        yield f"{_counted(unlaunched, 'kernel')} whose launch is not in the file"


def _without_torch(calls: Sequence[Call]) -> Iterator[str]:
    """A note on the ops whose outputs are unknown without PyTorch, if there are any."""
    unknown = [
        sum(kernel.seconds for kernel in call.kernels)
        for call in calls
        if call.kernels and call.op.name.startswith("aten.") and not call.op.outputs
    ]
    if unknown:
        yield (
            f"PyTorch is not installed, so the outputs of {_counted(unknown, 'op')} are not known "
            "and predictions for other GPUs may differ; for the exact ones, pip install "
            "'wavecast[torch]' and read the file again"
        )


def _which_step(survey: Survey, position: int) -> str:
    numbers = [step.number for step in survey.steps]
    if numbers[position] is None:
        return "the file marks no steps, so all of it is taken as one iteration"
    if len(numbers) == 1:
        return f"step {numbers[0]}, the only one in the file"
    return f"step {numbers[position]} of {named([n or 0 for n in numbers])}"


def _counted(seconds: Sequence[float], what: str) -> str:
    plural = "" if len(seconds) == 1 else "s"
    return f"{len(seconds)} {what}{plural} ({sum(seconds) * 1e3:.3g} ms)"
