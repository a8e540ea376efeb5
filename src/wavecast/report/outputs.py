"""What commands print with `--json` where it is more than one result or a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wavecast.hardware.device import Fact
from wavecast.hardware.kept_hosts import KeptHost
from wavecast.report.fields import Field, output
from wavecast.runs.run import Run
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
LAYERS = output(
    "The layers that were timed into a file.",
    Field("kind", kind=str, meaning="The kind of layer."),
    Field("file", kind=str, meaning="The file with their times."),
    Field("rows", kind=int, meaning="How many layers it has."),
)
IMPORTED = output(
    "What importing one file of runs did.",
    Field("file", kind=str, meaning="The file."),
    Field("runs", kind=int, meaning="How many runs it has."),
    Field("new", kind=int, meaning="How many of them the store did not have."),
    Field("resumed_at", kind=int, meaning="How many runs an interrupted import had added."),
)
_TROUBLE = (
    Field("warnings", kind=Sequence[str], meaning="What is doubtful about the files."),
    Field("failed", kind=Sequence[str], meaning="Why some files could not be read."),
)
STORED_RUNS = output(
    "What importing files of runs into a store did.",
    Field("store", kind=str, meaning="The store."),
    Field("files", kind=[IMPORTED], meaning="What importing each file did."),
    *_TROUBLE,
)
READ_RUNS = output(
    "The runs of some files, which were not stored.",
    Field("runs", kind=Sequence[Run], meaning="The runs."),
    *_TROUBLE,
)
EXPORTED_RUNS = output(
    "The runs that were written into a file.",
    Field("file", kind=str, meaning="The file."),
    Field("runs", kind=int, meaning="How many runs it has."),
    Field("store", kind=str, meaning="The store that they are from."),
)
NETWORK_CARD = output(
    "The card of a fitted network: on what it was fitted, and how wrong it is.",
    Field("kind", kind=str, meaning="The kind of layer."),
    Field("target", kind=str, meaning="The passes whose time it predicts."),
    Field("fitted", kind=str, meaning="The day of the fit."),
    Field("data", kind=str, meaning="Where the times are from."),
    Field("rows", kind=int, meaning="How many layers it was fitted on."),
    Field("gpus", kind=Sequence[str], meaning="The GPUs that the layers ran on."),
    Field("vendors", kind=Sequence[str], meaning="The vendors of these GPUs."),
    Field("width", kind=int, meaning="Neurons of a hidden layer."),
    Field("depth", kind=int, meaning="Hidden layers."),
    Field("epochs", kind=int, meaning="Passes over the rows."),
    Field("batch", kind=int, meaning="Rows of a batch."),
    Field("rate", kind=float, meaning="The learning rate."),
    Field("late_rate", kind=float, meaning="The learning rate of the last epochs."),
    Field("late_after", kind=int, meaning="The epochs before the learning rate falls."),
    Field("decay", kind=float, meaning="The weight decay."),
    Field("seed", kind=int, meaning="The seed of the random numbers."),
    Field("least_s", kind=float, meaning="The shortest time of a row, in seconds."),
    Field("low", kind=float, meaning="The low end of the range, as a factor."),
    Field("high", kind=float, meaning="The high end of the range, as a factor."),
    Field("train_error", kind=float, meaning="The mean error on the rows, in percent."),
    Field("configuration_error", kind=float, meaning="That on layers left out, in percent."),
    Field("left_out", kind=Mapping[str, float], meaning="That on each GPU left out, in percent."),
    Field("ranges", kind=Mapping[str, Sequence[float]], meaning="The ends of each feature."),
)
