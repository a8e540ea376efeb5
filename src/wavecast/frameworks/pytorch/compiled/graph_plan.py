"""What one compiled graph does when it runs: its kernels in order, and the memory around them.

Inductor's scheduler has decided on all of it. Only attributes of its nodes are read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from wavecast.frameworks.pytorch.compiled.fused_ops import hint_of, kernels_of
from wavecast.frameworks.pytorch.compiled.library_ops import library_op, module_and_lines
from wavecast.frameworks.pytorch.compiled.node_accesses import kept_inside, spec_of
from wavecast.traces.step import Op, TensorSpec


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """Memory that a step of a graph allocates."""

    name: str
    spec: TensorSpec
    reuses: str | None = None
    """The buffer whose memory it takes over. None for new memory."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One scheduled node: what it allocates, its kernels, and what is freed after it."""

    buffers: tuple[PlannedBuffer, ...]
    ops: tuple[Op, ...]
    """Its kernels and library calls. Empty if it only allocates."""
    frees: tuple[str, ...]
    """The buffers and inputs that nothing needs any more."""
    module: str
    """The path of the module whose code it runs, from the root of the compiled code."""
    line: str
    """The innermost line of that code, as "file.py:12"."""
    source: str = ""
    """The innermost line outside of torch, as the trace shows it."""


@dataclass(frozen=True, slots=True)
class PlannedResult:
    """One result of a graph: a buffer or an input, maybe seen with another shape."""

    name: str | None
    """The buffer or input. None for a result that is no tensor."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    constant: Any = None


@dataclass(frozen=True)
class GraphPlan:
    """All that a compiled graph does when it runs."""

    inputs: tuple[str, ...]
    steps: tuple[PlanStep, ...]
    results: tuple[PlannedResult, ...]
    aliases: dict[str, str]
    """Buffers without memory of their own, and the buffer that they are part of."""
    constants: dict[str, TensorSpec]
    """Tensors that are part of the compiled code."""


def plan_of(
    graph: Any, sm_count: int, roots: Mapping[str, str] = MappingProxyType({})
) -> GraphPlan:
    """The plan of a graph that Inductor has scheduled (`GraphLowering`).

    Args:
        graph: the graph.
        sm_count: the SMs of the GPU.
        roots: the paths of modules, by the names that Dynamo has for them.
    """
    return _Planner(graph, sm_count, roots).plan()


class _Planner:
    """Reads the plan from Inductor's graph and scheduler."""

    def __init__(self, graph: Any, sm_count: int, roots: Mapping[str, str]) -> None:
        self._graph = graph
        self._roots = roots
        self._sm_count = sm_count
        self._hint = hint_of(graph)
        self._aliases: dict[str, str] = {}
        self._replaced: set[str] = set()

    def plan(self) -> GraphPlan:
        steps = tuple(self._step(node) for node in self._graph.scheduler.nodes)
        return GraphPlan(
            inputs=tuple(self._graph.graph_input_names),
            steps=steps,
            results=tuple(self._result(output) for output in self._graph.graph_outputs),
            aliases=self._aliases,
            constants={
                name: TensorSpec(
                    tuple(value.shape),
                    str(value.dtype).removeprefix("torch."),
                    None if value.is_contiguous() else tuple(value.stride()),
                )
                for name, value in self._graph.constants.items()
            },
        )

    def _step(self, node: Any) -> PlanStep:
        members = list(node.get_nodes())
        ops: tuple[Op, ...] = ()
        device = node.get_device()
        if node.get_name() in self._replaced or (device is not None and device.type == "cpu"):
            pass  # another kernel does its work, or the host
        elif node.is_extern():
            ops = tuple(self._library_ops(members))
        elif type(node).__name__ != "NopKernelSchedulerNode":
            kernels = kernels_of(node, self._graph, self._sm_count)
            self._replaced.update(kernels.replaced)
            ops = kernels.ops
        origins = [origin for m in members for origin in getattr(m.node, "origins", None) or ()]
        module, line, source = module_and_lines(origins, self._roots)
        buffers = tuple(self._buffers(node, members))
        return PlanStep(buffers, ops, tuple(sorted(node.last_usage)), module, line, source)

    def _library_ops(self, members: list[Any]) -> Iterator[Op]:
        for member in members:
            kernel = member.node
            if type(kernel).__name__ in ("MultiOutput", "DynamicScalar", "AssertScalar"):
                continue
            yield library_op(kernel, self._hint)

    def _buffers(self, node: Any, members: list[Any]) -> Iterator[PlannedBuffer]:
        inside = set() if node.is_extern() else kept_inside(members)
        free = dict.fromkeys(node.last_usage) if not node.is_extern() else {}
        for member in members:
            for output in member.get_outputs():
                name = output.get_name()
                if name in inside or self._is_alias(output):
                    continue
                if not hasattr(output.node.get_output_spec(), "size"):
                    continue  # a call with several results, which are nodes of their own
                spec = spec_of(output.node, self._hint)
                if spec.device != "cuda":
                    yield PlannedBuffer(name, spec)
                    continue
                yield PlannedBuffer(name, spec, self._taken_over(spec, members, free))

    def _is_alias(self, output: Any) -> bool:
        """Note a buffer that is part of another one, and say whether it is."""
        layout = output.node.get_output_spec()
        base = getattr(layout, "view", None) or getattr(layout, "target", None)
        names = [base.get_name()] if base is not None else list(output.get_aliases())
        if names:
            self._aliases[output.get_name()] = names[0]
        return bool(names)

    def _taken_over(
        self, spec: TensorSpec, members: list[Any], free: dict[str, None]
    ) -> str | None:
        """The input whose memory the kernel writes its result to, as it is not needed any more."""
        scheduler = self._graph.scheduler
        given = getattr(scheduler, "name_to_donated_buffer", {})
        for name in free:
            source = given.get(name) or scheduler.name_to_buf.get(name)
            if source is None or name in self._aliases or source.node is None:
                continue
            may = any(user.can_inplace and user.node in members for user in source.users)
            if may and _same_memory(spec_of(source.node, self._hint), spec):
                del free[name]
                return name
        return None

    def _constant(self, output: Any) -> Any:
        expression = getattr(output, "expr", None)
        if expression is None:
            return None
        return self._hint(expression) if expression.is_integer else float(expression)

    def _result(self, output: Any) -> PlannedResult:
        if not hasattr(output, "get_name") or not output.has_tensor_output():
            return PlannedResult(None, constant=self._constant(output))
        layout = output.get_layout()
        return PlannedResult(
            output.get_name(),
            tuple(self._hint(n) for n in layout.size),
            tuple(self._hint(n) for n in layout.stride),
            self._hint(layout.offset),
        )


def _same_memory(source: TensorSpec, result: TensorSpec) -> bool:
    return source.dtype == result.dtype and source.touched_bytes == result.touched_bytes
