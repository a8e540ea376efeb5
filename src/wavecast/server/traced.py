"""The trace of a question: read from an uploaded file, or made of a model, and kept for the next.

Only models that ship with the package are made, so that no code of a user runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import wavecast
from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.hardware.devices import Device, family, usual_gpu
from wavecast.predictors.retargeting import FamilyTraces
from wavecast.server.questions import digest
from wavecast.suite import benchmark
from wavecast.suite.tags import DEFAULT_SEQ, OWN_SIZES
from wavecast.targets.sources import StepSource, traced_target
from wavecast.targets.targets import DECODERS, Target, Trait, hugging_face_name, resolve, sizes_of
from wavecast.traces.kept import Recent
from wavecast.traces.step import Trace, load_trace

_KEPT_CALLS = 200_000
"""The calls of all traces that a worker keeps at hand."""
_COMMON = (8, 0)
"""The capability of the GPU for which a model is traced first: it serves most others as well."""


@dataclass(frozen=True)
class QuestionedStep:
    """The step of a question: its name, how to trace it, and its traces."""

    name: str
    target: Target
    traces: FamilyTraces
    measured: bool = False
    """Whether the step was measured on a GPU, so that its times are scaled."""


class TraceShelf:
    """The traces that a worker has at hand, and a folder that all workers share."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._kept: Recent[Trace] = Recent(_KEPT_CALLS, lambda _, trace: len(trace), fewest=1)

    def get(self, name: str, make: Callable[[], Trace], *, share: bool) -> Trace:
        """The trace of that name; `make` makes it if it is not here."""
        if (kept := self._kept.get(name)) is not None:
            return kept
        trace = (self._shared(name) if share else None) or make()
        if share and self.folder is not None:
            with suppress(InvalidInput, OSError):  # a full disk; the trace is at hand anyway
                _share(trace, self.folder / f"{name}.json.gz")
        return self._kept.put(name, trace)

    def _shared(self, name: str) -> Trace | None:
        if self.folder is None:
            return None
        path = self.folder / f"{name}.json.gz"
        with suppress(InvalidInput, OSError):  # there is none, or it is damaged: it is made again
            if _checksum(path) == _checksum_path(path).read_text("ascii", "replace").split():
                return load_trace(path)
        return None


def _share(trace: Trace, path: Path) -> None:
    """Keep a trace for other workers, with a checksum that tells it from any other file."""
    if path.exists() and _checksum_path(path).exists():
        return
    trace.save(path)
    write_whole(_checksum_path(path), " ".join(_checksum(path)))


def _checksum_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _checksum(path: Path) -> list[str]:
    """The digest of a file and its name, as `sha256sum` writes them."""
    with path.open("rb") as file:
        return [hashlib.file_digest(file, "sha256").hexdigest(), path.name]


def questioned_step(
    step: Mapping[str, Any], gpus: list[Device], file: Path | None, shelf: TraceShelf
) -> QuestionedStep:
    """The traces of a question's step, for the GPUs that it names.

    Args:
        step: the part of a question that decides the trace.
        gpus: the GPUs that are compared.
        file: the uploaded file, if the step is one.
        shelf: where traces are kept.
    """
    if file is not None:
        return _uploaded(step, file, shelf)
    target = replace(model_target(step), compiled=bool(step.get("compile")))

    def trace_at(gpu: Device | None, _: int | None) -> Trace:
        gpu = gpu or usual_gpu(_COMMON)
        kind = gpu.id if target.compiled else family(gpu)
        name = digest("trace", wavecast.__version__, step, kind)
        return shelf.get(name, lambda: traced_target(target, gpu), share=True)

    source = StepSource(trace_at)
    if not target.compiled:
        source.on(usual_gpu(_COMMON))
    return QuestionedStep(target.name, target, source.families(gpus))


def _uploaded(step: Mapping[str, Any], file: Path, shelf: TraceShelf) -> QuestionedStep:
    batch = step["batch"]
    read = shelf.get(
        digest("file", file.name, batch), lambda: read_file(_unchanged(file), batch), share=False
    )
    measured = read.measurement is not None
    if step["precision"] is not None and not measured:
        raise InvalidInput("the precision of a trace is fixed; leave it as it was traced")
    name = step["label"] or "the uploaded file"
    target = Target(name, trace=read, samples=read.samples, unit=read.unit)
    return QuestionedStep(name, target, FamilyTraces((read,)), measured)


def _unchanged(file: Path) -> Path:
    """An uploaded file, whose name is the digest of what was uploaded."""
    with suppress(OSError):
        if _checksum(file)[0] == file.name.partition(".")[0]:
            return file
    raise InvalidInput("the uploaded file was changed or removed on the server; upload it again")


def read_file(file: Path, batch: int | None = None) -> Trace:
    """The trace in an uploaded file: one of our own, or one of torch.profiler."""
    trace = resolve(str(file), batch).trace
    assert trace is not None
    return trace


def model_target(step: Mapping[str, Any]) -> Target:
    """The step of a model by its name, batch, precision and sizes.

    Raises:
        InvalidInput: it has no such size.
        UnknownName: there is no such model.
    """
    name, sizes = step["model"], dict(step["sizes"])
    batch, precision = step["batch"], step["precision"] or "fp32"
    if name in DECODERS:
        known = decoder_sizes(name)
        _refuse_others(name, sizes, known)
        # `llama` without sizes is a model of the suite; here it is a decoder all the same.
        chosen: dict[str, Any] = {"layers": known["layers"]} | sizes
        return resolve(name, batch, precision, ModelOptions(**chosen))
    if hugging_face_name(name) is not None:
        _refuse_others(name, sizes, ["seq"])
        own: dict[str, Any] = sizes | {
            "lora": "r=16" if step["adapters"] == "lora" else None,
            "qlora": step["adapters"] == "qlora",
            "checkpointing": step["checkpointing"],
        }
        return resolve(name, batch, step["precision"], ModelOptions(**own))
    model = benchmark(name)
    if not sizes:
        return resolve(model.name, batch, precision)
    _refuse_others(name, sizes, model.sizes())
    size = batch or model.default_batch
    per_sample = model.units_per_sample
    if model.unit == "tokens":
        per_sample = sizes.get("sequence", per_sample)
    shown = ", ".join(f"{option} {value}" for option, value in sizes.items())
    return Target(
        f"{model.name} ({shown}), batch {size}, {precision}",
        make_step=lambda: model.make_step(size, precision, **sizes),
        samples=round(size * per_sample),
        unit=model.unit,
        text=model.name,
        batch=size,
        precision=precision,
        kind=Trait.LIBRARY,
    )


def decoder_sizes(name: str) -> dict[str, int | None]:
    """The sizes of a decoder of any size, with their defaults; None for those that follow others.

    `seq` is the number of tokens in a sequence.
    """
    own = OWN_SIZES[name]
    return {"seq": DEFAULT_SEQ} | {size: own.get(size) for size in sizes_of(name)}


def _refuse_others(name: str, sizes: Mapping[str, int], known: Iterable[str]) -> None:
    unknown = sorted(set(sizes).difference(known))
    if unknown:
        raise InvalidInput(f"{name} has no size {', '.join(unknown)}; it has {', '.join(known)}")
