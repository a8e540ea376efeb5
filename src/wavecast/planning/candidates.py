"""The GPUs that a training may run on: what fits, with which batch, how fast, and at what price."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from wavecast.errors import InvalidInput
from wavecast.footprint.memory import Memory, memory
from wavecast.hardware.device import Device
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import TrainingPlan, training_cost
from wavecast.planning.listing_order import comparable
from wavecast.planning.prices import PriceBook
from wavecast.planning.selection import Candidate
from wavecast.planning.verification import is_verified
from wavecast.predictors.base import Predictor, Scaler
from wavecast.steps.parallel_steps import ParallelSteps
from wavecast.steps.prediction import Prediction
from wavecast.steps.request import on_cluster, predict
from wavecast.traces.step import Trace

LARGEST_TRIED = 1 << 16
"""No larger batch is tried."""
_FAR = 1.25
"""A batch is not traced if smaller ones, extrapolated, need this many times the GPU's memory."""
_NOT_FITTING = "does not fit"
_UNPREDICTED = "too many of its ops cannot be predicted"

TraceFor = Callable[[Device, int | None], Trace]
"""A function that traces the step for a GPU at a batch size; None asks for the user's own batch."""
_WORTH_GROWING = 0.02
"""A batch is doubled as long as a sample takes this much less of its time."""


@dataclass(frozen=True)
class TrainingQuestion:
    """The training for which GPUs are searched."""

    plan: TrainingPlan
    counts: tuple[int, ...] = (1,)
    """The numbers of GPUs to try."""
    shards: tuple[int, ...] = (0, 3)
    """The stages of ZeRO that are tried on several GPUs, in this order."""
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
    """Whether to search for the largest batch of each GPU."""
    larger: Callable[[Device, int | None], Trace | None] = lambda gpu, batch: None
    """Another step of the same loop that needs more memory, for a GPU at a batch; None for none."""
    smaller: Mapping[str, TraceFor] = field(default_factory=dict)
    """Settings that are tried where the step does not fit, with the function that traces it so."""


def find_candidates(
    devices: tuple[Device, ...],
    wanted: TrainingQuestion,
    trace_for: TraceFor,
    book: PriceBook,
    progress: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """What the training takes on each GPU, and on several of each.

    Args:
        devices: the GPUs.
        wanted: the training.
        trace_for: traces the step at a batch.
        book: the prices.
        progress: called with the number of GPUs that are done, and of all.
    """
    found: list[Candidate] = []
    for index, device in enumerate(devices):
        for count in wanted.counts:
            together = min(count, _machine_size(device))
            if not wanted.only_priced or book.cheapest(device.id, count, together=together):
                found.append(_best_settings(device, count, wanted, trace_for, book))
        if progress is not None:
            progress(index + 1, len(devices))
    return found


def _best_settings(
    device: Device, count: int, wanted: TrainingQuestion, trace_for: TraceFor, book: PriceBook
) -> Candidate:
    """The step as it is, or with the first settings with which it fits."""
    first = _CandidateFinder(device, wanted, trace_for, book).candidate(count)
    found, seen = first, is_verified(device)
    for settings, smaller in wanted.smaller.items():
        if found.cost is not None or not found.reason.startswith(_NOT_FITTING):
            break
        other = _CandidateFinder(device, wanted, smaller, book).candidate(count)
        found = replace(other, settings=settings)
    return replace(first if found.cost is None else found, is_verified=seen)


def _machine_size(device: Device) -> int:
    """How many GPUs the usual machine of a GPU has."""
    try:
        return on_cluster(device, Parallel()).cluster.gpus_per_node
    except InvalidInput:
        return 8


class _CandidateFinder:
    """Finds the batch and the parallel strategy of a training on one model of GPU, and its cost."""

    def __init__(
        self, device: Device, wanted: TrainingQuestion, trace_for: TraceFor, book: PriceBook
    ) -> None:
        self._device, self._wanted, self._trace_for, self._book = device, wanted, trace_for, book

    def candidate(self, count: int) -> Candidate:
        """The training on so many GPUs, or the reason why it cannot run there."""
        try:
            return self._on_one() if count == 1 else self._on_several(count)
        except InvalidInput as error:
            return Candidate(self._device, count, self._wanted.batch, reason=str(error))

    def _on_one(self) -> Candidate:
        device, needed = self._device, None
        for batch, trace in self._tried(1):
            fullest = self._wanted.larger(device, batch) or trace
            needed = memory(fullest, device) if trace.allocations else None
            if needed is None or needed.fits:
                return self._predicted_on_one(batch, trace, needed)
        return Candidate(device, 1, batch, memory=needed, reason=_too_large(needed))

    def _predicted_on_one(
        self, batch: int | None, trace: Trace, needed: Memory | None
    ) -> Candidate:
        device = self._device
        step = predict(trace, device, predictor=self._wanted.predictor, host=self._wanted.host)
        if not comparable(step):
            return Candidate(device, 1, batch, memory=needed, reason=_UNPREDICTED)
        batch, trace, needed, step = self._grown(batch, trace, needed, step)
        cost = training_cost(step, self._plan(trace, 1), self._book.cheapest(device.id))
        largest = None if needed is None else self._largest(batch, needed)
        return Candidate(device, 1, batch, largest_batch=largest, memory=needed, cost=cost)

    def _grown(
        self, batch: int | None, trace: Trace, needed: Memory | None, step: Prediction
    ) -> tuple[int | None, Trace, Memory | None, Prediction]:
        """The step at a larger batch, where nobody asked for one and a sample gets cheaper."""
        wanted = self._wanted
        is_given = wanted.batch is None or wanted.is_batch_fixed  # a saved trace has no other batch
        if is_given or wanted.plan.global_batch is not None or not wanted.find_largest:
            return batch, trace, needed, step
        needs = [] if needed is None else [needed.needed_bytes]
        while batch and needed is not None and batch * 2 <= LARGEST_TRIED:
            if _far_too_large(needs, self._device):
                break
            larger = self._trace_for(self._device, batch * 2)
            more = memory(larger, self._device)
            if not more.fits:
                break
            slow = predict(larger, self._device, predictor=wanted.predictor, host=wanted.host)
            if slow.seconds / 2 > (1 - _WORTH_GROWING) * step.seconds:
                break
            batch, trace, needed, step = batch * 2, larger, more, slow
            needs.append(more.needed_bytes)
        return batch, trace, needed, step

    def _on_several(self, count: int) -> Candidate:
        device, needed = self._device, None
        predictor = on_cluster(device, Parallel())
        host = find_host(self._wanted.host, device, predictor.cluster)
        together = min(count, predictor.cluster.gpus_per_node)
        offer = self._book.cheapest(device.id, count, together=together)
        for batch, trace in self._tried(count):
            plan = self._plan(trace, count)
            micro = (plan.global_batch or 0) // ((trace.samples or 1) * count) or 1
            steps = ParallelSteps(trace, predictor, host)
            for shard in self._wanted.shards:
                strategy = Parallel(data=count, shard=shard, microbatches=micro)
                step = steps.predict(steps.spread(strategy))
                step = replace(step, largest=self._wanted.larger(device, batch))
                needed = step.memory
                if step.fits is False:
                    continue
                if not comparable(step):
                    return Candidate(device, count, batch, memory=needed, reason=_UNPREDICTED)
                cost = training_cost(step, plan, offer)
                return Candidate(device, count, batch, strategy, None, needed, cost)
        return Candidate(device, count, batch, memory=needed, reason=_too_large(needed))

    def _plan(self, trace: Trace, count: int) -> TrainingPlan:
        """The plan; a batch smaller than the given one is accumulated to the given one."""
        plan, wanted = self._wanted.plan, self._wanted
        if plan.global_batch is not None or wanted.batch is None or trace.samples is None:
            return plan
        if trace.samples > wanted.batch * wanted.each:  # it was grown
            return plan
        return replace(plan, global_batch=wanted.batch * wanted.each * count)

    def _tried(self, count: int) -> Iterator[tuple[int | None, Trace]]:
        """The batch sizes to try on one GPU, with their traces, largest first.

        Raises:
            InvalidInput: the global batch cannot be divided among the GPUs.
        """
        wanted, share = self._wanted, self._share(count)
        if wanted.batch is None:
            trace = self._trace_for(self._device, None)
            yield trace.samples, trace
            return
        largest = share is not None and not wanted.is_batch_fixed
        batch = share if share is not None and largest else wanted.batch
        while batch:
            if share is None or share % batch == 0:
                yield batch, self._trace_for(self._device, batch)
            batch //= 2

    def _share(self, count: int) -> int | None:
        """The samples of an optimizer step that one GPU runs. None without a global batch."""
        goal = self._wanted.plan.global_batch
        if goal is None:
            return None
        share, rest = divmod(goal // self._wanted.each, count)
        if rest or not share:
            shown = goal // self._wanted.each
            raise InvalidInput(f"a global batch of {shown} cannot be divided among {count} GPUs")
        return share

    def _largest(self, batch: int | None, needed: Memory) -> int | None:
        """The largest batch that fits, found by doubling one that does."""
        if not self._wanted.find_largest or batch is None or self._wanted.batch is None:
            return None
        needs = [needed.needed_bytes]
        while batch * 2 <= LARGEST_TRIED and not _far_too_large(needs, self._device):
            doubled = memory(self._trace_for(self._device, batch * 2), self._device)
            if not doubled.fits:
                break
            needs.append(doubled.needed_bytes)
            batch *= 2
        return batch


def _far_too_large(needs: list[int], device: Device) -> bool:
    """Whether twice the batch needs far more memory than there is, extrapolated from two."""
    if len(needs) < 2:
        return False
    return needs[-1] + 2 * (needs[-1] - needs[-2]) > _FAR * device.memory_bytes


def _too_large(needed: Memory | None) -> str:
    if needed is None:
        return _NOT_FITTING
    return f"{_NOT_FITTING}: needs {needed.needed_bytes / (1 << 30):.1f} GiB"
