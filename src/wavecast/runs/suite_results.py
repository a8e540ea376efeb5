"""Results of the benchmark suite: the CSV table that `wavecast suite run` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wavecast.files import GrowingTable, csv_line, write_whole
from wavecast.hardware.devices import known_device
from wavecast.showing import Shown


@dataclass(frozen=True, slots=True)
class SuiteStep:
    """One training step of the suite."""

    model: str
    batch: int
    """The samples of one step on each GPU."""
    precision: str
    gpus: int = 1
    """How many GPUs run it, each with its own batch (data parallelism)."""
    nodes: int = 1
    """How many machines these GPUs are in."""


@dataclass(frozen=True, slots=True)
class SuiteResult(Shown):
    """The measured or predicted values of one step.

    A value is None when it is unknown, or when the step did not run.
    """

    model: str
    batch: int
    precision: str
    gpu: str
    status: str
    """"ok", "oom" (out of memory) or "predicted"."""
    unit: str = "samples"
    seconds: float | None = None
    """The median iteration of the stable phase."""
    throughput_per_s: float | None = None
    gpu_utilisation: float | None = None
    fp32_utilisation: float | None = None
    tensor_utilisation: float | None = None
    cpu_utilisation: float | None = None
    gpu_s: float | None = None
    host_s: float | None = None
    weights_bytes: int | None = None
    weight_gradients_bytes: int | None = None
    feature_maps_bytes: int | None = None
    workspace_bytes: int | None = None
    dynamic_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    warm_up: int | None = None
    """How many iterations came before the stable phase; a third of them if it was not found."""
    iterations: int | None = None
    """How many iterations the stable phase has."""
    software: str = ""
    settled: bool | None = None
    """Whether the stable phase was found. None when unknown, as in files of earlier versions."""
    tokens_per_s: float | None = None
    """The tokens of a second, beside the throughput in `unit`. None for models without tokens."""
    gpus: int = 1
    """How many GPUs ran it, each with its own batch; the throughput is that of all together."""
    nodes: int = 1
    """How many machines these GPUs are in."""

    @property
    def framework(self) -> str:
        """The framework of a result: the first word of its software, without the version."""
        return self.software.partition(" ")[0].strip(",")

    @property
    def configuration(self) -> SuiteStep:
        """The step that was measured or predicted."""
        return SuiteStep(self.model, self.batch, self.precision, self.gpus, self.nodes)


COLUMNS = tuple(field.name for field in fields(SuiteResult))

_COUNTS = {"gpus", "nodes"}
_WHOLE = {"batch", "warm_up", "iterations", *_COUNTS} | {n for n in COLUMNS if n.endswith("_bytes")}
_TEXTS = {"model", "precision", "gpu", "status", "unit", "software"}
_ANSWERS = {True: "yes", False: "no"}
_EARLIER = (
    COLUMNS[: COLUMNS.index("settled")],
    COLUMNS[: COLUMNS.index("tokens_per_s") + 1],
)
"""The columns of files that earlier versions wrote."""


CPU = "cpu"
"""What results have in place of a GPU if they were tried out on a CPU."""


def gpu_name(gpu: str) -> str:
    """The name of the GPU with this id."""
    return "a CPU" if gpu == CPU else known_device(gpu).name


def read_results(path: Path) -> tuple[SuiteResult, ...]:
    """The results in a file. If a step was measured again on a GPU, its last result there.

    Raises:
        InvalidInput: the file holds something else, or is damaged; says which line and why.
    """
    rows = {(row.configuration, row.gpu, row.framework): row for row in TABLE.read(path)}
    return tuple(rows.values())


def _to_texts(result: SuiteResult) -> dict[str, str]:
    values = {name: getattr(result, name) for name in COLUMNS}
    return {
        name: _ANSWERS[value] if isinstance(value, bool) else _text(value)
        for name, value in values.items()
    }


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _from_texts(texts: Mapping[str, str]) -> SuiteResult:
    return SuiteResult(**{name: _value(name, text) for name, text in texts.items()})


MOST = 1e18
"""No measured figure is as large."""


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    if not text:
        return 1 if name in _COUNTS else None
    if name == "settled":
        return {answer: value for value, answer in _ANSWERS.items()}[text]
    number = int(text) if name in _WHOLE else float(text)
    least = 1 if name in _COUNTS else 0
    if not least <= number < MOST:
        raise ValueError(f"{name} is {text[:40]}, but must be a number from {least} to {MOST:g}")
    return number


TABLE = GrowingTable("suite results", COLUMNS, _to_texts, _from_texts, _EARLIER)


def write_results(path: Path, results: Sequence[SuiteResult]) -> None:
    """Write results into a new file; one that exists is replaced."""
    texts = map(_to_texts, results)
    lines = [csv_line(COLUMNS), *(csv_line(row[name] for name in COLUMNS) for row in texts)]
    write_whole(path, b"".join(lines).decode())
