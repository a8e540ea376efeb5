"""The ops that HLO instructions run as: library calls, fused kernels, collectives, copies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wavecast.frameworks.jax import libraries
from wavecast.frameworks.jax.collectives import collective, is_collective
from wavecast.frameworks.jax.fusions import FREE, fusion_op
from wavecast.frameworks.jax.hlo import DTYPES, NO_DATA, Computation, HloModule, Instruction, Shape
from wavecast.traces.step import Op, Scalar, TensorSpec

VIEWS = frozenset(
    "bitcast tuple get-tuple-element parameter constant after-all opt-barrier partition-id "
    "replica-id add-dependency domain get-dimension-size".split()
)
"""Instructions that run no kernel."""
_UNREAD = frozenset("infeed outfeed send recv send-done recv-done custom-call".split())
_KERNELS = ("__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu", "mosaic_gpu_v2")
_KERNEL_NAME = re.compile(r', name = "([^"]*)"')
_CALLBACK = re.compile(r"python_\w*callback")
_LIBRARY_COPIES = ("dynamic_slice_fusion", "address_computation", "dynamic_address_computation")


@dataclass(frozen=True)
class PlannedCall:
    """An op, and which operands of its instruction it reads; None is the result itself."""

    op: Op
    reads: tuple[int | None, ...]
    writes: int
    """How many of the instruction's results it writes, the first ones."""


def planned_call(
    module: HloModule, instruction: Instruction, inputs: Sequence[Shape], padded: int = 0
) -> PlannedCall | None:
    """The op of an instruction; None if it runs no kernel.

    `padded` says how many of its operands were only padded for it.
    """
    if instruction.opcode.removesuffix("-start") in VIEWS or instruction.opcode.endswith("-done"):
        return None
    body = module.called(instruction)
    unknown = _unknown_type(instruction, inputs, body)
    if unknown is not None:
        return _unread(instruction, inputs, f"xla.unknown_type.{unknown}")
    return _of_known_types(module, instruction, inputs, padded, body)


def _of_known_types(
    module: HloModule,
    instruction: Instruction,
    inputs: Sequence[Shape],
    padded: int,
    body: Computation | None,
) -> PlannedCall | None:
    opcode = instruction.opcode.removesuffix("-start")
    if is_collective(instruction):
        return _all(collective(module, instruction, inputs), inputs)
    if opcode == "custom-call":
        return _custom_call(instruction, inputs, padded)
    if opcode in _UNREAD:
        return _unread(instruction, inputs, f"xla.{opcode.replace('-', '_')}")
    if opcode in _SINGLE:
        return _SINGLE[opcode](instruction, inputs)
    if opcode in ("copy", "copy-start") and _crosses(instruction, inputs):
        return _all(Op("aten._to_copy", _specs(inputs[:1]), _specs(instruction.shapes[:1])), inputs)
    if body is not None and is_padding(body):
        return None
    if body is not None and instruction.attribute("kind") == "kCustom":
        inner = libraries.nested_matmul(body, instruction)
        if inner is not None:
            return _nested(inner, instruction, inputs)
    return _all(fusion_op(module, instruction, tuple(inputs)), inputs)


def _unknown_type(
    instruction: Instruction, inputs: Sequence[Shape], body: Computation | None
) -> str | None:
    """An element type that we have no name for, of what an instruction reads, has or writes."""
    inner = () if body is None else (shape for one in body.instructions for shape in one.shapes)
    elements = (shape.element for shape in (*instruction.shapes, *inputs, *inner))
    return next((e for e in elements if e not in DTYPES and e not in NO_DATA), None)


def is_padding(body: Computation) -> bool:
    """Whether a fusion only pads a tensor, as XLA does for cuBLAS alone.

    On a GPU, XLA takes a Triton kernel there, which needs no padding.
    """
    return body.root.opcode == "pad" and all(one.opcode in FREE for one in body.instructions)


def _specs(shapes: Sequence[Shape]) -> tuple[TensorSpec, ...]:
    return tuple(spec for shape in shapes if (spec := shape.spec) is not None)


def _all(op: Op, inputs: Sequence[Shape]) -> PlannedCall:
    known = tuple(position for position, shape in enumerate(inputs) if shape.spec is not None)
    return PlannedCall(op, known[: len(op.inputs)], len(op.outputs))


def _nested(op: Op, instruction: Instruction, inputs: Sequence[Shape]) -> PlannedCall:
    """A matmul in Triton: its matrices are the first operands, and what is fused is not counted."""
    reads = (0, min(1, len(inputs) - 1))
    return PlannedCall(op, reads, 1)


def _custom_call(instruction: Instruction, inputs: Sequence[Shape], padded: int) -> PlannedCall:
    target = instruction.target
    made: libraries.LibraryCall | None = None
    if target.startswith(libraries.MATMULS) and len(inputs) > 1:
        made = libraries.matmul(instruction, inputs, padded)
    elif target in libraries.CONVOLUTIONS:
        made = libraries.convolution(instruction, inputs)
    elif target.startswith(libraries.ATTENTION) and all(len(s.dims) == 4 for s in inputs[:3]):
        made = libraries.attention(instruction, inputs)
    if made is not None:
        return PlannedCall(made.op, made.reads, len(made.op.outputs))
    if "TopK" in target or "Sort" in target:
        return _sort(instruction, inputs)
    return _unread(instruction, inputs, f"xla.{_unread_name(instruction)}")


def _unread_name(instruction: Instruction) -> str:
    """The name under which a custom call that nobody can read is unpredicted."""
    target = instruction.target
    if target in _KERNELS:
        name = _KERNEL_NAME.search(instruction.attributes)
        return f"pallas.{_word(name[1])}" if name else "pallas"
    if _CALLBACK.search(target):
        return "host_callback"
    return f"custom_call.{_word(target)}"


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_") or "unnamed"


def _unread(instruction: Instruction, inputs: Sequence[Shape], name: str) -> PlannedCall:
    """An op that has no formula, so that a prediction names it as unpredicted."""
    return _all(Op(name, _specs(inputs), _specs(instruction.shapes)), inputs)


def _sort(instruction: Instruction, inputs: Sequence[Shape]) -> PlannedCall:
    found = re.search(r"\d+", instruction.attribute("dimensions"))
    dim = int(found[0]) if found else len(inputs[0].dims) - 1
    attrs: tuple[tuple[str, Scalar], ...] = (("dim", dim),)
    op = Op("aten.sort", _specs(inputs[:1]), _specs(instruction.shapes[:2]), attrs)
    return PlannedCall(op, (0,), len(op.outputs))


def _fourier(instruction: Instruction, inputs: Sequence[Shape]) -> PlannedCall:
    return _all(libraries.fourier(instruction, inputs), inputs)


_SINGLE = {"topk": _sort, "fft": _fourier}
"""Instructions that run as one op of a library."""


def _crosses(instruction: Instruction, inputs: Sequence[Shape]) -> bool:
    """Whether a copy goes from the GPU to the host, or back."""
    return bool(inputs) and inputs[0].host != instruction.shape.host
