"""Collectives in HLO, as ops: what is exchanged, among how many ranks, and how far apart."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from wavecast.frameworks.jax.hlo import HloModule, Instruction, Shape
from wavecast.frameworks.jax.origins import argument_of
from wavecast.traces.step import Op, Scalar, TensorSpec

NAMES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "send",
    "collective-broadcast": "broadcast",
}
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_TILED = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'(?:=(\d+))?(?::\((\d+)\)(\d+))?")
_TILES = re.compile(r"devices=\[([\d,]+)\]")
_PAIR = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction exchanges data with other devices, or begins to."""
    return instruction.opcode.removesuffix("-start") in NAMES


def is_waited_for(instruction: Instruction) -> bool:
    """Whether XLA waits for a collective where it begins, instead of going on beside it."""
    config = instruction.backend.get("collective_backend_config", {})
    return not instruction.opcode.endswith("-start") or bool(config.get("is_sync"))


def collective(module: HloModule, instruction: Instruction, inputs: Sequence[Shape]) -> Op:
    """The op of a collective, with the number of ranks of a group and the stride between them."""
    group = first_group(instruction.attributes, module.partitions)
    stride = abs(group[1] - group[0]) if len(group) > 1 else 1
    attrs: tuple[tuple[str, Scalar], ...] = (("ranks", len(group)), ("stride", max(stride, 1)))
    outputs = _specs(instruction.shapes)
    if instruction.opcode.endswith("-start") and len(outputs) > len(inputs):
        outputs = outputs[len(inputs) :] if len(outputs) >= 2 * len(inputs) else outputs
    name = NAMES[instruction.opcode.removesuffix("-start")]
    return Op(f"nccl.{name}", _specs(inputs), outputs[: len(inputs)], attrs)


def _specs(shapes: Sequence[Shape]) -> tuple[TensorSpec, ...]:
    return tuple(spec for shape in shapes if (spec := shape.spec) is not None)


def first_group(text: str, partitions: int) -> list[int]:
    """The first group of ranks that an instruction names; all of them if it names none.

    XLA writes `replica_groups={{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)` (an array of all ranks, turned
    and cut into groups), or `mesh['x'=2,'y'=4] {'y'}` (the axes of a mesh along which a group
    lies), and `source_target_pairs={{0,1},...}` for what goes from one rank to another.
    """
    if found := _PAIR.search(text):
        return [int(found[1]), int(found[2])]
    if found := _LISTED.search(text):
        return [int(rank) for rank in found[1].split(",")]
    if found := _TILED.search(text):
        ranks = _ranks(_integers(found[3]))
        if found[4]:
            ranks = ranks.transpose(_integers(found[4]))
        return [int(rank) for rank in ranks.reshape(int(found[1]), int(found[2]))[0]]
    if found := _MESH.search(text):
        return _along(found[1], found[2])
    return list(range(partitions))


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _ranks(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.arange(int(np.prod(sizes))).reshape(sizes)


def _along(mesh: str, axes: str) -> list[int]:
    """The ranks of a mesh that lie along axes, or along parts of them, from the first rank on.

    `'x':(2)4` is the part of axis x with 4 places whose neighbours are as far apart as its size,
    the 2 parts before it, leaves.
    """
    sizes = {name: int(size) for name, size, *_ in _AXIS.findall(mesh)}
    strides = {}
    step = 1
    for name in reversed(sizes):
        strides[name] = step
        step *= sizes[name]
    group = [0]
    for name, _, before, part in _AXIS.findall(axes):
        count = int(part) if part else sizes[name]
        inner = sizes[name] // (int(before) * count) if part else 1
        places = [number * inner * strides[name] for number in range(count)]
        group = [rank + place for rank in group for place in places]
    return group


def argument_ranks(module: HloModule) -> tuple[tuple[str, Scalar], ...]:
    """Among how many ranks the step's samples are spread, and each of its weights at most.

    An argument whose shape is also the shape of a result is taken as weights or states. Of any
    other argument the first dimension counts samples. Empty if there is one rank, or if the
    arguments do not show it.
    """
    entry = module.entry
    names = [argument_of(one.op_name).split(".") for one in entry.parameters]
    depth = 1 if len({name[0] for name in names}) > 1 else 2
    returned = Counter(shape.dims for shape in entry.root.shapes)
    arguments: dict[str, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for name, one in zip(names, entry.parameters, strict=True):
        divisions = _divisions(one)
        if divisions is None:
            return ()
        kept = returned[one.shape.dims] > 0
        returned[one.shape.dims] -= kept
        arguments[".".join(name[:depth])].append((kept, divisions))
    batch, state = [], [1]
    for leaves in arguments.values():
        is_state = 2 * sum(kept for kept, _ in leaves) >= len(leaves)
        if is_state:
            state += [prod(divisions) for _, divisions in leaves]
        else:
            batch += [divisions for _, divisions in leaves if divisions]
    if module.partitions == 1 or not batch or any(d[0] == 1 < prod(d) for d in batch):
        return ()
    return ("sample_ranks", max(d[0] for d in batch)), ("weight_ranks", max(state))


def _divisions(parameter: Instruction) -> tuple[int, ...] | None:
    """Into how many parts each dimension of an argument is cut. None if that was not read.

    XLA writes `{replicated}`, or `{devices=[4,1,2]<=[8] last_tile_dim_replicate}`, whose last
    number, beyond the dimensions, counts equal copies.
    """
    text, rank = parameter.attribute("sharding"), len(parameter.shape.dims)
    if found := _TILES.search(text):
        return tuple(_integers(found[1])[:rank])
    return (1,) * rank if not text or "replicated" in text or "maximal" in text else None
