"""The buffers that the kernel of a scheduled node reads and writes, and how it reaches them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

_INDIRECT = re.compile(r"indirect|tmp")
_ATOMIC = "atomic_add"
WARP = 32
"""Threads that run together."""
FEW_PLACES = 1024
"""Up to this many addresses, atomic additions of the whole GPU wait for each other."""
_REPEATING = "ModularIndexing"

Hint = Callable[[Any], int]


class Access(NamedTuple):
    """How a kernel reads or writes one buffer."""

    name: str
    spec: TensorSpec
    elements: int
    """Elements that are touched, each once."""
    written: bool
    strided: bool
    """Whether neighbours in the loop are not neighbours in memory."""
    indirect: bool
    """Whether the indices are read from another buffer, as in a lookup."""
    atomic: bool
    collides: bool = False
    """Whether neighbouring threads add to the same address, one after the other."""
    stage: int = 0
    """How many reductions must be complete before: a looped kernel reads again in each stage."""


class BufferView(NamedTuple):
    """A tensor that a kernel or a library call reads or writes."""

    buffer: str
    """The name of its buffer. Scratch memory of a kernel has a name that no buffer has."""
    offset: int = 0
    """Where it begins in the buffer, in elements."""


class PlannedOp(NamedTuple):
    """A kernel or a library call, and the tensors behind its inputs and outputs."""

    op: Op
    reads: tuple[BufferView, ...]
    writes: tuple[BufferView, ...]


class BufferUse(NamedTuple):
    """All accesses of a kernel to a buffer."""

    spec: TensorSpec
    nbytes: int
    strided_bytes: int
    again_bytes: int
    """Bytes that a looped kernel reads again after a reduction."""
    indirect: bool
    atomic_bytes: int
    """Bytes that are added with atomic operations; several additions may go to one address."""
    colliding_bytes: int


def accesses_of(nodes: Sequence[Any], graph: Any, hint: Hint) -> list[Access]:
    """The accesses of nodes that become one kernel; what stays within the kernel is left out."""
    inside = kept_inside(nodes)
    stages = _stages(nodes)
    found = []
    for node in nodes:
        reads_and_writes = ((node.read_writes.reads, False), (node.read_writes.writes, True))
        for deps, written in reads_and_writes:
            for dep in deps:
                if dep.name in inside or not hasattr(dep, "size"):
                    continue
                spec = _known_spec(graph, dep.name, hint)
                if spec is None:
                    continue
                access = _access(dep, spec, written, node, hint)
                found.append(access._replace(stage=stages[node.get_name()]))
    return found


def _known_spec(graph: Any, name: str, hint: Hint) -> TensorSpec | None:
    # What a call changed in place has the name of the call from then on.
    buffer = graph.try_get_buffer(graph.scheduler.mutation_real_name.get(name, name))
    spec = None if buffer is None else spec_of(buffer, hint)
    return None if spec is None or spec.dtype not in DTYPE_BYTES else spec


def extent(node: Any, hint: Hint) -> int:
    """How often a node's body runs: its points times the length of its reduction."""
    count = 1
    for ranges in node.get_ranges():
        for size in ranges:
            count *= hint(size)
    return count


def _access(dep: Any, spec: TensorSpec, written: bool, node: Any, hint: Hint) -> Access:
    free = {name_of(symbol) for symbol in dep.index.free_symbols}
    indirect = any(_INDIRECT.search(symbol) for symbol in free)
    reduces, elements = node.is_reduction(), 1
    for variable, size in zip(dep.var_names, dep.size, strict=True):
        if name_of(variable) in free:
            elements *= hint(size)
    if indirect:  # indices that are read depend on all loops
        elements = _points(node, hint) if reduces and written else extent(node, hint)
    strided = not indirect and not is_contiguous(dep, any_variable=reduces)
    atomic = getattr(dep, "mode", None) == _ATOMIC
    collides = atomic and indirect and not _moves_with_last(dep)
    return Access(dep.name, spec, elements, written, strided, indirect, atomic, collides)


def _points(node: Any, hint: Hint) -> int:
    count = 1
    for size in node.get_ranges()[0]:
        count *= hint(size)
    return count


def _moves_with_last(dep: Any) -> bool:
    """Whether neighbours in the fastest loop have adjacent addresses, whatever the other loops."""
    terms = dep.index.args if getattr(dep.index, "is_Add", False) else (dep.index,)
    steps = [_step(term) for term in terms]
    return any(factor == 1 and not _INDIRECT.search(variable) for variable, factor in steps)


def by_buffer(
    accesses: Iterable[Access],
) -> tuple[dict[str, BufferUse], dict[str, BufferUse]]:
    """The buffers that are read and those that are written, each with all its accesses.

    A buffer that a kernel writes and then reads has its values in registers: only the write counts.
    """
    reads: dict[str, list[Access]] = {}
    writes: dict[str, list[Access]] = {}
    for access in accesses:
        if access.written:
            writes.setdefault(access.name, []).append(access)
        elif access.name not in writes:
            reads.setdefault(access.name, []).append(access)
    return (
        {name: _use(group) for name, group in reads.items()},
        {name: _use(group) for name, group in writes.items()},
    )


def _use(group: Sequence[Access]) -> BufferUse:
    spec = group[0].spec
    item, most = DTYPE_BYTES[spec.dtype], _stored_elements(spec)
    elements = min(sum(access.elements for access in group), most)
    strided = min(sum(access.elements for access in group if access.strided), most)
    stages = {access.stage for access in group}
    whole = max(access.elements for access in group)
    return BufferUse(
        spec=spec,
        nbytes=item * elements,
        strided_bytes=item * strided,
        again_bytes=item * min(whole, most) * (len(stages) - 1),
        indirect=any(access.indirect for access in group),
        atomic_bytes=item * sum(access.elements for access in group if access.atomic),
        colliding_bytes=item * _collisions(group, most),
    )


def _collisions(group: Sequence[Access], places: int) -> int:
    """Atomic additions that wait for others, since the whole GPU adds to a few addresses."""
    adds = sum(access.elements for access in group if access.collides)
    return adds if adds >= WARP * places and places <= FEW_PLACES else 0


def _stored_elements(spec: TensorSpec) -> int:
    return spec.touched_bytes // DTYPE_BYTES[spec.dtype]


def spec_of(buffer: Any, hint: Hint) -> TensorSpec:
    """The shape, type, strides and place of a buffer of Inductor."""
    shape = tuple(hint(size) for size in buffer.get_size())
    dtype = str(buffer.get_dtype()).removeprefix("torch.")
    try:
        strides = tuple(hint(stride) for stride in buffer.get_stride())
    except (AttributeError, NotImplementedError):
        strides = None
    # A view that Inductor made of a buffer may have other dimensions than its strides say.
    if strides == _contiguous(shape) or (strides is not None and len(strides) != len(shape)):
        strides = None
    place = buffer.get_device()
    on_host = place is not None and place.type == "cpu"
    return TensorSpec(shape, dtype, strides, "cpu" if on_host else "cuda")


def operand_of(buffer: Any, hint: Hint) -> BufferView:
    """The tensor that a buffer of Inductor is, or that is a view of one."""
    offset = getattr(getattr(buffer, "layout", None), "offset", 0)
    return BufferView(str(buffer.get_name()), hint(offset))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(dep: Any, any_variable: bool = False) -> bool:
    """Whether neighbours in the fastest loop (or in any loop) are neighbours in memory.

    True also for what does not depend on that loop, as a broadcast row.
    """
    terms = dep.index.args if getattr(dep.index, "is_Add", False) else (dep.index,)
    steps = [_step(term) for term in terms]
    variables = [name_of(variable) for variable in dep.var_names]
    if not variables:
        return True
    if any_variable and any(factor == 1 for variable, factor in steps if variable in variables):
        return True
    of_last = [factor for variable, factor in steps if variable == variables[-1]]
    return not of_last or 1 in of_last


def _step(term: Any) -> tuple[str, int]:
    """The variable of a term of an index and its factor; 0 for a variable that changes slowly."""
    factor = 1
    if getattr(term, "is_Mul", False):
        numbers = [a for a in term.args if getattr(a, "is_Integer", False)]
        others = [a for a in term.args if not getattr(a, "is_Integer", False)]
        if len(others) != 1:
            return "", 0
        factor, term = int(numbers[0]) if numbers else 1, others[0]
    if getattr(term, "is_Symbol", False):
        return name_of(term), factor
    if type(term).__name__ == _REPEATING and term.args[1] == 1:
        return name_of(term.args[0]), factor
    return "", 0


def name_of(term: Any) -> str:
    """The text of a term of an index, which for most is the name of a variable."""
    return str(term.name if getattr(term, "is_Symbol", False) else term)


def kept_inside(nodes: Sequence[Any]) -> set[str]:
    """The names of buffers that only these nodes use, and which therefore never reach memory."""
    members = {node.get_name() for node in nodes}
    inside = set()
    for node in nodes:
        for output in node.get_outputs():
            users = {_user_name(user) for user in output.users}
            if users <= members and not output.get_aliases() and not output.get_mutations():
                inside.add(output.get_name())
    return inside


def _user_name(user: Any) -> str:
    return str(user.node.get_name())


def _stages(nodes: Sequence[Any]) -> dict[str, int]:
    """For each node, how many reductions of this kernel its values depend on, one after another."""
    made: dict[str, int] = {}
    stages: dict[str, int] = {}
    for node in nodes:
        stage = max((made.get(dep.name, 0) for dep in node.read_writes.reads), default=0)
        stages[node.get_name()] = stage
        for output in node.get_outputs():
            made[output.get_name()] = stage + bool(node.is_reduction())
    return stages
