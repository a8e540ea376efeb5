"""Expert parallelism: the experts of a mixture spread over ranks, and words sent to them and back.

Each rank has the same number of experts and its own words. Before the products of the experts an
all-to-all sends each word to the ranks of its experts, and another brings the results back; the
backward pass mirrors both. Ranks first tell each other how many words they send, and the host waits
for these numbers, as in Megatron and torchtitan. Words are taken to be spread evenly, so that a
rank receives as many as it sends.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.parallel.editing import COMPUTE, TRANSFERS, Edit, kernel, wait
from wavecast.parallel.exchanges import exchange
from wavecast.parallel.mixtures import GROUPED, grouped_products
from wavecast.parallel.plans import fitting
from wavecast.parallel.split_memory import Weight, is_list_op, share_memory, shared_lists
from wavecast.parallel.splits import Split, share_op
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import DTYPE_BYTES, Call, Op, Phase, Role, TensorSpec, Trace


def with_experts(trace: Trace, strategy: Parallel) -> tuple[Trace, tuple[str, ...]]:
    """The step of one expert rank, and what was assumed.

    Raises:
        InvalidInput: the step has no grouped products of experts, or they cannot be divided.
    """
    if strategy.expert == 1:
        return trace, ()
    axis = _axis(strategy)
    mixtures = _mixtures(trace)
    if not mixtures:
        raise InvalidInput(
            f"expert={axis.size} spreads the experts of a mixture, and the step has no grouped "
            "products of experts (torch's grouped_mm, as Hugging Face's models use it)"
        )
    for mixture in mixtures:
        if mixture.experts % axis.size:
            raise InvalidInput(
                f"expert={axis.size} does not divide the {mixture.experts} experts of "
                f"{mixture.module}; possible sizes are {fitting(mixture.experts)}"
            )
    edit = Edit(trace)
    ops: dict[int, Op] = {}
    for mixture in mixtures:
        ops |= _divided(trace, mixture, axis.size)
        _exchange_words(edit, trace, mixture, axis)
    weights = _weights(trace, mixtures, axis.size)
    ops |= shared_lists(trace, weights)
    for position, op in ops.items():
        edit.replace_op(position, op)
    share_memory(edit, trace, weights, ops)
    note = f"assumed that words are spread evenly over the experts of {len(mixtures)} layers"
    return edit.made(), (note,)


def _axis(strategy: Parallel) -> RankAxis:
    """The ranks that share the experts: ranks with other words, which are those of the data axis.

    With sequence parallelism, tensor ranks have other words, too.
    """
    axis, words = strategy.axes["expert"], strategy.data * strategy.context
    if not strategy.sequence and words % strategy.expert:
        raise InvalidInput(
            f"expert={strategy.expert} must divide data x context = {words}, since tensor ranks "
            f"have the same words; possible sizes are {fitting(words)}, or set sequence=True"
        )
    return axis


@dataclass(frozen=True)
class _Mixture:
    """The experts of one layer."""

    module: str
    experts: int
    shapes: frozenset[tuple[int, ...]]
    """The shapes of their weights, and of the same weights turned."""
    forward: tuple[int, ...]
    """The positions of the grouped products of the forward pass."""
    again: tuple[int, ...]
    """Those of the backward pass that compute the forward pass again."""
    backward: tuple[int, ...]


def _mixtures(trace: Trace) -> list[_Mixture]:
    mixtures = []
    repeated = recomputed(trace.calls)
    for module, positions in grouped_products(trace).items():
        ahead = [p for p in positions if trace.calls[p].phase is Phase.FORWARD]
        later = [p for p in positions if trace.calls[p].phase is Phase.BACKWARD]
        again = tuple(p for p in later if p in repeated)
        back = tuple(p for p in later if p not in repeated)
        stored = {trace.calls[p].op.inputs[1].shape for p in ahead}
        shapes = stored | {(count, wide, high) for count, high, wide in stored}
        experts = next(iter(stored))[0] if stored else 0
        if ahead:
            mixtures.append(_Mixture(module, experts, frozenset(shapes), tuple(ahead), again, back))
    return mixtures


def _divided(trace: Trace, mixture: _Mixture, ranks: int) -> dict[int, Op]:
    """The ops on the weights of all experts, with those of one rank."""
    ops = {}
    for position, call in enumerate(trace):
        if call.module != mixture.module or is_list_op(call):
            continue
        counts = call.op.base == GROUPED  # the ends of the groups are given, too

        def split(tensor: TensorSpec, counts: bool = counts) -> Split | None:
            is_ends = counts and tensor.shape == (mixture.experts,)
            return Split(0, mixture.experts) if tensor.shape in mixture.shapes or is_ends else None

        inputs = tuple(map(split, call.op.inputs))
        ops[position] = share_op(call.op, inputs, tuple(map(split, call.op.outputs)), ranks)
    return ops


def _exchange_words(edit: Edit, trace: Trace, mixture: _Mixture, axis: RankAxis) -> None:
    first, last = mixture.forward[0], mixture.forward[-1]
    counts = TensorSpec((mixture.experts,), "int64")
    host = TensorSpec((mixture.experts,), "int64", device="cpu")
    module, phase = mixture.module, Phase.FORWARD
    edit.insert(
        first,
        [
            wait(TRANSFERS, COMPUTE, phase, module),
            exchange("all_to_all", counts, counts, axis, TRANSFERS, phase, module),
            wait(COMPUTE, TRANSFERS, phase, module),
            Call(Op("aten._to_copy", (counts,), (host,)), phase, module, syncs=True),
        ],
    )
    there, back = trace.calls[first].op.inputs[0], trace.calls[last].op.outputs[0]
    passes = ((mixture.forward, there, back), (mixture.again, there, back))
    for positions, before, after in (*passes, (mixture.backward, back, there)):
        if positions:
            begin, end = positions[0], positions[-1]
            _send(edit, begin, before, axis, trace.calls[begin])
            _send(edit, end + 1, after, axis, trace.calls[end])


def _send(edit: Edit, position: int, words: TensorSpec, axis: RankAxis, call: Call) -> None:
    """Send words to the ranks of their experts, or back, and sort what arrives by expert."""
    phase, module = call.phase, call.module
    edit.insert(
        position,
        [
            wait(TRANSFERS, COMPUTE, phase, module),
            exchange("all_to_all", words, words, axis, TRANSFERS, phase, module),
            wait(COMPUTE, TRANSFERS, phase, module),
            kernel("aten.index.Tensor", words, words, phase, module),
        ],
    )
    edit.allocate(words.nbytes, Role.INTERMEDIATE, position, position + 1)


def _weights(trace: Trace, mixtures: list[_Mixture], ranks: int) -> list[Weight]:
    """The parameters of the step; those of experts are divided."""
    owned = [a for a in trace.allocations if a.role is Role.PARAMETER]
    stored: dict[str, set[int]] = defaultdict(set)
    for allocation in owned:
        stored[allocation.module].add(allocation.nbytes)
    width, divided = 4, {}
    for mixture in mixtures:
        numels = {count * high * wide for count, high, wide in mixture.shapes}
        dtype = trace.calls[mixture.forward[0]].op.inputs[1].dtype
        for size in (DTYPE_BYTES[dtype], 4):  # autocast computes in fewer bits than are stored
            nbytes = {size * numel for numel in numels}
            if nbytes <= stored[mixture.module]:
                width, divided[mixture.module] = size, nbytes
                break
    return [
        Weight(
            a.nbytes,
            a.nbytes // width,
            a.module,
            ranks if a.nbytes in divided.get(a.module, ()) else 1,
        )
        for a in owned
    ]
