"""The options of a strategy that say how a framework runs a step, applied to a rank's trace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.hardware.hosts import DIRECT, FUNCTION
from wavecast.parallel.fused_kernels import (
    ACTIVATIONS,
    EXPERTS,
    GATES,
    ROTARY,
    Flow,
    with_fused,
    with_fused_loss,
)
from wavecast.parallel.gradients import COMPUTE, TRANSFERS, wait, widened
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.predictors.attainable import FIRST
from wavecast.predictors.attention_kernels import CUDNN
from wavecast.predictors.retargeting import retarget, with_kernel
from wavecast.traces.editing import Edit
from wavecast.traces.recomputed import block_finder, recomputed
from wavecast.traces.step import Call, Op, Phase, Role, TensorSpec, Trace, Value

# Gradients that matmuls add to those in float32 themselves, as Megatron's fused kernel does.


def with_fused_accumulation(trace: Trace) -> Trace:
    """A rank's step without the passes that add gradients of matmuls to their float32 sums.

    The matmul reads and writes the sum in place of a gradient in 16 bits. Layers outside of the
    repeated blocks are Megatron's own: they make an empty gradient each time, for autograd. Those
    of Transformer Engine keep one of each shape (`empty_gradients`). Gradients of other layers are
    added as before.

    Raises:
        InvalidInput: the step adds no gradient to a sum in float32.
    """
    flow = Flow(trace, "fused_accumulation")
    sums = {p: w for p, call in enumerate(trace) if (w := _matmul(flow, p, call)) is not None}
    if not sums:
        raise InvalidInput(
            "fused_accumulation lets matmuls add gradients to sums in float32, and the step has "
            "no such sums (it needs weights in bf16 whose optimizer has float32 copies, as "
            "`--weights bf16` gives); leave it out"
        )
    edit, block_of = Edit(trace), block_finder(trace)
    gone = set()
    for position, writer in sums.items():
        matmul, added = trace.calls[writer], trace.calls[position]
        if block_of(matmul.module):
            gone.add(trace.values[matmul.writes[0]].allocation)
        op = replace(matmul.op, outputs=added.op.outputs)
        edit.replace(writer, replace(matmul, op=op, writes=added.writes))
    edit.remove(sums)
    edit.keep_memory(n for n in range(len(trace.allocations)) if n not in gone)
    return edit.trace()


def empty_gradients(traces: Iterable[Trace]) -> int:
    """The bytes of the empty gradients that a rank keeps for layers which add up their own.

    Transformer Engine has one of each shape of a weight (`get_dummy_wgrad`).
    """
    shapes = set()
    for trace in traces:
        block_of = block_finder(trace)
        for call in trace:
            if call.phase is not Phase.BACKWARD or ops.kind(call.op) is not ops.Kind.MATMUL:
                continue
            if any(trace.values[v].gradient_of for v in call.writes) and block_of(call.module):
                shapes.add(call.op.outputs[0].shape[-2:])  # of one expert
    return sum(TensorSpec(shape, "bfloat16").nbytes for shape in shapes)


def with_narrow_sums(trace: Trace) -> Trace:
    """A rank's step whose sums of gradients that are kept in float32 have the type of weights."""
    wide, edit = widened(trace), Edit(trace)
    for number, value in enumerate(trace.values):
        memory = None if value.allocation is None else trace.allocations[value.allocation]
        if memory is None or memory.role is not Role.GRADIENT or memory.born is not None:
            continue
        if value.gradient_of in wide and value.spec.dtype == "float32":
            edit.reshape(number, replace(value.spec, dtype=wide[value.gradient_of].dtype))
    return edit.trace()


def _matmul(flow: Flow, position: int, call: Call) -> int | None:
    """The matmul whose result a call adds to a sum in float32; None if it does not do that."""
    if call.op.base != "aten.add_" or call.phase is not Phase.BACKWARD or len(call.reads) != 2:
        return None
    total, gradient = call.op.inputs[:2]
    if total.dtype != "float32" or gradient.dtype not in ("bfloat16", "float16"):
        return None
    writer = flow.writer(call.reads[1], position)
    if writer is None or ops.kind(flow.trace.calls[writer].op) is not ops.Kind.MATMUL:
        return None
    alone = flow.readers(call.reads[1]) == [position]
    return writer if alone and len(flow.trace.calls[writer].writes) == 1 else None


# Calls that a framework issues in its own way: an attribute of their op says so.


def with_norms_in_functions(trace: Trace) -> Trace:
    """A rank's step whose norms are issued by autograd functions in Python, in both passes.

    The host takes longer for them. The kernels, in Triton, are taken to be as fast as PyTorch's.

    Raises:
        InvalidInput: the step has no norms.
    """
    return _marked(
        trace,
        FUNCTION,
        lambda call: ops.kind(call.op) is ops.Kind.NORM and ops.launches(call.op),
        "triton_functions says how norms are issued, and the step has none; leave it out",
    )


def with_direct_lists(trace: Trace) -> Trace:
    """A rank's step whose optimizer calls kernels on lists that the framework keeps, as Apex does.

    The kernels themselves are taken to be those of torch.

    Raises:
        InvalidInput: the optimizer works on no lists.
    """
    return _marked(
        trace,
        DIRECT,
        lambda call: call.phase is Phase.OPTIMIZER and ops.kind(call.op) is ops.Kind.OPTIMIZER,
        "direct_lists is for optimizers that work on lists of tensors, and that of this step works "
        "on none; leave it out",
    )


def _marked(trace: Trace, name: str, has: Callable[[Call], bool], refusal: str) -> Trace:
    """The trace with an attribute on the ops of some calls; InvalidInput if there are none."""
    positions = [position for position, call in enumerate(trace) if has(call)]
    if not positions:
        raise InvalidInput(refusal)
    edit = Edit(trace)
    for position in positions:
        call = trace.calls[position]
        op = replace(call.op, attrs=(*call.op.attrs, (name, True)))
        edit.replace(position, replace(call, op=op))
    return edit.trace()


_Change = Callable[[Trace, Parallel, int | None], Trace]
_HABITS: tuple[tuple[str, _Change], ...] = (
    ("sequence_first", lambda trace, *_: with_sequence_first(trace)),
    ("fp8", lambda trace, *_: with_fp8(trace)),
    (
        "fused_rotary",
        lambda trace, strategy, _: with_fused(trace, ROTARY, in_function=strategy.triton_functions),
    ),
    ("fused_gates", lambda trace, *_: with_fused(trace, GATES)),
    ("fused_experts", lambda trace, *_: with_fused(trace, EXPERTS)),
    ("triton_functions", lambda trace, *_: with_norms_in_functions(trace)),
    ("direct_lists", lambda trace, *_: with_direct_lists(trace)),
    ("fused_accumulation", lambda trace, *_: with_fused_accumulation(trace)),
    ("fused_loss", lambda trace, *_: with_fused_loss(trace)),
    ("reduce_in_16_bits", lambda trace, *_: with_narrow_sums(trace)),
    (
        "dispatch_once",
        lambda trace, strategy, domain_gpus: with_dispatch_once(
            trace, strategy.axes["expert"], domain_gpus
        ),
    ),
    ("gathers_again", lambda trace, *_: with_gathers_again(trace)),
    ("overlap_tensor", lambda trace, *_: with_overlap(trace)),
)
"""The options that change a rank's trace once its layers are sharded, in order."""


def with_habits(trace: Trace, strategy: Parallel, domain_gpus: int | None) -> Trace:
    """The step of a rank, whose layers are sharded already, as the framework runs it.

    Args:
        trace: the step of a rank.
        strategy: the options.
        domain_gpus: the GPUs of one machine. None if all ranks are in one.

    Raises:
        InvalidInput: the step has nothing to which an option applies.
    """
    for option, change in _HABITS:
        if getattr(strategy, option):
            trace = change(trace, strategy, domain_gpus)
    return trace


# The attention kernels of a framework that brings its own.


_FLASH_GPU = "a100-sxm-80gb"
"""A GPU on which PyTorch chooses FlashAttention 2."""


def with_attention(trace: Trace, strategy: Parallel) -> Trace:
    """A step, before its layers are sharded, with the attention kernels of the framework.

    Raises:
        InvalidInput: kernels are asked for that the step's attention cannot run, or it has no fused
            attention.
    """
    refusal = "{} says which kernels compute fused attention, and the step has none; leave it out"
    if strategy.cudnn_attention:
        if not any(map(_is_attention, trace)):
            raise InvalidInput(refusal.format("cudnn_attention"))
        changed, notes = with_kernel(trace, CUDNN)
        if notes:
            raise InvalidInput(f"cudnn_attention cannot be: {notes[0]}; leave it out")
        return changed
    if not (strategy.flash_attention or strategy.first_flash_attention):
        return trace
    trace = retarget(trace, device(_FLASH_GPU)).trace
    if strategy.flash_attention:
        return trace
    return _marked(trace, FIRST, _is_attention, refusal.format("first_flash_attention"))


def _is_attention(call: Call) -> bool:
    return ops.kind(call.op) is ops.Kind.ATTENTION


# Dispatch of tokens to experts as DeepEP and HybridEP do it: each token is sent once.
#
# A token goes once to each rank, or over the network once to each machine, that has one of its
# experts. It is permuted where it arrives, by the kernel that receives it. Tokens are taken to be
# spread evenly over the experts.


@dataclass(frozen=True)
class Routes:
    """The experts of a mixture, and how many of them each token goes to."""

    experts: int
    top_k: int

    def groups_met(self, groups: int) -> float:
        """In how many of so many equal groups of experts a token has an expert, on average."""
        others = self.experts - self.experts // groups
        missed = 1.0
        for chosen in range(self.top_k):
            missed *= max(others - chosen, 0) / (self.experts - chosen)
        return groups * (1.0 - missed)


def with_dispatch_once(trace: Trace, axis: RankAxis, domain_gpus: int | None) -> Trace:
    """A rank's step whose all-to-alls send a token once to each rank, or machine, that needs it.

    Raises:
        InvalidInput: the step does not say to how many experts a token goes.
    """
    on_machine = axis.size if domain_gpus is None else max(domain_gpus // axis.stride, 1)
    routes = _routes(trace, axis.size)
    edit = Edit(trace)
    sent: int | None = None
    for position, call in enumerate(trace):
        if call.op.name == "nccl.all_to_all" and len(call.op.inputs[0].shape) == 2:
            edit.replace_op(position, _exchange(call, routes, axis, on_machine))
            sent = position
        elif sent is not None and call.op.base == "aten.index":
            edit.remove([position])
            edit.replace_op(
                sent, _exchange(trace.calls[sent], routes, axis, on_machine), writes=call.writes
            )
            sent = None
    return edit.trace()


def _routes(trace: Trace, ranks: int) -> Routes:
    matmuls = (call.op for call in trace if "grouped_mm" in call.op.base)
    own = next((op.inputs[1].shape[0] for op in matmuls if len(op.inputs[1].shape) == 3), None)
    chosen = next((c.op.outputs[0].shape[-1] for c in trace if c.op.base == "aten.topk"), None)
    if own is None or chosen is None:
        raise InvalidInput(
            "dispatch_once needs to know to how many experts each token goes, and the step has no "
            "grouped matmul of experts, or no topk that chooses among them"
        )
    return Routes(own * ranks, chosen)


def _exchange(call: Call, routes: Routes, axis: RankAxis, on_machine: int) -> Op:
    """The exchange that takes longest: over the network if there are several machines."""
    copies, width = call.op.inputs[0].shape
    machines = max(axis.size // on_machine, 1)
    groups, stride = (
        (machines, axis.stride * on_machine) if machines > 1 else (axis.size, axis.stride)
    )
    tokens = round(copies / routes.top_k * routes.groups_met(groups))
    tensor = TensorSpec((max(tokens, 1), width), call.op.inputs[0].dtype)
    return Op(call.op.name, (tensor,), (tensor,), (("ranks", groups), ("stride", stride)))


# FP8: the matmuls of the blocks in 8 bits, as Transformer Engine runs them.
#
# A norm or an activation writes its result in 8 bits for the matmul that reads it. Other operands
# are cast once, together with a transposed copy, because matmuls in 8 bits read rows only. Weights
# are cast once for all micro-batches of a step; that is not counted. The output layer, the
# embedding and attention stay in 16 bits.


GROUPED = "aten._grouped_mm"
_SCALED = {
    "aten.mm": "aten._scaled_mm",
    "aten.addmm": "aten._scaled_mm",
    GROUPED: "aten._scaled_grouped_mm",
}
"""Matmuls, and what they are in 8 bits."""
_SCALE = TensorSpec((), "float32")
_FORWARD, _GRADIENT = "float8_e4m3fn", "float8_e5m2"


def with_fp8(trace: Trace) -> Trace:
    """A rank's step whose blocks compute their matmuls in 8 bits.

    Raises:
        InvalidInput: no repeated block has a matmul in 16 bits.
    """
    flow = Flow(trace, "fp8")
    block_of = block_finder(trace)
    edit = Edit(trace)
    scale = edit.add_value(Value(_SCALE))
    narrow: set[int] = set()
    has_matmuls = False
    for position, call in enumerate(trace):
        if call.op.base not in _SCALED or not call.reads or not block_of(call.module):
            continue
        has_matmuls = True
        first = 0 if call.op.base == GROUPED else len(call.reads) - 2
        for factor in (first, first + 1):
            source, writer = flow.source(call.reads[factor], position)
            if source in narrow or _is_weight(flow, source, writer):
                continue
            narrow.add(source)
            if not _writes_8_bits(flow, writer):
                _cast(edit, position, call, factor)
        edit.replace(position, _scaled(call, first, scale))
    if not has_matmuls:
        raise InvalidInput(
            "fp8 runs the matmuls of repeated blocks in 8 bits, and the step has none in a block "
            "(a numbered module, as in a ModuleList)"
        )
    return edit.trace()


def _is_weight(flow: Flow, value: int, writer: int | None) -> bool:
    """Whether a value is a parameter, or its copy in fewer bits."""
    values = flow.trace.values
    if writer is None:
        return bool(values[value].parameter)
    call = flow.trace.calls[writer]
    return call.op.base == "aten._to_copy" and any(
        values[flow.base(read)].parameter for read in call.reads
    )


def _writes_8_bits(flow: Flow, writer: int | None) -> bool:
    """Whether a kernel writes its result in 8 bits: a norm, an activation, or a gate's product."""
    if writer is None:
        return False
    call = flow.trace.calls[writer]
    if ops.kind(call.op) is ops.Kind.NORM:
        return not call.op.base.endswith("_backward")
    return _is_activation(flow, writer)


def _is_activation(flow: Flow, position: int) -> bool:
    """Whether a kernel is an activation or its gradient, or multiplies or joins such results."""
    call = flow.trace.calls[position]
    if call.op.base in ACTIVATIONS:
        return True
    if call.op.base not in ("aten.mul", "aten.cat"):
        return False
    writers = (flow.writer(read, position) for read in call.reads)
    return any(w is not None and flow.trace.calls[w].op.base in ACTIVATIONS for w in writers)


def _cast(edit: Edit, position: int, call: Call, factor: int) -> None:
    """Write an operand in 8 bits, and transposed, before the matmul that reads it first."""
    operand = call.op.inputs[factor]
    copy = TensorSpec((operand.numel,), _FORWARD)
    # Two results of the operand's size, so that it is predicted as a pass over memory.
    op = Op("aten._to_copy", (TensorSpec((operand.numel,), operand.dtype),), (copy, copy))
    both = [edit.allocate(copy.nbytes, Role.INTERMEDIATE, position, position + 1) for _ in range(2)]
    writes = tuple(edit.add_value(Value(copy, memory)) for memory in both)
    reads = (call.reads[factor],)
    edit.insert(position, [Call(op, call.phase, call.module, reads=reads, writes=writes)])


def _scaled(call: Call, first: int, scale: int) -> Call:
    """A matmul in 8 bits. The ends of the groups of a grouped one stay as they are."""
    left, right, *ends = call.op.inputs[first:]
    values = call.reads[first:]
    kind = _FORWARD if call.phase is Phase.FORWARD else _GRADIENT
    if call.op.base == GROUPED:
        operands = (TensorSpec(left.shape, kind), TensorSpec(right.shape, _FORWARD, right.strides))
        op = Op(_SCALED[GROUPED], (*operands, *ends), call.op.outputs)
        return replace(call, op=op, reads=values)
    turned = TensorSpec(right.shape, _FORWARD, (1, right.shape[0]))
    operands = (TensorSpec(left.shape, kind), turned)
    op = Op(_SCALED[call.op.base], (*operands, _SCALE, _SCALE), call.op.outputs)
    return replace(call, op=op, reads=(*values, scale, scale))


# Megatron's layout, position first, in which attention that is not fused reads views.


def with_sequence_first(trace: Trace) -> Trace:
    """A rank's step without the copies of queries, keys and values that only matmuls read.

    With the batch first, batched matmuls need these copies. The copy that joins the heads is needed
    in both layouts, and stays.

    Raises:
        InvalidInput: the step has no batched matmul.
    """
    flow = Flow(trace, "sequence_first")
    again = recomputed(trace.calls)
    copies = [
        position
        for position, call in enumerate(trace)
        if call.op.base == "aten.clone"
        and (call.phase is Phase.FORWARD or position in again)
        and _is_for_matmuls(flow, position)
    ]
    if not any(op.base == "aten.bmm" for op in trace.counts):
        raise InvalidInput(
            "sequence_first leaves out the copies of attention that is not fused, and the step has "
            "no such attention (no batched matmul); leave it out"
        )
    edit = Edit(trace)
    for position in copies:
        call = trace.calls[position]
        (copy,), source = call.writes, call.reads[0]
        edit.replace_op(position, Op("aten.view", call.op.inputs, call.op.outputs))
        _keep_until_read(
            edit, trace, trace.values[source].allocation, trace.values[copy].allocation
        )
    gone = {trace.values[trace.calls[p].writes[0]].allocation for p in copies}
    edit.keep_memory(n for n in range(len(trace.allocations)) if n not in gone)
    return edit.trace()


def _is_for_matmuls(flow: Flow, position: int) -> bool:
    """Whether only batched matmuls read the result of a copy."""
    readers = [r for value in flow.trace.calls[position].writes for r in flow.readers(value)]
    return bool(readers) and all(flow.trace.calls[r].op.base == "aten.bmm" for r in readers)


def _keep_until_read(edit: Edit, trace: Trace, source: int | None, copy: int | None) -> None:
    """Let the source of a copy live as long as the copy did."""
    if source is None or copy is None:
        return
    kept, read = trace.allocations[source], trace.allocations[copy]
    if kept.freed is not None:
        until = None if read.freed is None else max(kept.freed, read.freed)
        edit.set_lifetime(source, kept.born, until)


# Overlap of tensor-parallel collectives with the matmuls beside them, as in Transformer Engine.
#
# An all-gather, or a reduce-scatter, and the matmul beside it are cut into chunks, so that chunks
# are sent while others are computed (NVIDIA's `tp_comm_overlap`, with userbuffers). Both then take
# about as long as the longer one. The first and the last chunk are not counted.


_MATMULS = ("aten.mm", "aten.addmm", "aten._scaled_mm")
_AROUND = 12
"""How many calls a collective may be from its matmul: casts and views are between them."""


def with_overlap(trace: Trace) -> Trace:
    """A rank's step whose all-gathers and reduce-scatters run beside the matmuls next to them."""
    calls, edit = trace.calls, Edit(trace)
    for position, call in enumerate(calls):
        if call.stream != TRANSFERS:
            continue
        if call.op.name == "nccl.all_gather" and _waits(calls, position + 1, COMPUTE):
            matmul = _next_matmul(calls, range(position + 2, position + 2 + _AROUND), call)
            if matmul is not None:  # it need not wait for the whole gather
                edit.move(position + 1, matmul + 1)
        elif call.op.name == "nccl.reduce_scatter" and _waits(calls, position - 1, TRANSFERS):
            matmul = _next_matmul(calls, range(position - 2, position - 2 - _AROUND, -1), call)
            if matmul is not None:  # its first chunks are sent while others are computed
                edit.move(position - 1, matmul)
                edit.move(position, matmul)
    return edit.trace()


def _waits(calls: Sequence[Call], position: int, stream: int) -> bool:
    """Whether a stream waits at a position."""
    if not 0 <= position < len(calls):
        return False
    call = calls[position]
    return call.op.name == "cuda.stream_wait" and call.stream == stream


def _next_matmul(calls: Sequence[Call], places: range, collective: Call) -> int | None:
    """The nearest matmul of the same pass, with no other collective between."""
    for place in places:
        if not 0 <= place < len(calls) or calls[place].phase is not collective.phase:
            return None
        if calls[place].op.base in _MATMULS:
            return place
        if calls[place].op.name.startswith("nccl."):
            return None
    return None


# Activations that are gathered again in the backward pass, as Megatron does it.
#
# With sequence parallelism a matmul reads a gathered tensor, of which each rank has a share.
# Megatron keeps the share only, and gathers the tensor again beside another matmul, for the
# gradient of the weight (Korthikanti et al. 2022, section 4.2.2).


def with_gathers_again(trace: Trace) -> Trace:
    """A rank's step that keeps no gathered activation from the forward to the backward pass.

    Raises:
        InvalidInput: the backward pass reads no activation that the forward pass has gathered.
    """
    beside = [
        position
        for position, call in enumerate(trace)
        if call.phase is Phase.BACKWARD
        and ops.kind(call.op) in (ops.Kind.MATMUL, ops.Kind.ATTENTION)
    ]
    edit, changed = Edit(trace), False
    for memory, (gather, earlier, later) in _gathered(trace).items():
        if later:
            index = bisect_left(beside, later[0])
            place = beside[index - 1] if index else later[0]
            _gather_again(edit, memory, gather, later, place)
            edit.set_lifetime(memory, trace.allocations[memory].born, earlier[-1] + 1)
            changed = True
    if not changed:
        raise InvalidInput(
            "gathers_again gathers activations again in the backward pass, and that of this step "
            "reads none that the forward pass has gathered; leave it out"
        )
    return edit.trace()


def _gathered(trace: Trace) -> dict[int, tuple[Call, list[int], list[int]]]:
    """The memory that the forward pass gathers: by what, and its users of either pass."""
    gathered: dict[int, tuple[Call, list[int], list[int]]] = {}
    for position, call in enumerate(trace):
        places = {trace.values[value].allocation for value in (*call.reads, *call.writes)}
        for memory in places & gathered.keys():
            assert memory is not None
            _, earlier, later = gathered[memory]
            (earlier if call.phase is Phase.FORWARD else later).append(position)
        gathers = call.op.name == "nccl.all_gather" and call.stream == TRANSFERS
        if gathers and call.phase is Phase.FORWARD and call.writes:
            place = trace.values[call.writes[0]].allocation
            if place is not None:
                gathered[place] = call, [position], []
    return gathered


def _gather_again(edit: Edit, memory: int, gather: Call, later: Sequence[int], beside: int) -> None:
    """Gather memory again beside a kernel, for its users in the backward pass."""
    trace = edit.before
    module = trace.calls[later[0]].module
    again = edit.allocate(
        trace.allocations[memory].nbytes, Role.INTERMEDIATE, beside, later[-1] + 1
    )
    renamed: dict[int, int] = {}

    def moved(value: int) -> int:
        known = trace.values[value]
        if known.allocation != memory:
            return value
        if value not in renamed:
            base = None if known.view_of is None else moved(known.view_of)
            renamed[value] = edit.add_value(replace(known, allocation=again, view_of=base))
        return renamed[value]

    whole = tuple(map(moved, gather.writes))
    issued = replace(gather, phase=Phase.BACKWARD, module=module, writes=whole)
    edit.insert(beside, [wait(TRANSFERS, COMPUTE, Phase.BACKWARD, module), issued])
    edit.insert(later[0], [wait(COMPUTE, TRANSFERS, Phase.BACKWARD, module)])
    for position in later:
        call = trace.calls[position]
        reads, writes = (tuple(map(moved, values)) for values in (call.reads, call.writes))
        edit.replace_op(position, call.op, reads, writes)
