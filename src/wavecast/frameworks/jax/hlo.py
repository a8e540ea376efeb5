"""The scheduled HLO of a compiled module, read from its text.

Only what a step's trace needs is kept: computations, instructions with shapes and operands, and a
few attributes. Anything else stays as text in `Instruction.attributes`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.traces.step import DTYPE_BYTES, TensorSpec

DTYPES = {
    **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"},
    **{"c64": "complex64", "c128": "complex128", "s4": "int8", "u4": "uint8"},
    **{"f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0fnu": "float8_e8m0fnu"},
    **{"f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz"},
    **dict.fromkeys(("f8e4m3", "f8e3m4", "f8e4m3b11fnuz", "f4e2m1fn"), "float8_e4m3fn"),
    **{"s2": "int8", "u2": "uint8", "s1": "int8", "u1": "uint8"},
}
"""HLO's element types by our names. Fewer than eight bits are counted as a byte."""
NO_DATA = frozenset(("token", "opaque"))
"""Element types of values that hold nothing that is computed with."""
HOST_SPACE = "S(5)"
"""The memory space of the host, in a layout."""
FREE_OF_TRAFFIC = frozenset("parameter constant tuple get-tuple-element bitcast after-all".split())
"""Instructions that move no data."""
LAUNCH_BYTES = 4 << 20
"""What a GPU of today reads while it launches a kernel."""
PATH = "/"
"""Paths of operations have parts; the names of arguments have none."""
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)")
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)")
_FILE = re.compile(r'^(\d+) "(.*)"')


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of an array: its dimensions, and their order in memory."""

    element: str
    """HLO's name of the element type: "bf16"."""
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    host: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements; 0 for tokens, opaque values and types that we do not know."""
        return self.numel * DTYPE_BYTES.get(DTYPES.get(self.element, ""), 0)

    @property
    def spec(self) -> TensorSpec | None:
        """The shape as a tensor; None for a token, and for a type that we do not know."""
        dtype = DTYPES.get(self.element)
        if dtype is None:
            return None
        is_usual = self.order == tuple(reversed(range(len(self.dims))))
        strides = None if is_usual else self.strides
        return TensorSpec(self.dims, dtype, strides, "cpu" if self.host else "cuda")

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions from the fastest to the slowest in memory."""
        return self.minor_to_major or tuple(reversed(range(len(self.dims))))

    @property
    def strides(self) -> tuple[int, ...]:
        """How far apart the neighbours of each dimension lie."""
        steps, step = [0] * len(self.dims), 1
        for dim in self.order:
            steps[dim] = step
            step *= self.dims[dim]
        return tuple(steps)


def specs_of(shapes: Iterable[Shape]) -> tuple[TensorSpec, ...]:
    """The tensors of shapes, without those that have none."""
    return tuple(spec for shape in shapes if (spec := shape.spec) is not None)


@dataclass(frozen=True)
class Instruction:
    """One instruction: what it computes, from what, and where it comes from."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    """The shapes of its result; several for a tuple, whose nesting is left out."""
    operands: tuple[str, ...]
    inside: str
    """The text between the parentheses of its operands."""
    attributes: str
    is_root: bool = False

    @property
    def shape(self) -> Shape:
        """The shape of its (first) result."""
        return self.shapes[0] if self.shapes else Shape("token", ())

    def attribute(self, name: str) -> str:
        """The text of an attribute: `kind=kLoop` gives "kLoop"; empty if it is absent."""
        match = re.search(rf"(?:^|[ ,]){name}=(\{{[^}}]*\}}|[^\s,]+)", self.attributes)
        return match[1] if match else ""

    def numbers(self, name: str) -> tuple[int, ...]:
        """The numbers of an attribute: `dimensions={0,2}` gives (0, 2); empty if it is absent."""
        return tuple(int(n) for n in self.attribute(name).strip("{}").split(",") if n)

    def computation(self, name: str) -> str:
        """The computation that an attribute names: `calls`, `body`, `condition`, `to_apply`."""
        return self.attribute(name).lstrip("%")

    @property
    def target(self) -> str:
        """The target of a custom call; empty for other instructions."""
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @cached_property
    def backend(self) -> Mapping[str, Any]:
        """The backend's configuration, which XLA writes as JSON; empty if it has none."""
        at = self.attributes.find("backend_config={")
        if at < 0:
            return {}
        text = self.attributes[at + len("backend_config=") :]
        try:
            config: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
        except json.JSONDecodeError:
            return {}
        return config

    @property
    def op_name(self) -> str:
        """The path of the JAX operation that it comes from, as in "jit(step)/jvp(net)/add"."""
        match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return match[1].replace("\\'", "'") if match else ""

    @property
    def frame(self) -> int | None:
        """The number of its stack frame in the module's tables."""
        match = re.search(r"stack_frame_id=(\d+)", self.attributes)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they run."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return next(
            (instruction for instruction in self.instructions if instruction.is_root),
            self.instructions[-1],
        )

    @cached_property
    def users(self) -> Mapping[str, tuple[tuple[Instruction, int], ...]]:
        """The instructions that read each one, with the operand's position."""
        users: dict[str, list[tuple[Instruction, int]]] = {}
        for instruction in self.instructions:
            for position, operand in enumerate(instruction.operands):
                users.setdefault(operand, []).append((instruction, position))
        return {name: tuple(uses) for name, uses in users.items()}

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters, in their order."""
        parameters = [
            instruction for instruction in self.instructions if instruction.opcode == "parameter"
        ]
        return tuple(sorted(parameters, key=lambda instruction: int(instruction.inside)))


@dataclass(frozen=True)
class HloModule:
    """A compiled module: its computations, and the tables of source lines."""

    computations: Mapping[str, Computation]
    entry: Computation
    aliases: Mapping[int, int]
    """The parameter whose memory each result takes over, by the position of the result."""
    lines: Mapping[int, str]
    """The source line of each stack frame: "train.py:12"."""
    partitions: int = 1

    def called(self, instruction: Instruction, attribute: str = "calls") -> Computation | None:
        """The computation that an instruction calls; None if it calls none."""
        return self.computations.get(instruction.computation(attribute))

    def traffic_bytes(self, computation: Computation) -> int:
        """The bytes that its instructions read and write, by which computations are compared.

        Loops count as often as they turn, branches by the larger one, and every kernel as if it
        moved a few megabytes more, since it takes microseconds to launch.
        """
        traffic = 0
        for instruction in computation.instructions:
            body = self.called(instruction, "body") or self.called(instruction, "to_apply")
            if instruction.opcode in ("while", "call") and body is not None:
                turns = instruction.backend.get("known_trip_count", {}).get("n", 1)
                traffic += int(turns) * self.traffic_bytes(body)
            elif instruction.opcode not in FREE_OF_TRAFFIC:
                read = (computation.by_name[name] for name in instruction.operands)
                shapes = (shape for moved in (instruction, *read) for shape in moved.shapes)
                traffic += LAUNCH_BYTES + sum(shape.nbytes for shape in shapes)
        return traffic

    def origin(self, instruction: Instruction) -> Instruction:
        """The instruction that says where another comes from.

        XLA leaves out the path of a fusion that it made of several; then it is that of the last
        instruction in it that has one.
        """
        if PATH in instruction.op_name:
            return instruction
        body = self.called(instruction)
        inner = () if body is None else reversed(body.instructions)
        return next((fused for fused in inner if PATH in fused.op_name), instruction)

    def line(self, instruction: Instruction) -> str:
        """The source line of an instruction; empty if unknown."""
        if instruction.frame is not None:
            return self.lines.get(instruction.frame, "")
        file = re.search(r'source_file="([^"]*)" source_line=(\d+)', instruction.attributes)
        return f"{file[1].rpartition('/')[2]}:{file[2]}" if file else ""


def read_hlo(text: str) -> HloModule:
    """The module in the text of scheduled HLO.

    Raises:
        InvalidInput: it is no HLO module, or has not been scheduled.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("HloModule"):
        raise InvalidInput("this is no HLO module; it must begin with HloModule")
    if "is_scheduled=true" not in lines[0]:
        raise InvalidInput("the HLO module is not scheduled; give the one that XLA compiled")
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    name, is_entry, body = "", False, list[Instruction]()
    for line in lines[1:]:
        if begin := _COMPUTATION.match(line):
            is_entry, name, body = bool(begin[1]), begin[2], []
        elif line.startswith("}") and name:
            computations[name] = Computation(name, tuple(body))
            entry = computations[name] if is_entry else entry
            name = ""
        elif name and (instruction := _instruction(line)) is not None:
            body.append(instruction)
    if entry is None:
        raise InvalidInput("the HLO module has no ENTRY computation")
    partitions = re.search(r"num_partitions=(\d+)", lines[0])
    return HloModule(
        computations,
        entry,
        dict(_aliases(lines[0])),
        _source_lines(lines),
        int(partitions[1]) if partitions else 1,
    )


def _instruction(line: str) -> Instruction | None:
    begin = _INSTRUCTION.match(line)
    if begin is None:
        return None
    at = begin.end()
    end = _end_of_shape(line, at)
    shapes = tuple(_shapes(line[at:end]))
    opened = line.find("(", end)
    if opened < 0:
        return None
    opcode = line[end:opened].strip()
    closed = _closing(line, opened)
    inside = line[opened + 1 : closed]
    operands = () if opcode in ("parameter", "constant") else tuple(_OPERAND.findall(inside))
    return Instruction(
        begin[2], opcode, shapes, operands, inside, line[closed + 1 :], bool(begin[1])
    )


def _end_of_shape(line: str, at: int) -> int:
    """Where a shape ends: a tuple at its closing parenthesis, else at the first space."""
    if line[at] == "(":
        return _closing(line, at) + 1
    space = line.find(" ", at)
    return len(line) if space < 0 else space


def _closing(line: str, opened: int) -> int:
    depth = 0
    for at in range(opened, len(line)):
        depth += (line[at] == "(") - (line[at] == ")")
        if depth == 0:
            return at
    return len(line)


def _shapes(text: str) -> Iterator[Shape]:
    for element, dims, layout in _SHAPE.findall(text):
        sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
        order, _, space = layout.partition(":")
        minor = tuple(int(dim) for dim in order.split(",") if dim.isdigit())
        yield Shape(element, sizes, minor, HOST_SPACE in space)


def _aliases(header: str) -> Iterator[tuple[int, int]]:
    """Pairs of result and parameter that share memory: `{3}: (3, {}, may-alias)`."""
    for result, parameter in re.findall(r"\{(\d*)\}: \((\d+), \{[\d, ]*\}, \w+-alias\)", header):
        yield int(result or 0), int(parameter)


def _source_lines(lines: list[str]) -> Mapping[int, str]:
    """The line of source of each stack frame, from the tables before the computations."""
    files: dict[str, str] = {}
    locations: dict[str, str] = {}
    frames: dict[int, str] = {}
    table = ""
    for line in lines[1:]:
        if line.startswith(("%", "ENTRY")):
            break
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = line
        elif table == "FileNames" and (match := _FILE.match(line)):
            files[match[1]] = match[2].rpartition("/")[2]
        elif table == "FileLocations" and (match := _LOCATION.match(line)):
            locations[match[1]] = f"{files.get(match[2], '')}:{match[3]}"
        elif table == "StackFrames" and (match := _FRAME.match(line)):
            frames[int(match[1])] = locations.get(match[2], "")
    return frames
