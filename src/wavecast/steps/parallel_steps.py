"""Steps that are spread over several GPUs, predicted for one strategy or for many."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from wavecast.errors import InvalidInput
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.hosts import GraphedHost, Host, HostModel
from wavecast.hardware.processors import update_rate
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import Spreader, without_collectives
from wavecast.parallel.strategy import Parallel
from wavecast.steps.arguments import refuse_waits
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.optimizer_step import Ranks
from wavecast.steps.prediction import Prediction
from wavecast.steps.sound_steps import checked_step
from wavecast.steps.timed_trace import TimedTrace
from wavecast.traces.step import Trace


def predict_parallel(
    trace: Trace,
    strategy: Parallel,
    predictor: ClusterPredictor,
    host: HostModel,
    notes: tuple[str, ...] = (),
) -> Prediction:
    """The time of one optimizer step that is spread over the GPUs of a cluster.

    Raises:
        InvalidInput: the step cannot be spread this way. The message says what would fit.
    """
    steps = ParallelSteps(trace, predictor, host)
    step = steps.spread(strategy)
    if isinstance(host, GraphedHost):
        _refuse_ungraphed(step)
    return steps.predict(step, notes)


def _refuse_ungraphed(step: ParallelStep) -> None:
    """Raise InvalidInput if ranks do what no CUDA graph can hold."""
    if step.strategy.offload != "none":
        raise InvalidInput(
            f"offload={step.strategy.offload} updates weights on the host, which no CUDA graph can "
            "hold; leave out one of the two"
        )
    for group in step.groups:
        for part in group.parts:
            refuse_waits(part.last.calls)


class ParallelSteps:
    """One micro-batch, spread and predicted by many strategies that share as much as they can.

    Args:
        trace: one micro-batch on one GPU.
        predictor: predicts ops on the GPU and its cluster.
        host: the host that issues the ops.
    """

    def __init__(self, trace: Trace, predictor: ClusterPredictor, host: HostModel) -> None:
        self.trace = trace
        self._predictor = predictor
        self._host = host
        self._answers = predictor.answers(trace)
        machine = predictor.cluster.domain_gpus
        self._spreader = Spreader(trace, lambda call: predictor.known_s(call.op), machine)

    def spread(self, strategy: Parallel) -> ParallelStep:
        """What each group of ranks runs, with a pipeline's stages cut at equal predicted time.

        Raises:
            InvalidInput: the step cannot be spread this way. The message says what would fit.
        """
        refuse_without_network(strategy, self._predictor.cluster)
        refuse_unknown_host(strategy, self._predictor.cluster)
        return self._spreader.spread(strategy)

    def rank_trace(self, strategy: Parallel) -> TimedTrace:
        """One micro-batch of a rank with its share of each layer, before anything else is done.

        Raises:
            InvalidInput: the step cannot be spread this way. The message says what would fit.
        """
        refuse_without_network(strategy, self._predictor.cluster)
        trace = self._spreader.rank_trace(strategy)
        return replace(self._alone, trace=trace, answers=self._predictor.answers(trace))

    def predict(self, step: ParallelStep, notes: tuple[str, ...] = ()) -> Prediction:
        """The time of one optimizer step that was spread before."""
        made = Prediction(
            trace=self.trace,
            device=self._predictor.device,
            answers=self._answers,
            host=self._host,
            notes=(*notes, *step.notes),
            ranks=Ranks(step, self._predictor, self._as_in(step.strategy)),
        )
        return checked_step(made)

    def _as_in(self, strategy: Parallel) -> TimedTrace:
        """The micro-batch alone, issued as the framework of a strategy does."""
        if not strategy.reentrant or not isinstance(self._host, Host):
            return self._alone
        return replace(self._alone, host=replace(self._host, hooks=0.0))

    @cached_property
    def _alone(self) -> TimedTrace:
        """The micro-batch with the optimizer on one GPU, as if it fitted there."""
        trace = without_collectives(self.trace)
        answers = self._predictor.answers(trace)
        has_gaps, slowdown = self._predictor.has_gaps, self._predictor.slowdown
        return TimedTrace(trace, answers, self._host, has_gaps=has_gaps, slowdown=slowdown)


def refuse_without_network(strategy: Parallel, cluster: Cluster) -> None:
    """Raise InvalidInput for several machines that have no network."""
    if cluster.network is None and strategy.gpus > cluster.domain_gpus:
        raise InvalidInput(
            f"{strategy.gpus} GPUs need several machines, and no network is known for "
            f"{cluster.id}; use at most {cluster.domain_gpus} GPUs, or another cluster "
            "(wavecast clusters)"
        )


def refuse_unknown_host(strategy: Parallel, cluster: Cluster) -> None:
    """Raise InvalidInput for an optimizer on a host whose memory is not known."""
    if strategy.offload != "none" and update_rate(cluster) is None:
        raise InvalidInput(
            f"offload={strategy.offload} is as fast as the host's memory, and its bandwidth is not "
            f"known for {cluster.id}; add node.memory_bytes_per_s to a file of your cluster "
            "(docs/howto/add-a-cluster.md), or name another cluster (wavecast clusters)"
        )
