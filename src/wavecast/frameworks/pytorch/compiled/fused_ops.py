"""The kernels that Inductor generates for a scheduled node, as ops.

Nothing of torch is imported. Only attributes of the nodes and of the graph are read, so that the
same code describes the nodes of a real compilation on a GPU and those of a capture without one
(torch 2.9 to 2.13).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from wavecast.ops.fused import FUSED, TEMPLATE
from wavecast.ops.registry import integer
from wavecast.traces.step import DTYPE_BYTES, Op, Scalar, TensorSpec

POINTWISE, REDUCTION, PERSISTENT, FOREACH = FUSED

_INNER, _OUTER_TINY = "INNER", "OUTER_TINY"
_INNER_MOST, _OTHER_MOST = 1024, 64
"""Up to these lengths a reduction is held in registers as a whole (`choices.py` of Inductor)."""
_MOST_ARGUMENTS = 250
"""A kernel over a list has at most this many pointers (`combo_kernel_max_num_args`)."""
_SPLITS_PER_SM, _FEWEST_ROWS, _MOST_ROWS = 8, 16, 128
"""How Inductor splits the rows over blocks when two reductions go in different directions."""
_RANDOM = ("rand", "randn", "randint64", "rand_eager")
_FREE = frozenset(
    "load store load_seed constant index_expr value_expr get_index to_dtype to_dtype_bitcast "
    "identity indirect_indexing check_bounds masked output placeholder store_reduction reduction "
    "partial_accumulate device_assert_async".split()
)
"""Operations of a loop body that compute nothing."""
_SPECIAL = frozenset(
    "exp exp2 expm1 sqrt rsqrt cos sin tan tanh sigmoid erf erfc erfinv log log2 log10 log1p pow "
    "acos acosh asin asinh atan atan2 atanh cosh sinh lgamma reciprocal truediv div_rn "
    "int_truediv fmod mod remainder libdevice_exp libdevice_sqrt".split()
)
"""Operations that take many instructions, or run on the special-function units."""
_DIVISIONS = ("FloorDiv", "ModularIndexing", "PythonMod", "CleanDiv")
_SPECIAL_OPERATIONS = 8
"""How many plain operations such an operation counts as."""

Hint = Callable[[Any], int]
Attributes = tuple[tuple[str, Scalar], ...]


class NodeKernels(NamedTuple):
    """The kernels of a scheduled node, in the order in which they run."""

    planned: tuple[PlannedOp, ...]
    replaced: tuple[str, ...] = ()
    """The names of other nodes of the graph that these kernels replace, so that they do not run."""

    @property
    def ops(self) -> tuple[Op, ...]:
        """The kernels as ops."""
        return tuple(planned.op for planned in self.planned)


def kernels_of(node: Any, graph: Any, sm_count: int) -> NodeKernels:
    """The kernels that Inductor generates for a node."""
    if node.is_template():
        return NodeKernels((_template_kernel(node, graph),))
    if hasattr(node, "get_subkernel_nodes"):
        return NodeKernels(tuple(_list_kernels(node, graph)))
    if hasattr(node, "node1") and hasattr(node, "node2") and not hasattr(node, "group_size"):
        return _in_two_orders(node, graph, sm_count)
    points, reduction = node.group[1]
    return NodeKernels((_kernel(node.get_nodes(), points, reduction, graph),))


def list_kernel(nodes: Sequence[Any], graph: Any) -> PlannedOp:
    """One kernel over a list of independent nodes, whose shapes may differ."""
    hint = hint_of(graph)
    accesses: list[Access] = []
    points, operations = 0, _Operations()
    for node in nodes:
        members = node.get_nodes()
        of_node = hint(node.group[1][0])
        points += of_node * hint(node.group[1][1])
        accesses += accesses_of(members, graph, hint)
        operations = operations.plus(_operations(members, hint))
    members = [member for node in nodes for member in node.get_nodes()]
    attrs = (("points", points), ("reduction", 1), ("tensors", len(nodes)))
    return _op(FOREACH, attrs, accesses, operations, members)


def _list_kernels(node: Any, graph: Any) -> Iterable[PlannedOp]:
    """A kernel over a list, or several if it has too many arguments for one."""
    part: list[Any] = []
    count = 0
    for member in node.get_subkernel_nodes():
        arguments = len(member.read_writes.reads) + len(member.read_writes.writes)
        if part and count + arguments > _MOST_ARGUMENTS:
            yield _list_or_single(part, graph)
            part, count = [], 0
        part.append(member)
        count += arguments
    if part:
        yield _list_or_single(part, graph)


def _list_or_single(part: Sequence[Any], graph: Any) -> PlannedOp:
    if len(part) > 1:
        return list_kernel(part, graph)
    points, reduction = part[0].group[1]
    return _kernel(part[0].get_nodes(), points, reduction, graph)


def _kernel(
    nodes: Sequence[Any], points: Any, reduction: Any, graph: Any, kind: str | None = None
) -> PlannedOp:
    """One kernel of pointwise operations and reductions over the same points."""
    hint = hint_of(graph)
    rows, length = hint(points), hint(reduction)
    accesses = accesses_of(nodes, graph, hint)
    name = kind or _kind(nodes, rows * length, length, hint)
    attrs: Attributes = (("points", rows), ("reduction", length))
    if length > 1:
        attrs += (("inner", _hint_of_kernel(nodes, rows * length, hint) == _INNER),)
    return _op(name, attrs, accesses, _operations(nodes, hint), nodes)


def _op(
    name: str,
    attrs: Attributes,
    accesses: Sequence[Access],
    operations: _Operations,
    nodes: Sequence[Any],
) -> PlannedOp:
    reads, writes = by_buffer(accesses)
    work = max(_work(attrs), 1)
    strided = [*reads.values(), *writes.values()]
    details: dict[str, Scalar] = {
        "read_bytes": sum(a.nbytes for a in reads.values()),
        "write_bytes": sum(a.nbytes for a in writes.values()),
        "strided_bytes": sum(a.strided_bytes for a in strided),
        "indirect_bytes": sum(a.nbytes for a in strided if a.indirect),
        "atomic_bytes": sum(a.atomic_bytes for a in writes.values()),
        "colliding_bytes": sum(a.colliding_bytes for a in writes.values()),
        "again_bytes": sum(a.again_bytes for a in reads.values() if name == REDUCTION),
        "divisions": round(operations.divisions / work, 3),
        "loads": round(operations.loads / work, 3),
        "random": round(operations.random / work, 3),
        "arithmetic": round(operations.arithmetic / work, 3),
        "fused": fused_names(nodes),
    }
    inputs = tuple(use.spec for use in reads.values())
    outputs = tuple(use.spec for use in writes.values())
    op = Op(name, inputs, outputs, (*attrs, *details.items()))
    return PlannedOp(op, tuple(map(BufferView, reads)), tuple(map(BufferView, writes)))


def _work(attrs: Attributes) -> int:
    sizes = Op("", (), (), attrs)
    return integer(sizes, "points") * integer(sizes, "reduction", 1)


class _Operations(NamedTuple):
    """The work of a kernel, summed over all its points."""

    loads: float = 0.0
    random: float = 0.0
    arithmetic: float = 0.0
    divisions: float = 0.0
    """Integer divisions that compute the indices of elements."""

    def plus(self, other: _Operations) -> _Operations:
        return _Operations(*(a + b for a, b in zip(self, other, strict=True)))


def _operations(nodes: Sequence[Any], hint: Hint) -> _Operations:
    total = _Operations()
    for node in nodes:
        counts = getattr(node._body, "op_counts", None)
        if counts is None:
            continue
        times = extent(node, hint)
        plain = sum(n for op, n in counts.items() if op not in _FREE and op not in _RANDOM)
        special = sum(n for op, n in counts.items() if op in _SPECIAL)
        computed = plain + (_SPECIAL_OPERATIONS - 1) * special + node.is_reduction()
        drawn = sum(counts.get(op, 0) for op in _RANDOM)
        loads, divisions = counts.get("load", 0), _divisions(node._body)
        total = total.plus(
            _Operations(times * loads, times * drawn, times * computed, times * divisions)
        )
    return total


def _divisions(body: Any) -> int:
    """How many divisions the indices of a loop body need; equal ones are computed once."""
    divisions = set()
    for expression in getattr(body, "indexing_exprs", {}).values():
        parts = [expression]
        while parts:
            part = parts.pop()
            if type(part).__name__ in _DIVISIONS:
                divisions.add(part)
            parts += getattr(part, "args", ())
    return len(divisions)


def fused_names(nodes: Iterable[Any]) -> str:
    """The aten ops from which a kernel was made, as its name lists them: "add,gelu,mul"."""
    names = set()
    for node in nodes:
        for origin in getattr(node.node, "origins", ()):
            source = origin.meta.get("original_aten") if origin.op == "call_function" else None
            packet = getattr(source, "_overloadpacket", None)
            if packet is not None:
                names.add(str(packet.__name__))
            elif source is not None:
                names.add(str(source.name()))
    return ",".join(sorted(names))


# Whether a reduction is held in registers.


def _kind(nodes: Sequence[Any], work: int, length: int, hint: Hint) -> str:
    if length <= 1 or not any(node.is_reduction() for node in nodes):
        return POINTWISE
    direction = _hint_of_kernel(nodes, work, hint)
    if direction not in (_INNER, _OUTER_TINY) and length & (length - 1):
        # A length may not be known when the kernel is compiled.
        lengths = (size for node in nodes for size in node.get_ranges()[1])
        is_symbolic = any(getattr(size, "free_symbols", ()) for size in lengths)
        most = 0 if is_symbolic else _OTHER_MOST
    else:
        most = _INNER_MOST if direction == _INNER else _OTHER_MOST
    return PERSISTENT if length <= most else REDUCTION


def _hint_of_kernel(nodes: Sequence[Any], work: int, hint: Hint) -> str:
    """The direction of all reductions of a kernel (inner or outer), by Inductor's own rules."""
    hints = {_direction(node) for node in nodes if node.is_reduction()}
    if len(hints) != 1:
        return "DEFAULT"
    (only,) = hints
    if only == _INNER:
        whole = [n for n in nodes if not n.is_reduction() and hint(n.group[1][0]) == work]
        if any(_is_strided(node) for node in whole):
            return "DEFAULT"
    return only


def _direction(node: Any) -> str:
    deps = [*node.read_writes.reads, *node.read_writes.writes]
    if all(dep.is_contiguous() for dep in deps):
        return _INNER
    return str(node.node.data.reduction_hint.name)


def _is_strided(node: Any) -> bool:
    deps = [*node.read_writes.reads, *node.read_writes.writes]
    return any(
        not (dep.is_contiguous() or is_contiguous(dep)) for dep in deps if hasattr(dep, "size")
    )


# Two reductions of the same data in different orders, as in the gradients of a layer norm.


def _in_two_orders(node: Any, graph: Any, sm_count: int) -> NodeKernels:
    """One kernel that reduces rows and sums blocks of rows; then torch's sum over the blocks."""
    hint = hint_of(graph)
    rows, width = (hint(n) for n in node.node1.group[1])
    by_columns = [n for n in node.node2.get_nodes() if n.is_reduction()]
    after = [n for n in node.node2.get_nodes() if not n.is_reduction()]
    rows_per_split = rows // (sm_count * _SPLITS_PER_SM)
    power_of_two = 1 << max(rows_per_split.bit_length() - 1, 0)
    part = min(max(power_of_two, _FEWEST_ROWS), _MOST_ROWS)
    parts = -(-rows // part)
    members = [*node.node1.get_nodes(), *by_columns]
    op, read, written = _kernel(members, rows, width, graph, PERSISTENT)
    partial = TensorSpec((parts, width), "float32")
    summed = len(by_columns) * partial.nbytes
    nbytes = integer(op, "write_bytes") + summed
    details = dict(op.attrs) | {"write_bytes": nbytes, "mixed": len(by_columns), "inner": True}
    parts_of = [BufferView(f"{member.get_name()} in parts") for member in by_columns]
    first = Op(op.name, op.inputs, (*op.outputs, *[partial] * len(by_columns)), (*details.items(),))
    planned, replaced = [PlannedOp(first, read, (*written, *parts_of))], []
    for member, source in zip(by_columns, parts_of, strict=True):
        final = member
        if getattr(member.node, "_split_size", None):
            final = member.get_outputs()[0].users[0].node
            replaced.append(str(final.get_name()))
        name = final.get_outputs()[0].get_name()
        dtype = spec_of(graph.try_get_buffer(name), hint).dtype
        planned += _sum_of_parts(partial, source, width, dtype, BufferView(name))
    if after:
        points, reduction = after[0].group[1]
        planned.append(_kernel(after, points, reduction, graph))
    return NodeKernels(tuple(planned), tuple(replaced))


def _sum_of_parts(
    partial: TensorSpec, source: BufferView, width: int, dtype: str, result: BufferView
) -> Iterator[PlannedOp]:
    total = TensorSpec((width,), "float32")
    is_cast = dtype != "float32"
    wide = BufferView(f"{result.buffer} in float32") if is_cast else result
    op = Op("aten.sum.dim_IntList", (partial,), (total,), (("dim", (0,)),))
    yield PlannedOp(op, (source,), (wide,))
    if is_cast:
        cast = Op("aten._to_copy", (total,), (TensorSpec((width,), dtype),))
        yield PlannedOp(cast, (wide,), (result,))


# Templates, which Inductor's search may choose instead of a library.


def _template_kernel(node: Any, graph: Any) -> PlannedOp:
    hint = hint_of(graph)
    template = node.get_template_node()
    members = node.get_nodes()
    buffers = _matrices_first(
        [(spec_of(buffer, hint), operand_of(buffer, hint)) for buffer in template.inputs]
    )
    inputs = [spec for spec, _ in buffers]
    fused = [member for member in members if member.node is not template]
    reads, writes = by_buffer(accesses_of(fused, graph, hint))
    known = {buffer.get_name() for buffer in (*template.inputs, template)}
    more = {name: use.spec for name, use in reads.items() if name not in known}
    written = {name: use.spec for name, use in writes.items()}
    written = written or {template.get_name(): spec_of(template, hint)}
    points = math.prod(hint(size) for size in template.get_size())
    attrs: Attributes = (
        ("points", points),
        ("reduction", inputs[0].shape[-1] if inputs and inputs[0].shape else 1),
        ("read_bytes", sum(t.touched_bytes for t in (*inputs, *more.values()))),
        ("write_bytes", sum(t.touched_bytes for t in written.values())),
        ("fused", fused_names(members)),
    )
    return PlannedOp(
        Op(TEMPLATE, (*inputs, *more.values()), tuple(written.values()), attrs),
        (*(operand for _, operand in buffers), *map(BufferView, more)),
        tuple(map(BufferView, written)),
    )


def _matrices_first(
    inputs: list[tuple[TensorSpec, BufferView]],
) -> list[tuple[TensorSpec, BufferView]]:
    """The inputs with the two matrices that are multiplied first; an added one may stand before."""
    for first in range(len(inputs) - 1):
        (a, _), (b, _) = inputs[first : first + 2]
        if min(len(a.shape), len(b.shape)) > 1 and a.shape[-1] == b.shape[-2]:
            return [*inputs[first : first + 2], *inputs[:first], *inputs[first + 2 :]]
    return inputs


def hint_of(graph: Any) -> Hint:
    """A function that gives the number behind a size, also where it is a symbol."""
    sizes = graph.sizevars
    ask = getattr(sizes, "optimization_hint", None) or sizes.size_hint

    def number(size: Any) -> int:
        try:
            return int(size)
        except TypeError:
            return int(ask(size))

    return number


# The buffers that the kernel of a scheduled node reads and writes, and how it reaches them.


_INDIRECT = re.compile(r"indirect|tmp")
_ATOMIC = "atomic_add"
WARP = 32
"""Threads that run together."""
FEW_PLACES = 1024
"""Up to this many addresses, atomic additions of the whole GPU wait for each other."""
_REPEATING = "ModularIndexing"


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
    accesses = []
    for node in nodes:
        reads_and_writes = ((node.read_writes.reads, False), (node.read_writes.writes, True))
        for deps, written in reads_and_writes:
            for dep in deps:
                if dep.name in inside or not hasattr(dep, "size"):
                    continue
                # What a call changed in place has the name of the call from then on.
                name = graph.scheduler.mutation_real_name.get(dep.name, dep.name)
                buffer = graph.try_get_buffer(name)
                spec = None if buffer is None else spec_of(buffer, hint)
                if spec is not None and spec.dtype in DTYPE_BYTES:
                    access = _access(dep, spec, written, node, hint)
                    accesses.append(access._replace(stage=stages[node.get_name()]))
    return accesses


def extent(node: Any, hint: Hint) -> int:
    """How often a node's body runs: its points times the length of its reduction."""
    return math.prod(hint(size) for ranges in node.get_ranges() for size in ranges)


def _access(dep: Any, spec: TensorSpec, written: bool, node: Any, hint: Hint) -> Access:
    free = {name_of(symbol) for symbol in dep.index.free_symbols}
    indirect = any(_INDIRECT.search(symbol) for symbol in free)
    reduces, elements = node.is_reduction(), 1
    for variable, size in zip(dep.var_names, dep.size, strict=True):
        if name_of(variable) in free:
            elements *= hint(size)
    if indirect:  # indices that are read depend on all loops
        points = math.prod(hint(size) for size in node.get_ranges()[0])
        elements = points if reduces and written else extent(node, hint)
    strided = not indirect and not is_contiguous(dep, any_variable=reduces)
    atomic = getattr(dep, "mode", None) == _ATOMIC
    collides = atomic and indirect and not _moves_with_last(dep)
    return Access(dep.name, spec, elements, written, strided, indirect, atomic, collides)


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
    item = DTYPE_BYTES[spec.dtype]
    most = spec.touched_bytes // item
    elements = min(sum(access.elements for access in group), most)
    strided = min(sum(access.elements for access in group if access.strided), most)
    stages = {access.stage for access in group}
    whole = max(access.elements for access in group)
    # Atomic additions wait for others where the whole GPU adds to a few addresses.
    adds = sum(access.elements for access in group if access.collides)
    is_crowded = adds >= WARP * most and most <= FEW_PLACES
    return BufferUse(
        spec=spec,
        nbytes=item * elements,
        strided_bytes=item * strided,
        again_bytes=item * min(whole, most) * (len(stages) - 1),
        indirect=any(access.indirect for access in group),
        atomic_bytes=item * sum(access.elements for access in group if access.atomic),
        colliding_bytes=item * adds if is_crowded else 0,
    )


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
            users = {str(user.node.get_name()) for user in output.users}
            if users <= members and not output.get_aliases() and not output.get_mutations():
                inside.add(output.get_name())
    return inside


def _stages(nodes: Sequence[Any]) -> dict[str, int]:
    """For each node, how many reductions of this kernel its values depend on, one after another."""
    of_buffers: dict[str, int] = {}
    stages: dict[str, int] = {}
    for node in nodes:
        stage = max((of_buffers.get(dep.name, 0) for dep in node.read_writes.reads), default=0)
        stages[node.get_name()] = stage
        for output in node.get_outputs():
            of_buffers[output.get_name()] = stage + bool(node.is_reduction())
    return stages
