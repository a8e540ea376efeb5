"""What commands print with `--json` where it is more than one result or a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wavecast.hardware.device import Fact
from wavecast.hardware.kept_hosts import KeptHost
from wavecast.report.fields import Field, described, output
from wavecast.runs.run import Run
from wavecast.runs.store.imported import Imported
from wavecast.steps.learning import LearnedStep
from wavecast.traces.step import Trace

TRACE = output(
    "The calls and the work of a traced or measured step.",
    Field("target", kind=str, meaning="The step."),
    Field("", "trace", kind=Trace, inline=True),
)
CALIBRATION = output(
    "A calibrated host, with the measured facts of its GPU; null where there is no GPU.",
    Field("host", kind=KeptHost, meaning="The host, with the file in which it is kept."),
    Field("gpu", kind=str | None, meaning="The id of the GPU."),
    Field("file", kind=str | None, meaning="The file with the facts of the GPU."),
    Field("measured", kind=Mapping[str, Fact] | None, meaning="What was measured on the GPU."),
)
LEARNING = output(
    "What measured steps and ops teach about predictions for their GPU.",
    Field("gpu", kind=str, meaning="The id of the GPU."),
    Field("steps", kind=Sequence[LearnedStep], meaning="The steps, each judged by the others."),
    Field("ops", kind=int, meaning="The number of ops of single layers that the file keeps."),
    Field("file", kind=str, meaning="The file that keeps it."),
)


@dataclass(frozen=True)
class TimedLayers:
    """The layers that were timed into a file."""

    kind: str
    """The kind of layer."""
    file: str
    """The file with their times."""
    rows: int
    """How many layers it has."""


@dataclass(frozen=True)
class StoredRuns:
    """What importing files of runs into a store did."""

    store: str
    """The store."""
    files: Sequence[Imported]
    """What importing each file did."""
    warnings: Sequence[str]
    """What is doubtful about the files."""
    failed: Sequence[str]
    """Why some files could not be read."""


@dataclass(frozen=True)
class ReadRuns:
    """The runs of some files, which were not stored."""

    runs: Sequence[Run]
    """The runs."""
    warnings: Sequence[str]
    """What is doubtful about the files."""
    failed: Sequence[str]
    """Why some files could not be read."""


@dataclass(frozen=True)
class ExportedRuns:
    """The runs that were written into a file."""

    file: str
    """The file."""
    runs: int
    """How many runs it has."""
    store: str
    """The store that they are from."""


@dataclass(frozen=True)
class NetworkCard:
    """The card of a fitted network: on what it was fitted, and how wrong it is."""

    kind: str
    """The kind of layer."""
    target: str
    """The passes whose time it predicts."""
    fitted: str
    """The day of the fit."""
    data: str
    """Where the times are from."""
    rows: int
    """How many layers it was fitted on."""
    gpus: Sequence[str]
    """The GPUs that the layers ran on."""
    vendors: Sequence[str]
    """The vendors of these GPUs."""
    width: int
    """Neurons of a hidden layer."""
    depth: int
    """Hidden layers."""
    epochs: int
    """Passes over the rows."""
    batch: int
    """Rows of a batch."""
    rate: float
    """The learning rate."""
    late_rate: float
    """The learning rate of the last epochs."""
    late_after: int
    """The epochs before the learning rate falls."""
    decay: float
    """The weight decay."""
    seed: int
    """The seed of the random numbers."""
    least_s: float
    """The shortest time of a row, in seconds."""
    low: float
    """The low end of the range, as a factor."""
    high: float
    """The high end of the range, as a factor."""
    train_error: float
    """The mean error on the rows, in percent."""
    configuration_error: float
    """That on layers left out, in percent."""
    left_out: Mapping[str, float]
    """That on each GPU left out, in percent."""
    ranges: Mapping[str, Sequence[float]]
    """The ends of each feature."""


NETWORK_CARD = described(NetworkCard)
