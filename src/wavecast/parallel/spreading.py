"""The function that spreads a traced step over several GPUs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.clusters import cluster
from wavecast.parallel.gradients import COMPUTE, cut_at_blocks, flat, gradients, wait
from wavecast.parallel.habits import with_attention, with_habits
from wavecast.parallel.layers import Layers
from wavecast.parallel.pipeline import Cut, cut_model, part_traces
from wavecast.parallel.ranks import (
    ModelPart,
    ParallelStep,
    RankGroup,
    cut_at_buckets,
    own_ranks,
    with_reduction,
)
from wavecast.parallel.sharded import (
    HostUpdate,
    with_offloaded_optimizer,
    with_sharded_optimizer,
    with_sharded_weights,
)
from wavecast.parallel.strategy import Parallel
from wavecast.traces.editing import Edit
from wavecast.traces.graphs import compiled_gpu, has_graphs
from wavecast.traces.kept import Recent
from wavecast.traces.step import Call, Op, Phase, Role, Trace


def spread(
    trace: Trace, strategy: Parallel, seconds: Callable[[Call], float] | None = None
) -> ParallelStep:
    """What each distinct group of ranks runs in one optimizer step.

    Args:
        trace: one micro-batch on one GPU: forward pass, backward pass and optimizer. A trace that
            has collectives already, since the step's own code is parallel, stays as it is.
        strategy: how the step is spread.
        seconds: the time of a call, by which a pipeline is cut into equal parts. FLOPs and bytes
            would do; without it all blocks count alike.

    Raises:
        InvalidInput: the step cannot be spread this way. The message says what would fit.
        UnknownName: the cluster is not known.
    """
    if strategy.cluster is not None:
        cluster(strategy.cluster)
    return Spreader(trace, seconds).spread(strategy)


class Spreader:
    """Spreads one step by many strategies, and does once what strategies in a row share.

    Passes change the trace one after the other: attention kernels, the layers (tensor, context,
    expert), habits, the pipeline, and then `_PASSES`, over each part of the model.

    Strategies with equal layers (tensor, sequence, context and expert) come best after each other.

    Args:
        trace: one micro-batch on one GPU, as for `spread`.
        seconds: the time of a call, as for `spread`.
        domain_gpus: the GPUs of one machine. None if all ranks are in one.
    """

    def __init__(
        self,
        trace: Trace,
        seconds: Callable[[Call], float] | None = None,
        domain_gpus: int | None = None,
    ) -> None:
        if trace.measurement is not None:
            raise InvalidInput(
                "the trace was measured on one GPU; several GPUs are predicted from a traced step "
                "(wavecast.trace), whose ops can be split"
            )
        self._trace = trace
        self._seconds = seconds or (lambda _: 1.0)
        self._domain_gpus = domain_gpus
        self._layers: dict[tuple[bool, ...], Layers] = {}
        self._exchanges = bool(exchanging_ranks(trace))
        self._rank_traces: Recent[tuple[Trace, tuple[str, ...]]] = Recent(1)
        self._pieces: Recent[dict[int, tuple[Cut, list[Trace]]]] = Recent(1)

    def spread(self, strategy: Parallel) -> ParallelStep:
        """What each distinct group of ranks runs in one optimizer step.

        Raises:
            InvalidInput: the step cannot be spread this way. The message says what would fit.
        """
        if self._exchanges:
            return _as_traced(self._trace, strategy)
        trace, notes = self._rank_trace(strategy)
        parts = strategy.pipeline * strategy.virtual
        notes += _compiled_notes(trace, strategy) + _offload_notes(trace, strategy)
        if parts == 1:
            part = _part(trace, strategy)
            return ParallelStep(strategy, (RankGroup(strategy.gpus, 0, (part,)),), notes=notes)
        key = _layers_key(strategy)
        cuts = self._pieces.get(key)
        if cuts is None:
            cuts = self._pieces.put(key, {})
        if parts not in cuts:
            whole = cut_at_blocks(trace)
            cut_at = cut_model(whole, parts, self._seconds)
            cuts[parts] = cut_at, part_traces(whole, cut_at, parts, backward_end(whole))
        cut_at, pieces = cuts[parts]
        return _staged(strategy, [_part(piece, strategy) for piece in pieces], cut_at, notes)

    def rank_trace(self, strategy: Parallel) -> Trace:
        """One micro-batch of a rank with its share of each layer, before anything else is done.

        Raises:
            InvalidInput: the layers cannot be sharded this way. The message says what would fit.
        """
        if self._exchanges:
            return self._trace
        return self._rank_trace(strategy)[0]

    def _rank_trace(self, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
        """The passes over the whole model: attention, layers (tensor, context, expert), habits."""
        _refuse_fused(self._trace, strategy)
        key = _layers_key(strategy)
        if (kept := self._rank_traces.get(key)) is not None:
            return kept
        names = ("flash_attention", "first_flash_attention", "cudnn_attention")
        attention = tuple(getattr(strategy, name) for name in names)
        if attention not in self._layers:
            self._layers[attention] = Layers(with_attention(self._trace, strategy))
        trace, notes = self._layers[attention].sharded(strategy)
        habits = with_habits(trace, strategy, self._domain_gpus)
        return self._rank_traces.put(key, (habits, notes))


def _refuse_fused(trace: Trace, strategy: Parallel) -> None:
    """Refuse to divide the layers of compiled code, whose kernels are fused for whole layers.

    What XLA compiled is one graph for a step, and how it is spread is written in the step itself.
    """
    if strategy.gpus > 1 and compiled_gpu(trace) is not None:
        raise InvalidInput(
            "a JAX step is spread by its own code: give its arguments shardings over a mesh of "
            "jax.devices() (jax.sharding), and say how many with --ranks instead of --parallel"
        )
    sizes = {name: getattr(strategy, name) for name in ("tensor", "context", "expert")}
    asked = [f"{name}={size}" for name, size in sizes.items() if size > 1]
    if asked and any(ops.kind(op) is ops.Kind.FUSED for op in trace.counts):
        raise InvalidInput(
            f"{', '.join(asked)} divides layers, and the step is compiled: its fused kernels "
            "cannot be divided; spread the step without compiling it, or trace its own parallel "
            "code (--ranks). data, shard and pipeline take compiled steps"
        )


def _layers_key(strategy: Parallel) -> tuple[Hashable, ...]:
    """What the division of the layers depends on."""
    axes = strategy.axes
    token_ranks = strategy.data * strategy.context if strategy.expert > 1 else 0
    names = ("tensor", "context", "expert")
    plan = tuple((strategy.tensor_plan or {}).items())
    chosen = strategy.sequence, strategy.tensor_plan is None, plan, token_ranks, strategy.habits
    return (*(axes[name] for name in names), *chosen)


def exchanging_ranks(trace: Trace) -> int:
    """The ranks of the largest collective of a trace. 0 if it has none."""
    ranks = (op.attr("ranks", 0) for op in trace.counts if op.name.startswith("nccl."))
    return max((n for n in ranks if isinstance(n, int)), default=0)


def without_collectives(trace: Trace) -> Trace:
    """The calls of a trace that one GPU could run alone."""
    calls = tuple(call for call in trace if not call.op.name.startswith("nccl."))
    return trace if len(calls) == len(trace) else replace(trace, calls=calls, allocations=())


def _as_traced(trace: Trace, strategy: Parallel) -> ParallelStep:
    """The step of code that is parallel itself: all ranks run what one of them was seen to run."""
    ranks = exchanging_ranks(trace)
    receives = any(call.op.name == "nccl.recv" for call in trace)
    if strategy.gpus < ranks or (strategy.pipeline > 1 and not receives):
        raise InvalidInput(
            f"the traced step exchanges tensors among {ranks} ranks itself, so parallel= only says "
            f"how many GPUs there are and in which cluster; give Parallel(data={ranks}), or more "
            "ranks, and no pipeline, unless the code itself is one"
        )
    if strategy.habits:
        raise InvalidInput(
            f"the traced step is parallel itself and runs as it is; {', '.join(strategy.habits)} "
            "cannot change it, so leave it out of parallel="
        )
    trains = any(call.phase is Phase.BACKWARD for call in trace)
    end = backward_end(trace) if trains else len(trace)
    passes = replace(trace, calls=trace.calls[:end], allocations=())
    group = RankGroup(strategy.gpus, 0, (ModelPart(passes, trace, end),))
    notes = ["the collectives are those of the step's own code, and each rank runs the traced step"]
    own = own_ranks(trace, strategy.gpus)
    notes += own.notes if own.strategy == strategy else ()
    if receives:
        notes.append(
            "the rank receives tensors from another one; the time until that rank sends them, a "
            "pipeline's bubble, is not known and not counted: trace the whole model and predict it "
            f"with parallel=Parallel(pipeline={strategy.pipeline})"
        )
    return ParallelStep(strategy, (group,), notes=tuple(notes))


def _staged(
    strategy: Parallel, parts: list[ModelPart], cut_at: Cut, notes: tuple[str, ...]
) -> ParallelStep:
    stages = strategy.pipeline
    groups = tuple(
        RankGroup(strategy.gpus // stages, stage, tuple(parts[stage::stages]))
        for stage in range(stages)
    )
    return ParallelStep(strategy, groups, cut_at.boundary, (*notes, *cut_at.notes))


def _compiled_notes(trace: Trace, strategy: Parallel) -> tuple[str, ...]:
    """What is assumed of the compiled graphs of a step."""
    if not has_graphs(trace):
        return ()
    if strategy.shard == 3 or strategy.pipeline > 1:
        return (
            "compiled graphs end where a repeated block does, as FSDP's hooks and pipeline stages "
            "break them; kernels are those of the graphs as traced",
        )
    if strategy.data > 1 and not strategy.shard and not strategy.has_one_buffer:
        return (
            "compiled graphs end where a bucket of gradients is complete, as Dynamo's DDPOptimizer "
            "cuts them; kernels are those of the graphs as traced",
        )
    return ()


def _offload_notes(trace: Trace, strategy: Parallel) -> tuple[str, ...]:
    """What an optimizer on the host needs, of which nobody knows whether it is there."""
    if strategy.offload == "none":
        return ()
    held = HostUpdate.of(trace, strategy).held_bytes / strategy.pipeline
    return (
        f"the host keeps about {held / 2**30:.3g} GiB of optimizer states and float32 weights for "
        "each GPU; whether its memory is so large is not known",
    )


# The passes over each part of the model that a rank has, once layers and pipeline are cut.


class _PassedPart(NamedTuple):
    """A part of the model on one rank, as passes change it one after the other."""

    whole: Trace
    """Forward pass, backward pass and optimizer of one micro-batch, not yet spread."""
    plain: Trace
    """As `ModelPart.plain`."""
    last: Trace


def _with_unit_graphs(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    return _PassedPart(*[cut_at_blocks(part.whole)] * 3)


def _with_bucket_graphs(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    return _PassedPart(*[cut_at_buckets(part.whole, strategy)] * 3)


def _reduced(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    last = with_reduction(part.whole, strategy, backward_end(part.whole))
    return _PassedPart(part.whole, _passes(part.whole), last)


def _with_shared_optimizer(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    last = with_sharded_optimizer(part.whole, strategy, backward_end(part.whole))
    if strategy.shard == 1:
        return _PassedPart(part.whole, _passes(part.whole), last)
    # Gradients are sharded, so each micro-batch reduces its own.
    return _PassedPart(part.whole, replace(last, calls=last.calls[: backward_end(last)]), last)


def _with_shared_weights(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    last = with_sharded_weights(part.whole, strategy, backward_end(part.whole))
    return _PassedPart(
        part.whole, _passes(last), last
    )  # FSDP gathers and reduces in every micro-batch


def _accumulating(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    """A micro-batch whose gradients are added to those of the micro-batches before it.

    Of so many micro-batches all but the first do so. A step that has a place for its gradients
    from the beginning (Megatron's `main_grad`) adds to it in any case, in its own calls.
    """
    trace = part.whole
    edit = Edit(replace(trace, allocations=()))
    if any(a.role is Role.GRADIENT and a.born is not None for a in trace.allocations):
        for gradient in gradients(trace):
            tensor = flat(gradient.nbytes, gradient.dtype)
            op = Op("aten.add_.Tensor", (tensor, tensor), (tensor,))
            edit.insert(gradient.ready + 1, [Call(op, Phase.BACKWARD, gradient.module)])
    edit.remove(range(backward_end(trace), len(trace)))
    return part._replace(plain=edit.trace())


def _offloaded(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    update = HostUpdate.of(part.whole, strategy)
    return part._replace(last=with_offloaded_optimizer(part.last, strategy, update))


def _waiting(part: _PassedPart, strategy: Parallel) -> _PassedPart:
    edit = Edit(part.last)
    edit.insert(len(part.last), [replace(wait(COMPUTE, COMPUTE, Phase.OPTIMIZER), syncs=True)])
    return part._replace(last=edit.trace())


_PASSES: tuple[
    tuple[Callable[[Parallel], bool], Callable[[_PassedPart, Parallel], _PassedPart]], ...
] = (
    (lambda strategy: strategy.shard == 3, _with_unit_graphs),
    (lambda strategy: strategy.shard == 0 and strategy.data > 1, _with_bucket_graphs),
    (lambda strategy: strategy.shard == 0, _reduced),
    (lambda strategy: strategy.shard in (1, 2), _with_shared_optimizer),
    (lambda strategy: strategy.shard == 3, _with_shared_weights),
    (lambda strategy: strategy.shard < 2 and strategy.microbatches > 1, _accumulating),
    (lambda strategy: strategy.offload == "optimizer", _offloaded),
    (lambda strategy: strategy.waits_each_step, _waiting),
)
"""Which strategies need a pass, and what it does, in the order in which passes are applied."""


def _part(trace: Trace, strategy: Parallel) -> ModelPart:
    """A part of the model on one rank, from one micro-batch with its optimizer."""
    part = _PassedPart(trace, trace, trace)
    for applies, change in _PASSES:
        if applies(strategy):
            part = change(part, strategy)
    return ModelPart(part.plain, part.last, backward_end(part.last))


def _passes(trace: Trace) -> Trace:
    """Forward and backward pass of a step."""
    return replace(trace, calls=trace.calls[: backward_end(trace)], allocations=())


def backward_end(trace: Trace) -> int:
    """The position after the last call of the backward pass.

    Raises:
        InvalidInput: the step has no backward pass.
    """
    for position in range(len(trace) - 1, -1, -1):
        if trace.calls[position].phase is Phase.BACKWARD:
            return position + 1
    raise InvalidInput("the step has no backward pass, so it is not a training step to be spread")
