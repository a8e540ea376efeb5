"""Kernels of Inductor's scheduled nodes as ops, from stand-ins with a node's attributes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import sympy

from wavecast import ops
from wavecast.frameworks.pytorch.compiled.fused_ops import is_contiguous, kernels_of, list_kernel
from wavecast.hardware.devices import device
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op

D0, D1 = sympy.symbols("d0 d1")


def fused_op(node: Any, graph: Any) -> Op:
    """The first kernel of a node, as an op."""
    return kernels_of(node, graph, sm_count=1).planned[0].op


class Dep:
    """An access to a buffer, as `MemoryDep`."""

    def __init__(self, name: str, index: Any, size: tuple[int, ...], mode: str | None = None):
        self.name, self.index, self.size, self.mode = name, sympy.sympify(index), size, mode
        self.var_names = (D0, D1)[: len(size)]

    def is_contiguous(self) -> bool:
        return self.index.is_Integer or self.index in self.var_names


class Buffer:
    """A buffer, as Inductor's graphs have them."""

    def __init__(self, size: tuple[int, ...], dtype: str = "torch.float32"):
        self.size, self.dtype = size, dtype

    def get_size(self) -> tuple[int, ...]:
        return self.size

    def get_stride(self) -> tuple[int, ...]:
        strides = [1]
        for n in self.size[:0:-1]:
            strides.insert(0, strides[0] * n)
        return tuple(strides[: len(self.size)])

    def get_dtype(self) -> str:
        return self.dtype

    def get_device(self) -> Any:
        return SimpleNamespace(type="cuda")


class Node:
    """A scheduled node, as `SchedulerNode`."""

    def __init__(
        self,
        name: str,
        reads: list[Dep],
        writes: list[Dep],
        ranges: tuple[tuple[int, ...], tuple[int, ...]],
        users: list[str] = ["OUTPUT"],  # noqa: B006
        counts: dict[str, int] | None = None,
        hint: str | None = None,
    ):
        self.name = name
        self.read_writes = SimpleNamespace(reads=reads, writes=writes)
        self.ranges, self.reduces = ranges, hint is not None
        self.group = (None, tuple(int(sympy.prod(r)) for r in ranges))
        self._body = SimpleNamespace(op_counts=Counter(counts or {"load": len(reads), "add": 1}))
        data = SimpleNamespace(reduction_hint=SimpleNamespace(name=hint))
        packet = SimpleNamespace(__name__=f"aten_{name}")
        origin = SimpleNamespace(
            op="call_function", meta={"original_aten": SimpleNamespace(_overloadpacket=packet)}
        )
        self.node = SimpleNamespace(data=data, origins=[origin])
        self.outputs = [
            SimpleNamespace(
                get_name=lambda name=dep.name: name,
                get_aliases=list,
                get_mutations=list,
                users=[
                    SimpleNamespace(node=SimpleNamespace(get_name=lambda u=u: u)) for u in users
                ],
            )
            for dep in writes
        ]

    def get_nodes(self) -> list[Node]:
        return [self]

    def get_name(self) -> str:
        return self.name

    def get_ranges(self) -> Any:
        return self.ranges

    def get_outputs(self) -> Any:
        return self.outputs

    def is_reduction(self) -> bool:
        return self.reduces

    def is_template(self) -> bool:
        return False


def fused(*nodes: Node, group: tuple[int, int]) -> Any:
    return SimpleNamespace(
        get_nodes=lambda: list(nodes), is_template=lambda: False, group=(None, group)
    )


def graph(**buffers: Buffer) -> Any:
    return SimpleNamespace(
        try_get_buffer=buffers.get,
        sizevars=SimpleNamespace(size_hint=int),
        scheduler=SimpleNamespace(mutation_real_name={}),
    )


MATRIX = {"x": Buffer((64, 32)), "y": Buffer((64, 32)), "row": Buffer((32,)), "sums": Buffer((64,))}


def test_pointwise_counts_each_byte_once() -> None:
    node = Node(
        "add",
        [Dep("x", D0, (2048,)), Dep("row", D1, (64, 32))],
        [Dep("y", D0, (2048,))],
        ((2048,), ()),
        counts={"load": 2, "exp": 1, "mul": 1, "to_dtype": 1, "rand": 1},
    )
    op = fused_op(node, graph(**MATRIX))
    assert op.name == "inductor.pointwise"
    assert op.attr("points") == 2048
    assert (op.attr("read_bytes"), op.attr("write_bytes")) == (4 * 2048 + 4 * 32, 4 * 2048)
    assert op.attr("arithmetic") == 9  # exp counts as eight, and mul as one
    assert op.attr("random") == 1
    assert op.attr("fused") == "aten_add"
    assert [t.shape for t in op.inputs] == [(64, 32), (32,)]


def test_what_only_the_kernel_uses_never_reaches_memory() -> None:
    first = Node("a", [Dep("x", D0, (2048,))], [Dep("t", D0, (2048,))], ((2048,), ()), ["b"])
    second = Node("b", [Dep("t", D0, (2048,))], [Dep("y", D0, (2048,))], ((2048,), ()))
    op = fused_op(fused(first, second, group=(2048, 1)), graph(**MATRIX, t=Buffer((64, 32))))
    assert [len(op.inputs), len(op.outputs)] == [1, 1]
    assert op.attr("arithmetic") == 2


def reduction(hint: str, length: int, rows: int = 64) -> Node:
    return Node(
        "sum",
        [Dep("x", length * D0 + D1, (rows, length))],
        [Dep("sums", D0, (rows,))],
        ((rows,), (length,)),
        hint=hint,
    )


@pytest.mark.parametrize(
    ("hint", "length", "name"),
    [
        ("INNER", 1024, "inductor.persistent_reduction"),
        ("INNER", 1025, "inductor.reduction"),
        ("OUTER", 64, "inductor.persistent_reduction"),
        ("OUTER", 65, "inductor.reduction"),
    ],
)
def test_short_reductions_stay_in_registers(hint: str, length: int, name: str) -> None:
    shapes = {"x": Buffer((64, length)), "sums": Buffer((64,))}
    assert fused_op(reduction(hint, length), graph(**shapes)).name == name


def test_a_looped_kernel_reads_again_after_its_reduction() -> None:
    length = 4096
    shapes = {"x": Buffer((64, length)), "sums": Buffer((64,)), "y": Buffer((64, length))}
    first = reduction("INNER", length)
    then = Node(
        "scale",
        [Dep("x", length * D0 + D1, (64, length)), Dep("sums", D0, (64, length))],
        [Dep("y", length * D0 + D1, (64, length))],
        ((64, length), ()),
    )
    op = fused_op(fused(first, then, group=(64, length)), graph(**shapes))
    assert op.attr("read_bytes") == 4 * 64 * length
    assert op.attr("again_bytes") == 4 * 64 * length


def test_strides_lookups_and_atomic_additions() -> None:
    tmp = sympy.Symbol("tmp0")
    node = Node(
        "scatter",
        [Dep("x", D0 + 64 * D1, (64, 32)), Dep("y", 32 * tmp + D1, (64, 32))],
        [Dep("row", tmp, (64, 32), "atomic_add")],
        ((2048,), ()),
    )
    op = fused_op(node, graph(**MATRIX))
    assert op.attr("strided_bytes") == 4 * 2048
    assert op.attr("indirect_bytes") == 4 * 2048 + 4 * 32
    assert op.attr("atomic_bytes") == 4 * 2048


def test_is_contiguous_looks_at_the_fastest_loop() -> None:
    assert is_contiguous(Dep("x", 32 * D0 + D1, (64, 32)))
    assert is_contiguous(Dep("x", D0, (64, 32)))
    assert not is_contiguous(Dep("x", D0 + 64 * D1, (64, 32)))
    assert is_contiguous(Dep("x", D0 + 64 * D1, (64, 32)), any_variable=True)


def test_lists_are_divided_by_their_number_of_arguments() -> None:
    nodes = [
        Node(f"n{i}", [Dep("x", D0, (2048,))] * 6, [Dep("y", D0, (2048,))] * 4, ((2048,), ()))
        for i in range(30)
    ]
    node = SimpleNamespace(get_subkernel_nodes=lambda: nodes, is_template=lambda: False)
    kernels = kernels_of(node, graph(**MATRIX), sm_count=132).ops
    assert [op.attr("tensors") for op in kernels] == [25, 5]
    assert kernels[0].name == "inductor.foreach"
    assert kernels[0] == list_kernel(nodes[:25], graph(**MATRIX)).op


@pytest.mark.parametrize("predictor", [Roofline(), Attainable.shipped(), Learned.shipped()])
def test_every_predictor_answers_for_fused_kernels(predictor: Any) -> None:
    op = fused_op(
        reduction("INNER", 512, 1 << 20), graph(x=Buffer((1 << 20, 512)), sums=Buffer((1 << 20,)))
    )
    gpu = device("h200-sxm")
    estimate = predictor.predict(op, gpu)
    assert estimate is not None
    assert estimate.seconds >= ops.cost_of(op).bytes / gpu.memory_bytes_per_s  # type: ignore[union-attr]
