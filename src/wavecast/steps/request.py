"""The function that predicts a training step on a GPU, or on several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware.clusters import Cluster, usual_cluster
from wavecast.hardware.clusters import cluster as cluster_of_name
from wavecast.hardware.devices import Device, device, known_device
from wavecast.hardware.hosts import (
    REFERENCE_HOST,
    GraphedHost,
    Host,
    HostModel,
    RecordedHost,
    kernels,
    update_rate,
)
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import Spreader, exchanging_ranks, without_collectives
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.base import Predictor, Scaler
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.retargeting import FamilyTraces, retarget, trace_on
from wavecast.steps.op_times import ClusterPredictor, predict_ops, scale_ops
from wavecast.steps.optimizer_step import Ranks
from wavecast.steps.prediction import Prediction, checked_step
from wavecast.steps.ranges import scaling_of
from wavecast.steps.timed_trace import Pace, TimedTrace, issue_times, pace_of
from wavecast.traces.arrays import StepArrays
from wavecast.traces.step import Call, Measurement, Trace


def predict(
    trace: Trace | FamilyTraces,
    gpu: Device | str,
    *,
    predictor: Predictor | Scaler | None = None,
    origin: Device | str | None = None,
    host: Host | str | None = None,
    host_factor: float = 1.0,
    graphed: bool = False,
    parallel: Parallel | None = None,
) -> Prediction:
    """The time of one step on a GPU, or spread over several.

    The ops of a traced step are predicted; the calls of a measured step are scaled to the GPU.

    ```python
    wavecast.predict(trace, "h100-sxm-80gb").seconds
    wavecast.predict(trace, "l4", host="reference", host_factor=2, graphed=False)
    wavecast.predict(trace, "h100-sxm-80gb", parallel=wavecast.Parallel(data=8)).seconds
    ```

    Args:
        trace: the step, from `wavecast.trace`, `wavecast.measure` or a file. If its attention
            kernels are for other GPUs, they are chosen again, or `notes` says that they are not.
        gpu: a device, or a name that `wavecast.device` knows.
        predictor: a Predictor, which predicts each op, or a Scaler, which scales each measured
            call. The most accurate shipped one by default. A Predictor ignores what was measured.
        origin: the GPU on which the trace was measured. Needed only when its name in the trace
            does not identify one GPU.
        host: the host that issues the ops: a Host, "reference", "mine", the name of a calibrated
            one (`wavecast calibrate`) or a path to a host file. By default a measured step keeps
            its own host; others use one that was calibrated with this GPU, else the reference,
            which on several GPUs is scaled to the processor of the cluster.
        host_factor: the host's times are multiplied by this.
        graphed: whether the whole step is captured as one CUDA graph and replayed; on several GPUs
            each micro-batch, with its collectives, or in a pipeline each of its passes.
        parallel: how the step is spread over several GPUs. The trace is then one micro-batch.

    Raises:
        InvalidInput: the trace is empty, the arguments contradict each other, or the result cannot
            be, such as a step of no time.
        UnknownName: the GPU, its origin, the host or the cluster is not known.
    """
    target = checked_target(trace, gpu)
    step, notes = retarget(trace_on(trace, target), target)
    refuse_other_predictors(predictor)
    if parallel is not None:
        _refuse_beside_parallel(predictor, origin)
        assert not isinstance(predictor, Scaler)
        machines = on_cluster(target, parallel, predictor)
        alone = parallel.gpus == 1 and parallel.cluster is None  # as without a strategy
        issuing = find_host(host, target, None if alone else machines.cluster)
        if host_factor != 1:
            issuing = issuing.scaled(host_factor)
        assumed = machines.kernels.assumptions(target)
        model = issuing.graphed(by_pass=parallel.pipeline > 1) if graphed else issuing
        return predict_parallel(step, parallel, machines, model, (*notes, *assumed))
    _refuse_ranks(step)
    hosting = (host, host_factor, graphed)
    return checked_step(_on_one_gpu(step, notes, target, predictor, origin, hosting))


def _refuse_ranks(step: Trace) -> None:
    """Raise InvalidInput for one of several ranks: its collectives depend on the cluster."""
    ranks = 0 if step.measurement is not None else exchanging_ranks(step)
    if ranks > 1:
        raise InvalidInput(
            f"the step exchanges tensors among {ranks} GPUs; name them, as in "
            f"parallel=Parallel(data={ranks}) or --parallel data={ranks}, with a cluster if it is "
            "not the usual one"
        )


def _refuse_beside_parallel(
    predictor: Predictor | Scaler | None, origin: Device | str | None
) -> None:
    """Raise InvalidInput for arguments that have no meaning for several GPUs."""
    given = {
        "origin": origin is not None,
        "a predictor that scales": isinstance(predictor, Scaler) and predictor is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise InvalidInput(f"parallel= and {name} cannot be used together; leave out one")


def on_cluster(
    gpu: Device,
    strategy: Parallel,
    predictor: Predictor | None = None,
    machines: Cluster | None = None,
) -> ClusterPredictor:
    """The predictor of ops on a GPU of the cluster that a strategy names, or in given machines."""
    name = strategy.cluster
    chosen = cluster_of_name(name) if name is not None else machines or usual_cluster(gpu)
    if strategy.nodes is not None:
        chosen = chosen.with_gpus_per_node(strategy.gpus // strategy.nodes)
    kernels = predictor or default_predictor()
    return ClusterPredictor(kernels, Collectives.shipped(), gpu, chosen)


def _on_one_gpu(
    trace: Trace,
    notes: tuple[str, ...],
    target: Device,
    predictor: Predictor | Scaler | None,
    origin: Device | str | None,
    hosting: tuple[Host | str | None, float, bool],
) -> Prediction:
    host, host_factor, graphed = hosting
    issuing: Host | RecordedHost = find_host(host, target)
    pace, familiarity, scaling = None, None, None
    if isinstance(predictor, Predictor) or (predictor is None and trace.measurement is None):
        refuse_origin(trace, predictor, origin)
        op_predictor = predictor or default_predictor()
        answers = predict_ops(trace, target, op_predictor)
        familiarity = op_predictor.familiarity(target)
        notes = (*notes, *op_predictor.assumptions(target))
    else:
        measured = measurement_of(trace)
        scaler, start = predictor or default_scaler(), origin_of(trace, origin)
        answers = scale_ops(trace, target, scaler, start)
        scaling = scaling_of(scaler, start, target)
        pace = _pace(trace.arrays, measured.host_s is not None, measured.seconds)
        if host is None and not graphed:
            issuing = _host_of(pace, measured.host_s is not None)
    if host_factor != 1:
        issuing = issuing.scaled(host_factor)
    model = _graphed(trace, issuing) if graphed else issuing
    return Prediction(trace, target, answers, model, pace, familiarity, scaling, notes)


def _graphed(trace: Trace, host: Host | RecordedHost) -> HostModel:
    """The host when it replays the whole step as one CUDA graph."""
    assert isinstance(host, Host)  # the times of a recorded one are those of single calls
    refuse_waits(trace.calls)
    return host.graphed()


def default_scaler() -> Scaler:
    """The most accurate shipped scaler, which takes a measurement to another GPU."""
    from wavecast.predictors.habitat import Habitat

    return Habitat.shipped()


def default_predictor() -> Predictor:
    """The most accurate shipped predictor, which needs no measurement.

    On GPUs whose user has measured steps (`wavecast calibrate --step`), these correct it.
    """
    from wavecast.predictors import corrected
    from wavecast.predictors.learned.predictor import Learned

    own = corrected.kept()
    return corrected.Corrected(Learned.shipped(), own) if own else Learned.shipped()


@lru_cache(maxsize=16)
def _pace(arrays: StepArrays, recorded: bool, measured_s: float | None) -> Pace:
    host: Host | RecordedHost = RecordedHost() if recorded else REFERENCE_HOST
    return pace_of(arrays.calls, issue_times(arrays, host), measured_s, host.trip_s)


def _host_of(pace: Pace, recorded: bool) -> Host | RecordedHost:
    """The host with which a measured step takes its measured time."""
    if recorded:
        return RecordedHost(factor=pace.host_factor)
    return REFERENCE_HOST if pace.host_factor == 1 else REFERENCE_HOST.scaled(pace.host_factor)


# Steps that are spread over several GPUs, predicted for one strategy or for many.


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
        if step.strategy.offload != "none":
            raise InvalidInput(
                f"offload={step.strategy.offload} updates weights on the host, which no CUDA graph "
                "can hold; leave out one of the two"
            )
        for group in step.groups:
            for part in group.parts:
                refuse_waits(part.last.calls)
    return steps.predict(step, notes)


class ParallelSteps:
    """One micro-batch, spread and predicted by many strategies that share as much as they can."""

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
        return replace(self.alone, trace=trace, answers=self._predictor.answers(trace))

    def predict(self, step: ParallelStep, notes: tuple[str, ...] = ()) -> Prediction:
        """The time of one optimizer step that was spread before."""
        return checked_step(self.unplayed(step, notes))

    def unplayed(self, step: ParallelStep, notes: tuple[str, ...] = ()) -> Prediction:
        """The prediction of a step whose times nobody has asked for yet; `checked_step` does."""
        return Prediction(
            trace=self.trace,
            device=self._predictor.device,
            answers=self._answers,
            host=self._host,
            notes=(*notes, *step.notes),
            ranks=Ranks(step, self._predictor, self._as_in(step.strategy)),
        )

    def _as_in(self, strategy: Parallel) -> TimedTrace:
        """The micro-batch alone, issued as the framework of a strategy does."""
        if not strategy.reentrant or not isinstance(self._host, Host):
            return self.alone
        return replace(self.alone, host=replace(self._host, hooks=0.0))

    @cached_property
    def alone(self) -> TimedTrace:
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


# Checks of the arguments of `predict`, each with a message that says what to do instead.


def checked_target(trace: object, gpu: Device | str) -> Device:
    """The GPU to predict for; raises InvalidInput for an empty trace or a wrong argument."""
    if not isinstance(trace, Trace | FamilyTraces):
        raise InvalidInput(
            f"predict takes a Trace, not {type(trace).__name__}; "
            "make one with wavecast.trace(make_step) or wavecast.load_trace(path)"
        )
    steps = trace.traces if isinstance(trace, FamilyTraces) else (trace,)
    if not all(step.calls for step in steps):
        raise InvalidInput("the trace has no ops to predict; trace a step that runs on the GPU")
    target = device(gpu) if isinstance(gpu, str) else gpu
    if not isinstance(target, Device):
        raise InvalidInput(
            f"predict takes one GPU, a Device or its name, not {type(target).__name__}; "
            "call it once for each GPU"
        )
    return target


def origin_of(trace: Trace, origin: Device | str | None) -> Device:
    """The GPU on which a trace was measured: `origin` if given, else the one the trace names."""
    if isinstance(origin, Device):
        return origin
    if origin is not None:
        return device(origin)
    name = trace.measurement.gpu if trace.measurement else ""
    if not name:
        raise UnknownName(
            "the trace does not say on which GPU it was measured; give it: origin=... or --origin"
        )
    try:
        return known_device(name)
    except UnknownName as error:
        raise UnknownName(
            f'the trace was measured on "{name}", which does not identify one known GPU ({error}); '
            "give it: origin=... or --origin"
        ) from error


def refuse_other_predictors(predictor: object) -> None:
    """Raise InvalidInput for a predictor that is neither a Predictor nor a Scaler nor None."""
    if not isinstance(predictor, Predictor | Scaler | None):
        raise InvalidInput(
            f"{type(predictor).__name__} is neither a Predictor nor a Scaler; subclass "
            "wavecast.Predictor and write predict, or wavecast.Scaler and write scale_call"
        )


def refuse_origin(trace: Trace, predictor: Predictor | None, origin: object) -> None:
    """Raise InvalidInput if an origin was given although nothing is scaled."""
    if origin is None:
        return
    if trace.measurement is None:
        raise _nothing_to_scale()
    raise InvalidInput(
        f"{type(predictor).__name__} does not scale a measurement, so it has no origin; leave the "
        "origin out, or give a scaler"
    )


def measurement_of(trace: Trace) -> Measurement:
    """The measurement of a trace; raises InvalidInput if it was not measured."""
    if trace.measurement is None:
        raise _nothing_to_scale()
    refuse_impossible_measurement(trace, trace.measurement)
    return trace.measurement


LONGEST_PAUSE_S = 60.0
"""A step of tiny kernels may still wait this long for its data."""
MOST_TIMES = 1e4
"""A measured step takes at most this many times as long as its recorded parts, or they as it."""


def refuse_impossible_measurement(trace: Trace, whole: Measurement) -> None:
    """Raise InvalidInput for a measurement whose parts cannot be; the message names the part."""
    again = "measure the step again, or read another step of the file"
    kernels = [(call.op.name, kernel) for call in trace for kernel in call.kernels]
    if not kernels:
        raise InvalidInput(
            f"the trace was measured on {whole.gpu or 'a GPU'} but has no kernels, so there is "
            f"nothing to scale; {again}"
        )
    for name, kernel in kernels:
        for what, value in (("runs for", kernel.seconds), ("starts at", kernel.start_s or 0.0)):
            if not 0 <= value < math.inf:
                raise InvalidInput(
                    f"a kernel of {name} {what} {value:g} s, which cannot be; {again}"
                )
    host = [(f"the host's time for {c.op.name}", c.host_s) for c in trace]
    fields = ("seconds", "gpu_s", "host_s", "recorded_s", "cpu_s")
    for what, time_s in (*host, *((name, getattr(whole, name)) for name in fields)):
        if time_s is not None and not 0 <= time_s < math.inf:
            raise InvalidInput(f"the measurement says {what} = {time_s:g}; {again}")
    busy_s = sum(kernel.seconds for _, kernel in kernels)
    if not 0 < busy_s < math.inf:
        raise InvalidInput(f"all kernels of the trace together take {busy_s:g} s; {again}")
    if whole.seconds is not None:
        parts_s = busy_s + sum(call.host_s or 0.0 for call in trace)
        longest_s = max(MOST_TIMES * parts_s, LONGEST_PAUSE_S)
        if whole.seconds > longest_s or busy_s > MOST_TIMES * whole.seconds:
            raise InvalidInput(
                f"the step took {whole.seconds:g} s by the clock, but its kernels {busy_s:g} s and "
                f"all its parts {parts_s:g} s, which cannot both be; {again}"
            )


def _nothing_to_scale() -> InvalidInput:
    return InvalidInput(
        "this trace was not measured, so there is nothing to scale; leave origin and scaler "
        "out, or measure the step with wavecast.measure(step)"
    )


def refuse_waits(calls: Sequence[Call]) -> None:
    """Raise InvalidInput if the host waits for the GPU before the end of the step.

    No CUDA graph can hold such a wait.
    """
    works = kernels(calls) > 0
    for position, call in enumerate(calls):
        later = zip(calls[position + 1 :], works[position + 1 :], strict=True)
        if call.syncs and any(work and not other.syncs for other, work in later):
            place = f" in {call.module}" if call.module else ""
            raise InvalidInput(
                f"a CUDA graph cannot wait for the GPU, and this step does: {call.op.name}{place}, "
                f"call {position + 1} of {len(calls)}. Take the wait (.item(), a copy to the "
                "host, gradient scaling) out of the step, or predict it without a graph"
            )
