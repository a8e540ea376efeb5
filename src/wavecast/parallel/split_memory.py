"""The memory of one tensor rank, and its share of the lists of tensors that optimizers work on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from wavecast.parallel.editing import Edit
from wavecast.parallel.plans import Plan
from wavecast.parallel.products import layers_of
from wavecast.traces.step import Call, Op, Phase, Role, TensorSpec, Trace

_LISTS = ("aten._foreach_", "aten._fused_")


@dataclass(frozen=True)
class Weight:
    """A parameter, and in how many parts it is divided."""

    nbytes: int
    numel: int
    module: str
    parts: int


def weights_of(
    trace: Trace, plan: Plan, inside: Collection[int], ops: Mapping[int, Op], ranks: int
) -> list[Weight]:
    """The parameters in the order in which they were made, with their parts.

    A parameter that another module owns, such as a tied embedding, is known by its gradient, which
    a call of a divided layer makes: one of those inside.
    """
    parts: dict[str, dict[int, int]] = defaultdict(dict)
    for layer in layers_of(trace):
        style = plan.styles.get(layer.position)
        divided = 1 if style is None else ranks
        parts[layer.module][layer.wide_out] = 1 if style == "rows" else divided
        parts[layer.module][layer.wide_in * layer.wide_out] = divided
    for call in trace:
        if call.module in plan.lookups and call.op.base == "aten.embedding":
            parts[call.module][call.op.inputs[0].numel] = ranks
    owned = [a for a in trace.allocations if a.role is Role.PARAMETER]
    width = next((w for a in owned for w in (4, 2, 8) if a.nbytes / w in parts[a.module]), 4)
    divided_gradients = _divided_gradients(trace, inside, ops)
    weights = []
    for allocation in owned:
        numel, key = allocation.nbytes // width, (allocation.module, allocation.nbytes)
        divided = ranks if key in divided_gradients else parts[allocation.module].get(numel, 1)
        weights.append(Weight(allocation.nbytes, numel, allocation.module, divided))
    return weights


def _divided_gradients(
    trace: Trace, inside: Collection[int], ops: Mapping[int, Op]
) -> set[tuple[str, int]]:
    """The owners and sizes of gradients that divided layers make in parts."""
    divided = set()
    for allocation in trace.allocations:
        born = allocation.born
        if allocation.role is not Role.GRADIENT or born is None or born not in inside:
            continue
        if ops[born].outputs != trace.calls[born].op.outputs:
            divided.add((allocation.module, allocation.nbytes))
    return divided


def summed_gradients(
    trace: Trace, ops: Mapping[int, Op], positions: Collection[int]
) -> TensorSpec | None:
    """Gradients of whole weights that calls at these positions make, as one flat tensor."""
    numel, dtype = 0, "float32"
    for allocation in trace.allocations:
        born = allocation.born
        if allocation.role is Role.GRADIENT and born is not None and born in positions:
            made = [t for t in ops[born].outputs if t.nbytes == allocation.nbytes]
            if made:
                numel, dtype = numel + made[0].numel, made[0].dtype
    return TensorSpec((numel,), dtype) if numel else None


def shared_lists(trace: Trace, weights: Sequence[Weight]) -> dict[int, Op]:
    """The ops on lists of all parameters or gradients, on one rank's share, by position."""
    sizes = [weight.numel for weight in weights]
    parts = [weight.parts for weight in weights]
    return {
        position: _shared(call.op, sizes, parts)
        for position, call in enumerate(trace)
        if is_list_op(call)
    }


def is_list_op(call: Call) -> bool:
    """Whether a call works on a list of parameters, their gradients or states."""
    passes = (Phase.FORWARD, Phase.BACKWARD)
    return call.phase is Phase.OPTIMIZER or (
        call.phase not in passes and call.op.name.startswith(_LISTS)
    )


def _shared(op: Op, sizes: Sequence[int], parts: Sequence[int]) -> Op:
    """An op on one or more lists of tensors, each of which follows the order of the parameters.

    Modules and optimizers may order parameters of different sizes differently, so only the order
    among those of one size counts.
    """
    of_size: dict[int, list[int]] = defaultdict(list)
    for size, part in zip(sizes, parts, strict=True):
        of_size[size].append(part)

    def shares(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        counts: dict[int, int] = defaultdict(int)
        cut = []
        for tensor in tensors:
            numel = tensor.numel
            known = of_size.get(numel)
            cut.append(_smaller(tensor, known[counts[numel] % len(known)] if known else 1))
            counts[numel] += 1
        return tuple(cut)

    return Op(op.name, shares(op.inputs), shares(op.outputs), op.attrs)


def _smaller(tensor: TensorSpec, part: int) -> TensorSpec:
    if part == 1:
        return tensor
    shape = tensor.shape
    dim = next((d for d, size in enumerate(shape) if size % part == 0), 0)
    return replace(tensor, shape=(*shape[:dim], -(-shape[dim] // part), *shape[dim + 1 :]))


def share_memory(
    edit: Edit,
    trace: Trace,
    weights: Sequence[Weight],
    ops: Mapping[int, Op],
    released: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Give each allocation the size that one rank needs.

    Args:
        edit: the change of the trace.
        trace: the trace as it was.
        weights: its parameters.
        ops: what one rank runs, by position.
        released: the allocations that it frees earlier, by index, and before which call.
    """
    # States and gradients may be wider than their weights: float32 beside 16 bits.
    wide = {(weight.module, 4 * weight.numel): weight.parts for weight in weights}
    parts = wide | {(weight.module, weight.nbytes): weight.parts for weight in weights}
    sizes = _written_bytes(trace, ops)
    gradients: dict[int, list[int]] = defaultdict(list)
    for index, allocation in enumerate(trace.allocations):
        if allocation.role is Role.GRADIENT and allocation.born is not None:
            gradients[allocation.nbytes].append(sizes[index])
    shared = []
    for index, allocation in enumerate(trace.allocations):
        nbytes = allocation.nbytes
        if allocation.born is not None:
            nbytes = sizes[index]
        elif allocation.role is Role.GRADIENT and gradients[nbytes]:
            nbytes = gradients[nbytes].pop(0)  # of the step before: as those of this step
        elif allocation.role in (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE):
            nbytes = -(-nbytes // parts.get((allocation.module, nbytes), 1))
        freed = released.get(index, allocation.freed)
        shared.append(replace(allocation, nbytes=nbytes, freed=freed))
    following = iter(shared)
    # What was added comes after them and stays as it is.
    edit.change_memory(lambda added: next(following, added))


def _written_bytes(trace: Trace, ops: Mapping[int, Op]) -> dict[int, int]:
    """The bytes on one rank of each allocation that a call makes."""
    born: dict[int, list[int]] = defaultdict(list)
    for index, allocation in enumerate(trace.allocations):
        if allocation.born is not None:
            born[allocation.born].append(index)
    sizes = {}
    for position, indices in born.items():
        whole_op = trace.calls[min(position, len(trace) - 1)].op
        shares = list(zip(whole_op.outputs, ops.get(position, whole_op).outputs, strict=True))
        for index in indices:
            nbytes = trace.allocations[index].nbytes
            match = next((pair for pair in shares if pair[0].nbytes == nbytes), None)
            if match is not None:
                shares.remove(match)
                nbytes = match[1].nbytes
            elif shares:  # padded, or scratch memory of the kernel
                whole = sum(pair[0].nbytes for pair in shares)
                part = sum(pair[1].nbytes for pair in shares)
                nbytes = nbytes * part // whole if whole else nbytes
            sizes[index] = nbytes
    return sizes
