"""The predicted time of a training step, on one GPU or spread over several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.files import write_whole
from wavecast.footprint.memory import Memory, fullest_trace, memory, memory_of_rank
from wavecast.hardware.clusters import Cluster
from wavecast.hardware.devices import Device
from wavecast.hardware.hosts import HostModel, Seconds
from wavecast.ops.registry import read
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.base import Estimate, Familiarity
from wavecast.results import Shown, checked, refuse_impossible
from wavecast.steps import ranges
from wavecast.steps.op_times import Answers, StepWork
from wavecast.steps.optimizer_step import (
    OptimizerStep,
    Ranks,
    StageTime,
    on_one_gpu,
    whole_step,
)
from wavecast.steps.player import StepTime, Timetable, chrome_trace
from wavecast.steps.timed_trace import Coded, Pace, TimedTrace
from wavecast.traces.arrays import Codes, encode, modules_of
from wavecast.traces.step import Call, Op, Phase, Trace

_Row = TypeVar("_Row")
MODELLED = "learned"
"""How the names of answers from fitted op models begin. Ops without a model get the share of the
roofline that such ops attain ("attainable")."""


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """The predicted time of one training step; `predict` makes it.

    ```python
    prediction = wavecast.predict(trace, "h100-sxm-80gb")
    prediction.seconds, prediction.low_s, prediction.high_s  # one iteration, and its range
    prediction.by_op()[0]  # the op on which the GPU spends most time
    eight = wavecast.predict(trace, "h100-sxm-80gb", parallel=wavecast.Parallel(data=8))
    eight.seconds, eight.throughput, eight.efficiency, eight.fits
    ```

    On several GPUs one iteration is one optimizer step of all of them, micro-batches included. Its
    GPU and host times, by op, module, phase and source, are those of one rank, collectives
    included: a rank of the pipeline stage that works longest.
    """

    trace: Trace
    """The step; on several GPUs, one micro-batch on one GPU."""
    device: Device
    answers: Answers
    """The predictor's estimate for each distinct piece of work of the trace."""
    host: HostModel
    """The host that issues the ops of each GPU."""
    pace: Pace | None = None
    """The corrections that make a measured step take its measured time. None for a traced step."""
    familiarity: Familiarity | None = None
    """How well the predictor knows the GPU. None if its steps were never compared with measured
    ones, for a measured step that is scaled, and on several GPUs."""
    scaling: ranges.ScaledTo | None = None
    """How a measured step came to this GPU. None for others, and where nothing tells its error."""
    notes: tuple[str, ...] = ()
    """Caveats and assumptions, beside those of the trace (`Trace.notes`)."""
    ranks: Ranks | None = field(default=None, repr=False)
    """What each group of ranks runs. None on one GPU."""
    largest: Trace | None = field(default=None, repr=False)
    """A step of the same loop that needs more memory. None if there is none."""

    def __repr__(self) -> str:
        ends = "" if self._range is None else ", low_s={:.4g}, high_s={:.4g}".format(*self._range)
        notes = f", notes={self.notes!r}" if self.notes else ""
        return f"Prediction({self.name!r}, seconds={self.seconds:.4g}{ends}{notes})"

    @property
    def name(self) -> str:
        """The GPUs: "l4", or "8 x l4"."""
        return self.device.id if self.gpus == 1 else f"{self.gpus} x {self.device.id}"

    @property
    def spread(self) -> ParallelStep | None:
        """What each group of ranks runs. None on one GPU."""
        return None if self.ranks is None else self.ranks.spread

    @property
    def parallel(self) -> Parallel | None:
        """How the step is spread over several GPUs. None on one GPU."""
        return None if self.ranks is None else self.ranks.spread.strategy

    @property
    def cluster(self) -> Cluster | None:
        """The machines and their links. None on one GPU."""
        return None if self.ranks is None else self.ranks.predictor.cluster

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return 1 if self.parallel is None else self.parallel.gpus

    @property
    def microbatches(self) -> int:
        """The micro-batches that one replica runs in the step."""
        return 1 if self.parallel is None else self.parallel.microbatches

    @cached_property
    def estimates(self) -> Mapping[Op, Estimate | None]:
        """The estimate for each distinct op that runs on the GPU; None if no predictor answered."""
        return {
            call.op: answer
            for timed, _ in self.runs
            for call, answer, launches in zip(
                timed.arrays.works, timed.answers, timed.work.launches, strict=True
            )
            if launches
        }

    @cached_property
    def step(self) -> StepTime:
        """The times of one iteration in the steady state of many."""
        return whole_step(self.runs, self.seconds)

    @property
    def _culprit(self) -> str:
        """What a reader should look at when the time of the step cannot be."""
        longest, missing = self.by_op()[0], ", ".join(list(self.unpredicted)[:3])
        part = f"longest op: {longest.name}" if longest.gpu_s else f"unpredicted: {missing or '-'}"
        return f"{part}, host: {self.host.name}"

    @cached_property
    def seconds(self) -> float:
        """Wall-clock time of one iteration.

        Raises:
            InvalidInput: the time is 0 or not finite; the message names the part that made it so.
        """
        seconds = self._optimizer_step.ranks_s + self._optimizer_step.waiting_s
        what = f"the step on {self.name} ({self._culprit})"
        refuse_impossible(what, {"seconds": seconds}, whole=True)
        return seconds

    @property
    def run_time_ms(self) -> float:
        """`seconds` in milliseconds, as Habitat's listing asks for it."""
        return self.seconds * 1e3

    @property
    def gpu_s(self) -> float:
        """The time of all kernels and collectives of one GPU; streams may overlap."""
        return sum(times * float(timed.call_s.sum()) for timed, times in self.runs)

    @property
    def host_s(self) -> float:
        """Time the host needs to issue one iteration."""
        return self.step.host_s

    @property
    def low_s(self) -> float | None:
        """The low end of the range of `seconds`; None where no measured steps gave a range."""
        return self._range and self._range[0]

    @property
    def high_s(self) -> float | None:
        """The high end of the range of `seconds`; None where `low_s` is."""
        return self._range and self._range[1]

    @property
    def held(self) -> ranges.Coverage | None:
        """How many measured steps lay in ranges like this one; None where nobody counted them."""
        basis = self.familiarity or self.scaling
        if self._range is None or basis is None:
            return None
        return ranges.held(basis, known=ranges.is_known(self.host, basis), bound_by=self.bound_by)

    @property
    def bound_by(self) -> str:
        """What limits the step: "gpu", "host", or "both" where they wait for each other.

        On several GPUs also "communication" or "pipeline bubble", if it takes half of the step.
        """
        if self.ranks is None:
            return self.step.bound_by
        lost = {"communication": self.exposed_s, "pipeline bubble": self.idle_s}
        most = max(lost, key=lost.__getitem__)
        if lost[most] > self.seconds / 2:
            return most
        own_s = self.seconds - self.waiting_s - sum(lost.values())
        return StepTime(own_s, self.step.gpu_s, self.step.host_s).bound_by

    @property
    def samples(self) -> int | None:
        """Samples (the trace's `unit`) of one iteration of all GPUs; None when unknown."""
        if self.trace.samples is None or self.parallel is None:
            return self.trace.samples
        return self.trace.samples * self.parallel.microbatches * self.parallel.data

    @property
    def throughput(self) -> float | None:
        """Samples per second of all GPUs together; None when the trace has no sample count."""
        return None if self.samples is None else self.samples / self.seconds

    @cached_property
    def single_s(self) -> float:
        """The time of one micro-batch with the optimizer on one GPU, as if it fitted there."""
        return self.seconds if self.ranks is None else self.ranks.alone.step.seconds

    @property
    def efficiency(self) -> float:
        """The speed per GPU, divided by that of one GPU that does the same work alone.

        It accumulates gradients and updates all weights once, as if they fitted there.
        """
        return 1.0 if self.ranks is None else self.ranks.alone_s(self.trace) / self.seconds

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """The times of each pipeline stage, or of all ranks."""
        return self._optimizer_step.stages

    @property
    def exposed_s(self) -> float:
        """The time in which a rank only communicates; of the stage that does so longest."""
        return max(stage.exposed_s for stage in self.stages)

    @property
    def idle_s(self) -> float:
        """The pipeline bubble: the time in which the busiest stage waits for other stages."""
        return min(stage.idle_s for stage in self.stages)

    @property
    def waiting_s(self) -> float:
        """The time in which ranks wait for the slowest of them."""
        return self._optimizer_step.waiting_s

    @cached_property
    def fullest(self) -> Trace:
        """What the rank runs that needs most memory, with all memory that it holds."""
        return self.trace if self.spread is None else fullest_trace(self.spread)

    @cached_property
    def memory(self) -> Memory | None:
        """The memory of the fullest GPU; None when the trace has no allocations."""
        if not self.trace.allocations:
            return None
        if self.largest is not None:
            return memory(self.largest, self.device, parallel=self.parallel)
        if self.parallel is None:
            return memory(self.trace, self.device)
        return memory_of_rank(self.fullest, self.parallel, self.device)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the GPU's memory (`Memory.fits`); None when unknown."""
        return None if self.memory is None else self.memory.fits

    @cached_property
    def unpredicted(self) -> Mapping[str, int]:
        """The number of calls of each op that no predictor could answer, by op name.

        Their GPU time is counted as 0, so reports always show them. On several GPUs they are
        counted in one micro-batch of one rank of each stage.
        """
        return unpredicted_calls(self._lasts)

    @cached_property
    def unpredicted_shares(self) -> Mapping[str, float]:
        """How much of the step was not predicted, as shares of its "bytes" and "FLOPs".

        A measured step also has the share of its "measured GPU time". Empty if all ops were
        predicted.
        """
        return unpredicted_shares(self._lasts)

    @property
    def unpredicted_share(self) -> float:
        """The largest of `unpredicted_shares`; 0 if all ops were answered, 1 if none was."""
        if self.unpredicted and not self.sources():
            return 1.0
        return max(self.unpredicted_shares.values(), default=0.0)

    def by_op(self) -> tuple[Share, ...]:
        """The GPU time by op name, longest first."""
        return shares_by(self.runs, lambda t: (t.arrays.names, t.arrays.name[t.arrays.work]))

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """The GPU time by module, longest first; paths are cut after `depth` names."""
        return shares_by(self.runs, lambda t: modules_of(t.arrays, depth))

    def by_phase(self) -> Mapping[Phase, float]:
        """The GPU time of each phase, in seconds."""
        seconds = sum(
            times * np.bincount(timed.arrays.phase, weights=timed.call_s, minlength=len(Phase))
            for timed, times in self.runs
        )
        return dict(zip(Phase, map(float, np.asarray(seconds)), strict=True))

    def by_label(self, label: Callable[[Op], str]) -> tuple[Share, ...]:
        """The GPU time by a label of each op, longest first."""
        return shares_by(self.runs, lambda t: t.coded([label(c.op) for c in t.arrays.works]))

    def sources(self) -> tuple[Share, ...]:
        """The GPU time by the predictor that answered, longest first."""
        shares = shares_by(self.runs, lambda t: t.coded([a.source if a else "" for a in t.answers]))
        return tuple(share for share in shares if share.name)

    @cached_property
    def modelled(self) -> float:
        """The share of the GPU time from fitted op models, or scaled by the method of its kind."""
        if self.scaling is not None:
            return ranges.share_by_kind(self._lasts)
        own_s = sum(share.gpu_s for share in self.sources() if share.name.startswith(MODELLED))
        return own_s / self.gpu_s if self.gpu_s else 0.0

    @cached_property
    def _optimizer_step(self) -> OptimizerStep:
        has_gaps = self.familiarity is Familiarity.MEASURED
        alone = TimedTrace(self.trace, self.answers, self.host, self.pace, has_gaps)
        return on_one_gpu(alone) if self.ranks is None else self.ranks.optimizer_step()

    @cached_property
    def runs(self) -> Sequence[tuple[TimedTrace, int]]:
        """What one rank runs in one iteration, and how often."""
        return self._optimizer_step.slowest.runs(self.microbatches)

    @property
    def _lasts(self) -> list[TimedTrace]:
        """The last micro-batch of a rank of each stage."""
        return [part.last for group in self._optimizer_step.groups for part in group.parts]

    @property
    def call_s(self) -> Seconds:
        """The GPU time of each call of `timetable`, in seconds, when nothing else runs."""
        return self.runs[-1][0].call_s

    @property
    def timetable(self) -> Timetable:
        """When each call is issued by the host and runs on the GPU.

        On several GPUs it is the last micro-batch of a rank, with reductions and the optimizer.
        """
        return self.runs[-1][0].timetable

    @cached_property
    def timetables(self) -> Mapping[str, Timetable]:
        """The timetable of each distinct rank, by what it is called; one GPU has no name.

        Of a stage with several parts of the model, the first part is shown.
        """
        groups = self._optimizer_step.groups
        alone = "" if self.ranks is None else "each GPU"
        return {
            alone if len(groups) == 1 else f"stage {group.stage}": group.parts[0].last.timetable
            for group in groups
        }

    def named_timetables(self) -> dict[str, Timetable]:
        """The timetables by GPUs and rank: "8 x l4, stage 0"."""
        return {
            ", ".join(filter(None, (self.name, rank))): table
            for rank, table in self.timetables.items()
        }

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the timetables as a file that Perfetto and chrome://tracing show."""
        write_whole(Path(path), chrome_trace(self.named_timetables()))

    @cached_property
    def gpu_spread(self) -> tuple[float, float]:
        """Low and high end of the GPU time, relative to it, from the ranges of the ops alone."""
        return ranges.spread_of(self._lasts)

    @cached_property
    def makeup(self) -> ranges.Makeup:
        """What the GPU time is made of, on which the width of its range depends."""
        return ranges.makeup_of(self.runs)

    @cached_property
    def _range(self) -> tuple[float, float] | None:
        """Low and high end of the step's time; None where no measured steps gave a range."""
        if self.ranks is not None:
            times = self.seconds, self.host_s, self.exposed_s, self.idle_s
            return ranges.range_on_several_gpus(self.ranks, self.makeup, *times)
        [(timed, _)] = self.runs
        basis = self.familiarity or self.scaling
        return ranges.range_on_one_gpu(timed, basis, self.makeup, self.modelled)


# How much of a step's work is of ops that no predictor could answer.
#
# Their GPU time is unknown and counts as 0, so the share of the step's bytes and FLOPs that is
# theirs says how wrong its time may be. An op without a formula moves at least the bytes of its
# tensors. Of a measured step the GPU time of each call is known too, and says it best.


WORTH_A_WORD = 0.02
"""From this share on, tables say how much of a step was not predicted."""
TOO_MUCH = 0.2
"""Above this share, predictions are not compared with each other."""

Amounts = Mapping[str, NDArray[np.float64]]
"""How much each piece of work of a step does, by what is counted."""


def unpredicted_calls(steps: Sequence[TimedTrace]) -> dict[str, int]:
    """The number of calls of each op without an answer, by op name."""
    calls: dict[str, int] = {}
    for timed in steps:
        rows = zip(timed.arrays.works, timed.arrays.counts.tolist(), _missing(timed), strict=True)
        for call, count, missing in rows:
            if missing:
                calls[call.op.name] = calls.get(call.op.name, 0) + count
    return calls


def unpredicted_shares(steps: Sequence[TimedTrace]) -> dict[str, float]:
    """The share of ops without an answer in the work of some traces, by what is counted.

    A share is left out where the step has none of what is counted: a profiler file may record no
    shapes.
    """
    missing = [np.array(_missing(timed)) for timed in steps]
    if not any(mask.any() for mask in missing):
        return {}
    amounts = [_amounts(timed.work) for timed in steps]
    shares = {}
    for name in amounts[0]:
        if total := sum(float(each[name].sum()) for each in amounts):
            pairs = zip(amounts, missing, strict=True)
            shares[name] = sum(float(each[name][mask].sum()) for each, mask in pairs) / total
    return shares


def _missing(timed: TimedTrace) -> list[bool]:
    """Whether each piece of work launches a kernel and has no answer."""
    pairs = zip(timed.work.launches, timed.answers, strict=True)
    return [launches and answer is None for launches, answer in pairs]


@lru_cache(maxsize=16)
def _amounts(work: StepWork) -> Amounts:
    """The bytes, FLOPs and measured seconds of each piece of work, over all of its calls."""
    arrays = work.arrays
    works = list(zip(arrays.works, work.launches, strict=True))

    def column(amount: list[float]) -> NDArray[np.float64]:
        return np.array(amount) * arrays.counts

    return {
        "bytes": column([_bytes(call.op) if launches else 0.0 for call, launches in works]),
        "FLOPs": column([ops.executed_flops(call.op) or 0.0 for call, _ in works]),
        "measured GPU time": column([_measured_s(call) for call, _ in works]),
    }


def _bytes(op: Op) -> float:
    cost = ops.cost_of(op)
    if cost is not None:
        return float(cost.bytes)
    return float(read((*op.inputs, *op.outputs))) if ops.has_shapes(op) else 0.0


def _measured_s(call: Call) -> float:
    return sum(kernel.seconds for kernel in call.kernels)


# The parts of a step, by op, module or predictor, and the GPU time of each.


@dataclass(frozen=True)
class Share:
    """One part of a step, such as an op name or a module."""

    name: str
    calls: int
    """How many calls of the step belong to it."""
    gpu_s: float
    """The GPU time of these calls together, in seconds."""


def shares_by(
    runs: Sequence[tuple[TimedTrace, int]], coded: Callable[[TimedTrace], Coded]
) -> tuple[Share, ...]:
    """The GPU time of traces, each run so many times, by a code of each call, longest first."""
    shares = [(shares_of(*coded(timed), timed.call_s), times) for timed, times in runs]
    if len(shares) == 1 and shares[0][1] == 1:
        return shares[0][0]
    sums: dict[str, tuple[int, float]] = {}
    for parts, times in shares:
        for part in parts:
            calls, gpu_s = sums.get(part.name, (0, 0.0))
            sums[part.name] = calls + times * part.calls, gpu_s + times * part.gpu_s
    added = (Share(name, *sums[name]) for name in sums)
    return tuple(sorted(added, key=lambda share: -share.gpu_s))


_NO_LINE = "no line of yours"
"""The line of ops whose line is not known: those of a library's thread, or of a saved trace."""


def shares_by_line(runs: Sequence[tuple[TimedTrace, int]]) -> tuple[Share, ...]:
    """The GPU time of traces by line of the user's code, longest first.

    The backward pass is at the line that starts it. Traces name all lines if they are asked to.
    """
    return shares_by(runs, lambda timed: encode([c.line or _NO_LINE for c in timed.trace.calls]))


def shares_of(names: Sequence[str], codes: Codes, seconds: Seconds) -> tuple[Share, ...]:
    """The parts of a step, longest first."""
    calls = np.bincount(codes, minlength=len(names)).tolist()
    times = np.bincount(codes, weights=seconds, minlength=len(names)).tolist()
    shares = map(Share, names, calls, times)
    return tuple(sorted(shares, key=lambda share: -share.gpu_s))


# Predictions as they leave the functions that make them: checked.


_CHECKED = ("seconds", "low_s", "high_s", "gpu_s", "host_s", "unpredicted_share")


def checked_step(step: Prediction) -> Prediction:
    """The prediction itself, if its times can be; every prediction passes here before it is told.

    Raises:
        InvalidInput: they cannot be; the message names the GPU and the field.
    """
    parts_s = {"gpu_s": (share.gpu_s for share in step.by_op())}
    return checked(step, f"the step on {step.name}", _CHECKED, parts_s)


# The order in which predictions are listed: GPUs on which the step does not fit come last.


def comparable(prediction: Prediction) -> bool:
    """Whether enough of a step was predicted to compare its time with that on other GPUs."""
    return prediction.unpredicted_share <= TOO_MUCH


def in_order(
    rows: Iterable[_Row],
    step: Callable[[_Row], Prediction],
    *,
    by_speed: bool = True,
    bounds_last: bool = True,
) -> list[_Row]:
    """Rows in the order in which GPUs are listed: those with too little memory come last.

    Args:
        rows: one for each GPU, or for several of one model.
        step: the prediction of a row.
        by_speed: whether the fastest come first. If not, they stay in the given order.
        bounds_last: whether those that are not `comparable`, whose times are lower bounds, come
            after all others, in the given order. If not, they are listed like the others.
    """
    given = list(rows)
    bounds = [row for row in given if bounds_last and not comparable(step(row))]
    others = [row for row in given if not (bounds_last and not comparable(step(row)))]
    others.sort(key=lambda row: step(row).seconds if by_speed else 0.0)
    others.sort(key=lambda row: step(row).fits is False)
    return [*others, *bounds]
