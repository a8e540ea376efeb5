"""What the kernel of an HLO fusion does: its loop, its memory traffic and its arithmetic.

The description is that of Inductor's fused kernels (`wavecast.ops.fused`): points, terms of a sum,
bytes by how they are reached, and operations for each point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from wavecast.frameworks.jax.hlo import Computation, HloModule, Instruction, Shape, specs_of
from wavecast.ops.fused import XLA_LOOP, XLA_REDUCTION, XLA_ROWS, XLA_SCATTER, XLA_TRANSPOSE
from wavecast.traces.step import Op, Scalar

FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast bitcast-convert convert copy broadcast "
    "reshape transpose slice dynamic-slice dynamic-update-slice concatenate pad iota gather "
    "reverse fusion call".split()
)
"""Instructions that compute nothing for each element."""
_SPECIAL = frozenset(
    "exponential exponential-minus-one log log-plus-one logistic tanh sine cosine tan power divide "
    "remainder sqrt rsqrt cbrt erf atan2 expm1 log1p".split()
)
_SPECIAL_OPERATIONS = 8
_SORT_OPERATIONS = 14
"""Operations of one tensor's element in one exchange of a sort, as seen on our H200."""
_SHORT_NAMES = {"sine": "sin", "cosine": "cos"}
_TRANSPARENT = ("bitcast", "convert", "copy", "reshape", "bitcast-convert", "negate")
"""Instructions with one operand through which an access is followed."""
_SLICES = ("slice", "dynamic-slice", "gather")
_UPDATES = ("dynamic-update-slice", "scatter")
_IN_REGISTERS = "__triton"


@dataclass
class _Sums:
    """What the instructions of a fusion add up to."""

    operations: float = 0.0
    loads: float = 0.0
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Access:
    nbytes: int
    strided: int
    indirect: int


def fusion_op(module: HloModule, fusion: Instruction, inputs: tuple[Shape, ...]) -> Op:
    """The op of a fusion, or of an instruction that runs as a kernel of its own."""
    body = module.called(fusion) or _alone(fusion, inputs)

    def terms(hero: Instruction) -> int:
        return _reduced(hero, body).numel if hero.opcode == "reduce" else 0

    heroes = [hero for hero in body.instructions if hero.opcode in ("reduce", "reduce-window")]
    longest = max(heroes, key=terms, default=None)
    kind = fusion.attribute("kind")
    backend = fusion.backend.get("fusion_backend_config", {}).get("kind", "")
    name = _name(kind, str(backend), body, longest)
    outputs = tuple(_written(body))
    points = max((access.points for access in outputs), default=1)
    reduction, inner = 1, False
    if longest is not None and name in (XLA_REDUCTION, XLA_ROWS):
        whole = _reduced(longest, body)
        reduction = max(whole.numel // max(longest.shape.numel, 1), 1)
        points = max(max(points, whole.numel) // reduction, 1)
        inner = _is_inner(longest, whole)
    shares = _demands(body)
    reads = [
        _read(body, instruction, name, shares[instruction.name]) for instruction in body.parameters
    ]
    sums = _summed(body, shares)
    work = max(points * reduction, 1)
    attrs: dict[str, Scalar] = {
        "points": points,
        "reduction": reduction,
        "read_bytes": sum(access.nbytes for access in reads)
        + sum(output.read_bytes for output in outputs),
        "write_bytes": sum(output.nbytes for output in outputs),
        "strided_bytes": sum(access.strided for access in reads),
        "indirect_bytes": sum(access.indirect for access in reads)
        + sum(output.indirect for output in outputs),
        "atomic_bytes": sum(output.atomic for output in outputs),
        "loads": round(max(sums.loads / work, 0.0), 3),
        "arithmetic": round(sums.operations / work, 3),
        "fused": ",".join(sorted(sums.names)),
    }
    if reduction > 1:
        attrs["inner"] = inner
    return Op(name, specs_of(inputs), specs_of(fusion.shapes), tuple(attrs.items()))


def _alone(instruction: Instruction, inputs: tuple[Shape, ...]) -> Computation:
    """A computation of one instruction, for those that XLA did not fuse."""
    parameters = [
        Instruction(operand, "parameter", (shape,), (), str(position), "")
        for position, (operand, shape) in enumerate(zip(instruction.operands, inputs, strict=False))
    ]
    unique = {parameter.name: parameter for parameter in parameters}
    root = Instruction(
        f"{instruction.name}.alone",
        instruction.opcode,
        instruction.shapes,
        instruction.operands,
        instruction.inside,
        instruction.attributes,
        True,
    )
    return Computation(instruction.name, (*unique.values(), root))


def _name(kind: str, backend: str, body: Computation, longest: Instruction | None) -> str:
    opcodes = {instruction.opcode for instruction in body.instructions}
    if "scatter" in opcodes or "select-and-scatter" in opcodes:
        return XLA_SCATTER
    is_sum = longest is not None and longest.opcode == "reduce"
    if backend == _IN_REGISTERS:
        return XLA_ROWS if is_sum else XLA_LOOP
    if kind == "kInput" and is_sum:
        return XLA_REDUCTION
    if kind == "" and body.root.opcode == "reduce":
        return XLA_REDUCTION
    if kind == "kInput" and "transpose" in opcodes:
        return XLA_TRANSPOSE
    if body.root.opcode in ("copy", "transpose") and _turns(body.root, body):
        return XLA_TRANSPOSE
    return XLA_LOOP


def _turns(instruction: Instruction, body: Computation) -> bool:
    """Whether an instruction writes elements in another order than it reads them."""
    source = body.by_name.get(instruction.operands[0]) if instruction.operands else None
    if source is None:
        return False
    if instruction.opcode == "transpose":
        return True
    return source.shape.minor_to_major != instruction.shape.minor_to_major


def _reduced(reduction: Instruction, body: Computation) -> Shape:
    source = body.by_name.get(reduction.operands[0]) if reduction.operands else None
    return reduction.shape if source is None else source.shape


def _is_inner(reduction: Instruction, whole: Shape) -> bool:
    """Whether the terms of a sum are neighbours in memory."""
    longer = [dim for dim in whole.order if whole.dims[dim] > 1]
    return bool(longer) and longer[0] in reduction.numbers("dimensions")


@dataclass(frozen=True)
class _Output:
    nbytes: int
    points: int
    read_bytes: int = 0
    indirect: int = 0
    atomic: int = 0


def _written(body: Computation) -> Iterator[_Output]:
    """What each result of a fusion writes; an update in place writes only what it updates."""
    root = body.root
    results = [body.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    for result in results:
        source = behind(result, body)
        if source.opcode == "dynamic-update-slice":
            update = body.by_name[source.operands[1]].shape
            yield _Output(update.nbytes, update.numel)
        elif source.opcode in ("scatter", "select-and-scatter"):
            update = body.by_name[source.operands[-1 if source.opcode == "scatter" else 1]].shape
            item = source.shape.nbytes // max(source.shape.numel, 1)
            added = update.numel * item
            yield _Output(added, update.numel, added, added, update.numel * 4)
        else:
            for shape in result.shapes:
                yield _Output(shape.nbytes, shape.numel)


def behind(instruction: Instruction, body: Computation) -> Instruction:
    """The instruction whose result another one only copies or sees in another shape."""
    while instruction.opcode in ("bitcast", "copy", "reshape") and instruction.operands:
        instruction = body.by_name[instruction.operands[0]]
    return instruction


def _demands(body: Computation) -> dict[str, float]:
    """The share of each instruction's elements that the kernel computes or reads.

    A slice needs only part of its operand, and an update in place does not read what it updates.
    """
    shares: dict[str, float] = {body.root.name: 1.0}
    for instruction in reversed(body.instructions):
        share = min(shares.get(instruction.name, 0.0), 1.0)
        shares[instruction.name] = share
        for position, operand in enumerate(instruction.operands):
            if operand not in body.by_name:
                continue
            needed = _needed(instruction, position, body.by_name[operand].shape.numel, share)
            if instruction.opcode in _SLICES and position == 0:
                shares[operand] = shares.get(operand, 0.0) + needed
            else:
                shares[operand] = max(shares.get(operand, 0.0), needed)
    return shares


def _needed(instruction: Instruction, position: int, numel: int, share: float) -> float:
    """The share of an operand that a share of an instruction's result needs."""
    if instruction.opcode in _UPDATES and position == 0:
        return 0.0
    if instruction.opcode in _SLICES and position == 0:
        return share * instruction.shape.numel / max(numel, 1)
    return 1.0 if instruction.opcode in _UPDATES else share


def _read(body: Computation, parameter: Instruction, name: str, share: float) -> _Access:
    """How a parameter is read: whole or in part, in order, in strides or at looked-up places."""
    nbytes = int(parameter.shape.nbytes * share)
    uses = list(_uses(body, parameter))
    strided = name == XLA_LOOP and any(user.opcode == "transpose" for user, _ in uses)
    looked_up = any(user.opcode == "gather" and position == 0 for user, position in uses)
    return _Access(nbytes, nbytes if strided else 0, nbytes if looked_up else 0)


def _uses(body: Computation, instruction: Instruction) -> Iterator[tuple[Instruction, int]]:
    for user, position in body.users.get(instruction.name, ()):
        if user.opcode in _TRANSPARENT and user.shape.numel == instruction.shape.numel:
            behind = list(_uses(body, user))
            yield from behind or [(user, position)]
        else:
            yield user, position


def _summed(body: Computation, shares: dict[str, float]) -> _Sums:
    sums = _Sums()
    for instruction in body.instructions:
        count = instruction.shape.numel * shares[instruction.name]
        if instruction.opcode == "parameter":
            demands = [
                user.shape.numel * shares[user.name]
                for user, position in body.users.get(instruction.name, ())
                if user.opcode not in _UPDATES
            ]
            sums.loads += max(demands, default=count)
            continue
        if instruction.opcode in FREE:
            continue
        sums.names.add(_SHORT_NAMES.get(instruction.opcode, instruction.opcode))
        weight = _SPECIAL_OPERATIONS if instruction.opcode in _SPECIAL else 1
        if instruction.opcode == "reduce":
            count = _reduced(instruction, body).numel * shares[instruction.name]
        elif instruction.opcode in ("reduce-window", "select-and-scatter"):
            count *= _window(instruction)
        elif instruction.opcode == "dot":
            left = body.by_name[instruction.operands[0]].shape
            contracted = instruction.numbers("lhs_contracting_dims")
            count *= 2 * math.prod(left.dims[dim] for dim in contracted)
        elif instruction.opcode == "sort":
            count *= _SORT_OPERATIONS * len(instruction.shapes) * _exchanges(instruction)
        sums.operations += weight * count
    return sums


def _window(instruction: Instruction) -> int:
    for part in instruction.attribute("window").strip("{}").split():
        if part.startswith("size="):
            return math.prod(int(size) for size in part[len("size=") :].split("x"))
    return 1


def _exchanges(sort: Instruction) -> int:
    """How often a sort may exchange each element: XLA's is bitonic (Batcher 1968)."""
    dim = int(sort.attribute("dimensions").strip("{}") or 0)
    turns = math.ceil(math.log2(max(sort.shape.dims[dim], 2)))
    return turns * (turns + 1) // 2
