"""Hand-made ops, calls and traces, for tests that need no framework."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.frameworks.pytorch.compiled.fused_ops import BufferView, PlannedOp
from wavecast.frameworks.pytorch.compiled.plans import (
    GraphPlan,
    PlannedBuffer,
    PlannedResult,
    PlanStep,
)
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, Scalar, TensorSpec, Trace


def tensor(*shape: int, dtype: str = "float32", device: str = "cuda") -> TensorSpec:
    return TensorSpec(shape, dtype, device=device)


def mm(m: int = 64, k: int = 64, n: int = 64, dtype: str = "float32", **attrs: Scalar) -> Op:
    operands = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)
    return Op("aten.mm", operands, (tensor(m, n, dtype=dtype),), tuple(attrs.items()))


def relu(*shape: int, dtype: str = "float32") -> Op:
    return Op("aten.relu", (tensor(*shape, dtype=dtype),), (tensor(*shape, dtype=dtype),))


def view(*shape: int) -> Op:
    return Op("aten.view", (tensor(*shape),), (tensor(*shape),))


def unknown(name: str = "mine.secret") -> Op:
    return Op(f"{name}.default", (tensor(8, 8),), (tensor(8, 8),))


def copy_to_gpu(*shape: int) -> Op:
    return Op("aten._to_copy", (tensor(*shape, device="cpu"),), (tensor(*shape),))


def call(op: Op, phase: Phase = Phase.FORWARD, module: str = "", syncs: bool = False) -> Call:
    return Call(op, phase, module, syncs=syncs)


def trace(*calls: Call, samples: int | None = None, notes: Sequence[str] = ()) -> Trace:
    return Trace(calls, framework="torch 2.13.0", samples=samples, notes=tuple(notes))


def step(samples: int | None = 32, state_bytes: int = 1 << 20) -> Trace:
    """A step of two layers with backward pass, optimizer, memory, and an op of unknown cost."""
    calls = (
        call(copy_to_gpu(32, 64), Phase.OTHER),
        call(mm(32, 64, 128), module="net.0"),
        call(relu(32, 128), module="net.1"),
        call(view(32, 128), module="net.1"),
        call(mm(32, 128, 10), module="net.2"),
        call(unknown(), module="net.2"),
        call(mm(128, 32, 10), Phase.BACKWARD, "net.2"),
        call(mm(32, 128, 10), Phase.BACKWARD, "net.2"),
        call(unknown(), Phase.BACKWARD, "net.2"),
        call(relu(64, 128), Phase.OPTIMIZER),
    )
    memory = (
        Allocation(state_bytes, None, None, Role.PARAMETER),
        Allocation(state_bytes, 6, None, Role.GRADIENT),
        Allocation(2 * state_bytes, None, None, Role.OPTIMIZER_STATE),
        Allocation(100 * state_bytes, 1, 6, Role.INTERMEDIATE),
    )
    return Trace(calls, memory, "torch 2.13.0", samples=samples)


def graph_plan() -> GraphPlan:
    """The plan of a compiled graph with one matmul, whose result is also its result."""
    op = mm(4, 8, 2, transposed=True, dims=(0, 1))
    reads, writes = (BufferView("x"), BufferView("weight", 8)), (BufferView("buf0"),)
    step = PlanStep(
        (PlannedBuffer("buf0", tensor(4, 2)), PlannedBuffer("buf1", tensor(4, 2), "x", True)),
        (PlannedOp(op, reads, writes),),
        ("x",),
        "layers.0",
        "net.py:12",
        "out = self.layer(x)",
    )
    results = PlannedResult("buf0", (4, 2), (2, 1)), PlannedResult(None, constant=3)
    return GraphPlan(("x", "weight"), (step,), results, {"view": "buf0"}, {"c": tensor(1)})
