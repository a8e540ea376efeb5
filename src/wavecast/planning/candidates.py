"""The GPUs that a training may run on: what fits, with which batch, how fast, and at what price."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from wavecast.errors import InvalidInput, WavecastError
from wavecast.footprint.memory import Memory, fullest_trace, memory, memory_of_rank, peak_bytes
from wavecast.hardware.clusters import Cluster
from wavecast.hardware.devices import Device, devices
from wavecast.hardware.hosts import update_rate
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import TrainingPlan, training_cost
from wavecast.planning.layouts import RankStates
from wavecast.planning.prices import Price, PriceBook
from wavecast.planning.selection import Candidate
from wavecast.predictors.base import Familiarity, Predictor, Scaler
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.prediction import Prediction, comparable
from wavecast.steps.request import (
    ParallelSteps,
    default_predictor,
    on_cluster,
    predict,
    refuse_without_network,
)
from wavecast.traces.kept import Same
from wavecast.traces.step import Trace

LARGEST_TRIED = 1 << 16
"""No larger batch is tried."""
_FAR = 1.05
"""A batch is not traced if smaller ones, extrapolated, need this many times the GPU's memory. The
peak of a step is the highest of many lines in the batch, so it lies on or above their line."""
_NOT_FITTING = "does not fit"
_UNSUITED = "the step computes in bf16, for which it has no units"
_UNPREDICTED = "too many of its ops cannot be predicted"

TraceFor = Callable[[Device, int | None], Trace]
"""A function that traces the step for a GPU at a batch size; None asks for the user's own batch."""
_WORTH_GROWING = 0.02
"""A batch is doubled as long as a sample takes this much less of its time."""


@dataclass(frozen=True)
class StepSetting:
    """A way to run the step: what it changes, and how the step is traced so."""

    name: str
    """What it changes, as in "bf16"; empty for the step as it is."""
    trace_for: TraceFor
    smaller: StepSetting | None = None
    """What is tried as well where the batch that is asked for does not fit: checkpointing."""
    suits: Callable[[Device], bool] = lambda _: True
    """Whether it makes sense on a GPU."""
    changes: tuple[str, ...] = ()
    """The names of what it changes, as `wavecast advise` has them."""
    larger: Callable[[Device, int | None], Trace | None] = lambda gpu, batch: None
    """Another step of the same loop that needs more memory, for a GPU at a batch; None for none."""


@dataclass(frozen=True)
class TrainingQuestion:
    """The training for which GPUs are searched."""

    plan: TrainingPlan
    counts: tuple[int, ...] = (1,)
    """The numbers of GPUs to try."""
    shards: tuple[int, ...] = (0, 3)
    """The stages of ZeRO that are tried on several GPUs, in this order."""
    offload: bool = True
    """Whether optimizer states may be kept in the host's memory where they do not fit."""
    batch: int | None = None
    """The batch of the step as given. None if it has no other batch, as a saved trace."""
    each: int = 1
    """How many units of the trace one sample of the batch has: the tokens of a sequence."""
    is_batch_fixed: bool = True
    """Whether that batch is kept where it fits. Otherwise, with a global batch, the largest batch
    that fits is taken."""
    host: str | None = None
    predictor: Predictor | Scaler | None = None
    """The predictor of ops, or the scaler of measured ones, on one GPU. None for the default."""
    only_priced: bool = True
    """Whether GPUs without an offer are left out."""
    find_largest: bool = True
    """Whether to search for the largest batch of each GPU, where the batch is given."""
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    """The machines of GPUs, by the GPU's id; others are in their usual ones."""


def find_candidates(
    devices: tuple[Device, ...],
    question: TrainingQuestion,
    settings: tuple[StepSetting, ...],
    book: PriceBook,
    progress: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """What the training takes on each GPU, and on several of each, with each of the settings.

    Settings with which it cannot run are left out where others do.

    Args:
        settings: the ways to run the step, the step as it is first.
        progress: called with the number of GPUs that are done, and of all.
    """
    candidates: list[Candidate] = []
    ranks = RankCache()
    for index, device in enumerate(devices):
        finders = [
            _CandidateFinder(device, question, way, book, ranks)
            for way in settings
            if way.suits(device) or (not question.only_priced and not way.name)  # it was named
        ]
        for count in question.counts:
            together = min(count, _machine_size(device, question))
            if not question.only_priced or book.cheapest(device.id, count, together=together):
                every = [candidate for finder in finders for candidate in finder.candidates(count)]
                able = [candidate for candidate in every if candidate.cost is not None]
                unsuited = Candidate(device, count, question.batch, reason=_UNSUITED)
                candidates += able or every[:1] or [unsuited]
        if progress is not None:
            progress(index + 1, len(devices))
    return candidates


def _machines(device: Device, question: TrainingQuestion) -> ClusterPredictor:
    """The predictor of ops on a GPU, in the machine that was asked for."""
    return on_cluster(device, Parallel(), machines=question.clusters.get(device.id))


def _machine_size(device: Device, question: TrainingQuestion) -> int:
    """How many GPUs the machine of a GPU has."""
    try:
        return _machines(device, question).cluster.gpus_per_node
    except InvalidInput:
        return 8


class _CandidateFinder:
    """Finds the batch and the parallel strategy of a training on one model of GPU, and its cost."""

    def __init__(
        self,
        device: Device,
        question: TrainingQuestion,
        setting: StepSetting,
        book: PriceBook,
        ranks: RankCache,
    ) -> None:
        self._device, self._question, self._setting = device, question, setting
        self._trace_for, self._book, self._ranks = setting.trace_for, book, ranks
        self._grown_batch: int | None = None
        """The batch that fewer GPUs of this kind were found to run best with."""
        self._is_grown = False
        """Whether a larger batch would gain nothing; otherwise only memory kept it from growing."""
        smaller = setting.smaller
        self._smaller: _CandidateFinder | None = None
        if smaller is not None:
            self._smaller = _CandidateFinder(device, question, smaller, book, ranks)

    def candidates(self, count: int) -> list[Candidate]:
        """The training on so many GPUs, and with less memory where the batch does not fit."""
        candidate = self.candidate(count)
        asked = candidate.batch is None or candidate.batch >= (self._question.batch or 0)
        offloads = candidate.strategy is not None and candidate.strategy.offload != "none"
        if self._smaller is None or (candidate.cost is not None and asked and not offloads):
            return [candidate]
        return [candidate, *self._smaller.candidates(count)]

    def candidate(self, count: int) -> Candidate:
        """The training on so many GPUs, or the reason why it cannot run there."""
        try:
            candidate = self._on_one() if count == 1 else self._on_several(count)
        except WavecastError as error:
            if not self._setting.name and not isinstance(error, InvalidInput):
                raise  # the step itself cannot be traced
            candidate = Candidate(self._device, count, self._question.batch, reason=str(error))
        setting = self._setting
        return replace(
            candidate,
            settings=setting.name,
            changes=setting.changes,
            is_verified=is_verified(self._device),
            next_offer=self._next_offer(candidate),
        )

    def _next_offer(self, candidate: Candidate) -> Price | None:
        """The cheapest offer of another provider than the one that was chosen."""
        offer = None if candidate.cost is None else candidate.cost.offer
        if offer is None:
            return None
        together = min(candidate.gpus, _machine_size(self._device, self._question))
        return self._book.cheapest(
            self._device.id, candidate.gpus, together=together, besides=offer.provider
        )

    def _on_one(self) -> Candidate:
        device, needed = self._device, None
        for batch, trace in self._tried(1):
            fullest = self._setting.larger(device, batch) or trace
            needed = memory(fullest, device) if trace.allocations else None
            if needed is None or needed.fits is not False:
                return self._predicted_on_one(batch, trace, needed)
        if needed is not None and self._may_offload(trace):
            with suppress(InvalidInput):  # code of its own kind, such as JAX's, is not spread
                candidate = self._spread(batch, trace, 1)
                if candidate.cost is not None:
                    return candidate
        reason = _NOT_FITTING if needed is None else _too_large(needed.needed_bytes)
        return Candidate(device, 1, batch, memory=needed, reason=reason)

    def _predicted_on_one(
        self, batch: int | None, trace: Trace, needed: Memory | None
    ) -> Candidate:
        device = self._device
        step = predict(trace, device, predictor=self._question.predictor, host=self._question.host)
        if not comparable(step):
            return Candidate(device, 1, batch, memory=needed, reason=_UNPREDICTED)
        batch, trace, needed, step = self._grown(batch, trace, needed, step)
        cost = training_cost(step, self._plan(trace, 1), self._book.cheapest(device.id))
        largest = None if needed is None else self._largest(batch, needed)
        return Candidate(device, 1, batch, largest_batch=largest, memory=needed, cost=cost)

    @property
    def _may_grow(self) -> bool:
        question = self._question
        is_given = (
            question.batch is None or question.is_batch_fixed
        )  # a saved trace has no other batch
        length = question.plan.global_batch is None and question.plan.iterations is None
        return not is_given and length and question.find_largest

    def _grown(
        self, batch: int | None, trace: Trace, needed: Memory | None, step: Prediction
    ) -> tuple[int | None, Trace, Memory | None, Prediction]:
        """The step at a larger batch, where nobody asked for one and a sample gets cheaper."""
        question = self._question
        if not self._may_grow:
            return batch, trace, needed, step
        needs = [] if needed is None else [needed.needed_bytes]
        times = [step.seconds]
        while batch and needed is not None and batch * 2 <= LARGEST_TRIED:
            if _far_too_large(needs, self._device):
                break
            if not _may_gain(times):
                self._is_grown = True
                break
            larger = self._trace_for(self._device, batch * 2)
            more = memory(larger, self._device)
            if not more.fits:
                break
            slow = predict(larger, self._device, predictor=question.predictor, host=question.host)
            if slow.seconds / 2 > (1 - _WORTH_GROWING) * step.seconds:
                self._is_grown = True
                break
            batch, trace, needed, step = batch * 2, larger, more, slow
            needs.append(more.needed_bytes)
            times.append(slow.seconds)
        self._grown_batch = batch
        return batch, trace, needed, step

    def _on_several(self, count: int) -> Candidate:
        """The training on several GPUs, with the first batch and strategy that fit."""
        candidate = Candidate(self._device, count, self._question.batch, reason=_NOT_FITTING)
        for batch, trace in self._tried(count):
            candidate = self._spread(batch, trace, count)
            if not candidate.reason.startswith(_NOT_FITTING):
                break
        if candidate.cost is None or not self._may_grow or self._is_grown:
            return candidate
        while candidate.batch and candidate.batch * 2 <= LARGEST_TRIED:
            doubled = candidate.batch * 2
            larger = self._spread(doubled, self._trace_for(self._device, doubled), count)
            if not larger.seconds.value < (1 - _WORTH_GROWING) * candidate.seconds.value:
                self._is_grown = larger.cost is not None
                break
            candidate = larger
        self._grown_batch = candidate.batch
        return candidate

    def _spread(self, batch: int | None, trace: Trace, count: int) -> Candidate:
        """The training on several GPUs with a batch, by the first strategy that fits."""
        device, question = self._device, self._question
        predictor = _machines(device, question)
        plan = self._plan(trace, count)
        micro = (plan.global_batch or 0) // ((trace.samples or 1) * count) or 1
        needed, least_bytes = None, 0.0
        for strategy in self._strategies(trace, count, micro):
            refuse_without_network(strategy, predictor.cluster)
            least_bytes = self._ranks.least_bytes(trace, strategy)
            if least_bytes > device.memory_bytes:
                continue
            fullest = self._setting.larger(device, batch) or trace
            held = self._ranks.memory(fullest, strategy, device)
            if needed is None or held is None or held.needed_bytes < needed.needed_bytes:
                needed = held
            if held is not None and not held.fits:
                continue
            host = find_host(question.host, device, predictor.cluster)
            steps = ParallelSteps(trace, predictor, host)
            step = steps.predict(self._ranks.spread(trace, strategy))
            if not comparable(step):
                return Candidate(device, count, batch, memory=held, reason=_UNPREDICTED)
            together = min(count, predictor.cluster.gpus_per_node)
            offer = self._book.cheapest(device.id, count, together=together)
            cost = training_cost(step, plan, offer)
            return Candidate(device, count, batch, strategy, None, held, cost)
        reason = _too_large(least_bytes if needed is None else needed.needed_bytes)
        return Candidate(device, count, batch, memory=needed, reason=reason)

    def _strategies(self, trace: Trace, count: int, micro: int) -> Iterator[Parallel]:
        """The strategies to try, in this order: the optimizer on the host comes last."""
        if count > 1:
            for shard in self._question.shards:
                yield Parallel(data=count, shard=shard, microbatches=micro)
        most = max(self._question.shards) if count > 1 else 0
        if (most or count == 1) and self._may_offload(trace):
            yield Parallel(data=count, shard=most, microbatches=micro, offload="optimizer")

    def _may_offload(self, trace: Trace) -> bool:
        """Whether there are optimizer states, and a host whose memory is known."""
        if not self._question.offload or self._question.predictor is not None:
            return False
        if trace.measurement is not None or not RankStates.of(trace).has_optimizer:
            return False
        return update_rate(_machines(self._device, self._question).cluster) is not None

    def _plan(self, trace: Trace, count: int) -> TrainingPlan:
        """The plan; a batch smaller than the given one is accumulated to the given one."""
        plan, question = self._question.plan, self._question
        if plan.global_batch is not None or question.batch is None or trace.samples is None:
            return plan
        if trace.samples > question.batch * question.each:  # it was grown
            return plan
        return replace(plan, global_batch=question.batch * question.each * count)

    def _tried(self, count: int) -> Iterator[tuple[int | None, Trace]]:
        """The batch sizes to try on one GPU, with their traces, largest first.

        Raises:
            InvalidInput: the global batch cannot be divided among the GPUs.
        """
        question, share = self._question, self._share(count)
        if question.batch is None:
            trace = self._trace_for(self._device, None)
            yield trace.samples, trace
            return
        largest = share is not None and not question.is_batch_fixed
        batch = share if share is not None and largest else self._grown_batch or question.batch
        while batch:
            if share is None or share % batch == 0:
                yield batch, self._trace_for(self._device, batch)
            batch //= 2

    def _share(self, count: int) -> int | None:
        """The samples of an optimizer step that one GPU runs. None without a global batch."""
        goal = self._question.plan.global_batch
        if goal is None:
            return None
        share, rest = divmod(goal // self._question.each, count)
        if rest or not share:
            shown = goal // self._question.each
            raise InvalidInput(f"a global batch of {shown} cannot be divided among {count} GPUs")
        return share

    def _largest(self, batch: int | None, needed: Memory) -> int | None:
        """The largest batch that fits, found by doubling one that does."""
        asked = self._question.batch
        if not self._question.find_largest or batch is None or asked is None or self._may_grow:
            return None
        needs = [needed.needed_bytes]
        while batch * 2 <= LARGEST_TRIED and not _far_too_large(needs, self._device):
            doubled = memory(self._trace_for(self._device, batch * 2), self._device)
            if not doubled.fits:
                break
            needs.append(doubled.needed_bytes)
            batch *= 2
        return batch


def _may_gain(times: list[float]) -> bool:
    """Whether twice the batch may be worth a trace, by the line through the last two times."""
    if len(times) < 2:
        return True
    doubled_s = times[-1] + 2 * (times[-1] - times[-2])
    return doubled_s / 2 <= (1 - _WORTH_GROWING) * times[-1]


def _far_too_large(needs: list[int], device: Device) -> bool:
    """Whether twice the batch needs far more memory than there is, extrapolated from two."""
    if len(needs) < 2:
        return False
    return needs[-1] + 2 * (needs[-1] - needs[-2]) > _FAR * device.memory_bytes


def _too_large(nbytes: float) -> str:
    return f"{_NOT_FITTING}: needs {nbytes / (1 << 30):.1f} GiB"


# What the ranks of a step run and hold, kept for all GPUs that its trace serves.


@dataclass
class RankCache:
    """What ranks run and hold, which is the same on all GPUs that a trace serves."""

    _steps: dict[tuple[Same[Trace], Parallel], ParallelStep] = field(default_factory=dict)
    _held: dict[tuple[Same[Trace], Parallel], Trace] = field(default_factory=dict)
    _least: dict[Same[Trace], tuple[int, RankStates]] = field(default_factory=dict)

    def spread(self, trace: Trace, strategy: Parallel) -> ParallelStep:
        """The step, spread over data-parallel ranks."""
        key = Same(trace), strategy
        if key not in self._steps:
            self._steps[key] = spread(trace, strategy)
        return self._steps[key]

    def memory(self, trace: Trace, strategy: Parallel, device: Device) -> Memory | None:
        """The memory of a rank; None if it is not known."""
        if not trace.allocations:
            return None
        key = Same(trace), strategy
        if key not in self._held:
            self._held[key] = fullest_trace(self.spread(trace, strategy))
        return memory_of_rank(self._held[key], strategy, device)

    def least_bytes(self, trace: Trace, strategy: Parallel) -> float:
        """What a rank holds at least: the whole step, or its share of weights and states."""
        key = Same(trace)
        if key not in self._least:
            self._least[key] = peak_bytes(trace.allocations), RankStates.of(trace)
        peak, states = self._least[key]
        shares = strategy.shard or strategy.offload != "none"
        return states.least_bytes(strategy) if shares else peak


# On which GPUs predictions can be believed: those of generations on which ops were measured.


_SEEN = (Familiarity.MEASURED, Familiarity.PARTLY)


def is_verified(device: Device) -> bool:
    """Whether a GPU of the same vendor and generation was measured."""
    return (device.vendor, device.architecture) in _measured_generations()


@cache
def _measured_generations() -> frozenset[tuple[str, str]]:
    familiar = default_predictor().familiarity
    return frozenset(
        (device.vendor, device.architecture) for device in devices() if familiar(device) in _SEEN
    )
