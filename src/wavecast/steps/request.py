"""The function that predicts a training step on a GPU, or on several."""

from __future__ import annotations

from functools import lru_cache

from wavecast.errors import InvalidInput
from wavecast.hardware.cluster import Cluster
from wavecast.hardware.clusters import cluster as cluster_of_name
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.device import Device
from wavecast.hardware.hosts import (
    REFERENCE_HOST,
    Host,
    HostModel,
    RecordedHost,
)
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.spreading import exchanging_ranks
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.base import Predictor, Scaler
from wavecast.predictors.collectives import Collectives
from wavecast.retargeting.family_traces import FamilyTraces, trace_on
from wavecast.retargeting.rewriting import retarget
from wavecast.steps.arguments import (
    checked_target,
    measurement_of,
    origin_of,
    refuse_origin,
    refuse_other_predictors,
    refuse_waits,
)
from wavecast.steps.op_times import ClusterPredictor, predict_ops, scale_ops
from wavecast.steps.pace import Pace, pace_of
from wavecast.steps.parallel_steps import predict_parallel
from wavecast.steps.prediction import Prediction
from wavecast.steps.ranges import scaling_of
from wavecast.steps.sound_steps import checked_step
from wavecast.steps.timed_trace import issue_times
from wavecast.traces.arrays import StepArrays
from wavecast.traces.step import Trace


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


def _refuse_ranks(trace: Trace) -> None:
    """Raise InvalidInput for one of several ranks: its collectives depend on the cluster."""
    ranks = 0 if trace.measurement is not None else exchanging_ranks(trace)
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
