"""The predicted time of a training step on a GPU.

Each op is predicted (or scaled from a measurement), then `timeline.play` puts op times and the
host's issue times together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wavecast.files import write_whole
from wavecast.footprint.memory import Memory, memory
from wavecast.hardware.device import Device
from wavecast.hardware.hosts import (
    GraphedHost,
    HostModel,
    Seconds,
)
from wavecast.predictors.base import (
    Estimate,
    Familiarity,
    refuse_impossible,
)
from wavecast.showing import Shown
from wavecast.steps.chrome_trace import chrome_trace
from wavecast.steps.op_times import Answers
from wavecast.steps.pace import Pace
from wavecast.steps.ranges import Coverage, gpu_powers, held, host_factors, least_modelled
from wavecast.steps.shares import Share, shares_of
from wavecast.steps.timeline import StepTime, play
from wavecast.steps.timetable import Timetable, timetable
from wavecast.steps.unpredicted import unpredicted_shares
from wavecast.steps.work import StepWork, work_of
from wavecast.traces.arrays import StepArrays, encode, modules_of
from wavecast.traces.step import Op, Phase, Trace

MODELLED = "learned"
"""How the names of answers from fitted op models begin. Ops without a model get the share of the
roofline that such ops attain ("attainable")."""


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """The predicted time of one training step on one GPU; `predict` makes it.

    ```python
    prediction = wavecast.predict(trace, "h100-sxm-80gb")
    prediction.seconds, prediction.low_s, prediction.high_s  # one iteration, and its range
    prediction.by_op()[0]  # the op on which the GPU spends most time
    ```
    """

    trace: Trace
    device: Device
    answers: Answers
    """The predictor's estimate for each distinct piece of work of the trace."""
    host: HostModel
    """The host that issues the ops."""
    pace: Pace | None = None
    """The corrections that make a measured step take its measured time. None for a traced step."""
    familiarity: Familiarity | None = None
    """How well the predictor knows the GPU. None if its steps were never compared with measured
    ones, and for a measured step that is scaled: then there is no range."""
    notes: tuple[str, ...] = ()
    """Caveats of this GPU, beside those of the trace (`Trace.notes`)."""

    def __repr__(self) -> str:
        ends = "" if self._range is None else ", low_s={:.4g}, high_s={:.4g}".format(*self._range)
        notes = f", notes={self.notes!r}" if self.notes else ""
        return f"Prediction({self.device.id!r}, seconds={self.seconds:.4g}{ends}{notes})"

    @cached_property
    def estimates(self) -> Mapping[Op, Estimate | None]:
        """The estimate for each distinct op that runs on the GPU; None if no predictor answered."""
        rows = zip(self._arrays.works, self.answers, self._work.launches, strict=True)
        return {call.op: answer for call, answer, launches in rows if launches}

    @cached_property
    def step(self) -> StepTime:
        """The times of one iteration in the steady state of many.

        Raises:
            InvalidInput: the time is 0 or not finite; the message names the part that made it so.
        """
        step = self._play()
        refuse_impossible(f"the step on {self.device.id} ({self._culprit})", step.seconds)
        return step

    @property
    def _culprit(self) -> str:
        """What a reader should look at when the time of the step cannot be."""
        longest, missing = self.by_op()[0], ", ".join(list(self.unpredicted)[:3])
        part = f"longest op: {longest.name}" if longest.gpu_s else f"unpredicted: {missing or '-'}"
        return f"{part}, host: {self.host.name}"

    @property
    def seconds(self) -> float:
        """Wall-clock time of one iteration."""
        return self.step.seconds

    @property
    def run_time_ms(self) -> float:
        """`seconds` in milliseconds, as Habitat's listing asks for it."""
        return self.seconds * 1e3

    @property
    def gpu_s(self) -> float:
        """Time the GPU is busy in one iteration."""
        return float(self.call_s.sum())

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
    def held(self) -> Coverage | None:
        """How many measured steps lay in ranges like this one; None without a range."""
        if self._range is None or self.familiarity is None:
            return None
        return held(self.familiarity, known=self.host.known, bound_by=self.bound_by)

    @property
    def bound_by(self) -> str:
        """What limits the step: "gpu", "host", or "both" where they wait for each other."""
        return self.step.bound_by

    @property
    def throughput(self) -> float | None:
        """Samples (the trace's `unit`) per second; None when the trace has no sample count."""
        if self.trace.samples is None or not self.seconds:
            return None
        return self.trace.samples / self.seconds

    @cached_property
    def memory(self) -> Memory | None:
        """The GPU memory that the step needs; None when the trace has no allocations."""
        return memory(self.trace, self.device) if self.trace.allocations else None

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the GPU's memory (`Memory.fits`); None when unknown."""
        return None if self.memory is None else self.memory.fits

    @cached_property
    def unpredicted(self) -> Mapping[str, int]:
        """The number of calls of each op that no predictor could answer, by op name.

        Their GPU time is counted as 0, so reports always show them.
        """
        arrays = self._arrays
        missing: dict[str, int] = {}
        for call, count, answer, launches in zip(
            arrays.works, arrays.counts.tolist(), self.answers, self._work.launches, strict=True
        ):
            if launches and answer is None:
                missing[call.op.name] = missing.get(call.op.name, 0) + count
        return missing

    @cached_property
    def unpredicted_shares(self) -> Mapping[str, float]:
        """How much of the step was not predicted, as shares of its "bytes" and "FLOPs".

        A measured step also has the share of its "measured GPU time". Empty if all ops were
        predicted.
        """
        return unpredicted_shares(self._work, self.answers)

    @property
    def unpredicted_share(self) -> float:
        """The largest of `unpredicted_shares`; 0 if all ops were answered, 1 if none was."""
        if self.unpredicted and not self.sources():
            return 1.0
        return max(self.unpredicted_shares.values(), default=0.0)

    def by_op(self) -> tuple[Share, ...]:
        """The GPU time by op name, longest first."""
        arrays = self._arrays
        return shares_of(arrays.names, arrays.name[arrays.work], self.call_s)

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """The GPU time by module, longest first; paths are cut after `depth` names."""
        names, module = modules_of(self._arrays, depth)
        return shares_of(names, module, self.call_s)

    def by_phase(self) -> Mapping[Phase, float]:
        """The GPU time of each phase, in seconds."""
        seconds = np.bincount(self._arrays.phase, weights=self.call_s, minlength=len(Phase))
        return dict(zip(Phase, map(float, seconds), strict=True))

    def sources(self) -> tuple[Share, ...]:
        """The GPU time by the predictor that answered, longest first."""
        names, source = encode([answer.source if answer else "" for answer in self.answers])
        shares = shares_of(names, source[self._arrays.work], self.call_s)
        return tuple(share for share in shares if share.name)

    @cached_property
    def modelled(self) -> float:
        """The share of the GPU time for which fitted op models answered; 0 if nobody answered."""
        own_s = sum(share.gpu_s for share in self.sources() if share.name.startswith(MODELLED))
        return own_s / self.gpu_s if self.gpu_s else 0.0

    @property
    def _arrays(self) -> StepArrays:
        return self.trace.arrays

    @cached_property
    def _work(self) -> StepWork:
        return work_of(self.trace)

    @cached_property
    def _op_s(self) -> NDArray[np.float64]:
        """Seconds, low and high end of each distinct piece of work, one row each."""
        nothing = (0.0, 0.0, 0.0)
        return np.array([(a.seconds, a.low_s, a.high_s) if a else nothing for a in self.answers])

    @cached_property
    def call_s(self) -> Seconds:
        """The GPU time of each call of the trace, in seconds."""
        seconds: Seconds = self._op_s[self._arrays.work, 0]
        return seconds if self.pace is None else seconds * self.pace.exposure

    def _play(self, gpu_factor: float = 1.0, host_factor: float = 1.0) -> StepTime:
        issue_s = issue_times(self._arrays, self.host) * host_factor
        gpu_s = self.call_s * gpu_factor + self._gap_s
        return play(issue_s, gpu_s, self._syncs, self.host.trip_s)

    @property
    def _syncs(self) -> tuple[int, ...]:
        """The positions of the calls after which the host waits and the GPU idles."""
        return self._arrays.syncs if self.pace is None or self.pace.waits else ()

    @cached_property
    def timetable(self) -> Timetable:
        """When each call is issued by the host and runs on the GPU."""
        issue_s = issue_times(self._arrays, self.host)
        trip_s, gap_s = self.host.trip_s, self._gap_s
        return timetable(self.trace.calls, issue_s, self.call_s, self._syncs, trip_s, gap_s)

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the timetable as a file that Perfetto and chrome://tracing show."""
        write_whole(Path(path), chrome_trace({self.device.id: self.timetable}))

    @property
    def _gap_s(self) -> Seconds | float:
        """The GPU's idle time between the kernels of each call, in seconds."""
        if self.pace is None:
            return 0.0  # most op times that predictors were trained on include these gaps
        gaps_s = self.host.kernel_gaps(self._arrays.calls)
        return self.pace.gap_s if gaps_s is None else gaps_s

    @cached_property
    def gpu_spread(self) -> tuple[float, float]:
        """Low and high end of the GPU time, relative to it, from the ranges of the ops alone.

        Errors of ops of one kind are taken as fully correlated, those of different kinds as
        independent. So the distances to the low and high ends add up within a kind, and their
        squares add up between kinds.
        """
        seconds, low, high = self._op_s.T * self._arrays.counts
        below, above = (
            float(np.linalg.norm(np.bincount(self._work.kind, weights=distances)))
            for distances in (seconds - low, high - seconds)
        )
        total = float(seconds.sum()) or 1.0
        return 1 - below / total, 1 + above / total

    @cached_property
    def _range(self) -> tuple[float, float] | None:
        """Low and high end of the step's time; None where no measured steps gave a range.

        None of the steps that gave ranges was scaled from a measurement or ran as a CUDA graph, and
        op models answered for most of their time.
        """
        graphed = isinstance(self.host, GraphedHost)
        if self.familiarity is None or self.pace is not None or graphed:
            return None
        if self.modelled < least_modelled():
            return None
        powers = gpu_powers(self.familiarity)
        factors = host_factors(self.familiarity, known=self.host.known)
        if powers is None or factors is None:
            return None
        least, most = self.gpu_spread
        low = self._play(least**powers.below, factors.low)
        high = self._play(most**powers.above, factors.high)
        what = f"the range of the step on {self.device.id} ({self._culprit})"
        refuse_impossible(what, self.seconds, low.seconds, high.seconds)
        return low.seconds, high.seconds


@lru_cache(maxsize=16)
def issue_times(arrays: StepArrays, host: HostModel) -> Seconds:
    """The host's time for each call of a step, waiting not included."""
    return host.issue_times(arrays.calls)
