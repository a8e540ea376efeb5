"""The plan of a compiled graph, read from Inductor's graph.

Inductor's scheduler has decided on all of it. Only attributes of its nodes are read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from wavecast.frameworks.pytorch.compiled.buffer_plan import NodeBuffers, buffers_of
from wavecast.frameworks.pytorch.compiled.fused_ops import hint_of, kernels_of
from wavecast.frameworks.pytorch.compiled.library_ops import (
    library_op,
    makes_tensor,
    module_and_lines,
    result_names,
)
from wavecast.frameworks.pytorch.compiled.node_accesses import PlannedOp, spec_of
from wavecast.frameworks.pytorch.compiled.plans import (
    GraphPlan,
    PlannedBuffer,
    PlannedResult,
    PlanStep,
)
from wavecast.traces.step import TensorSpec


def plan_of(
    graph: Any,
    sm_count: int,
    is_inference: bool = False,
    roots: Mapping[str, str] = MappingProxyType({}),
) -> GraphPlan:
    """The plan of a graph that Inductor has scheduled (`GraphLowering`). It is made only once.

    Args:
        graph: the graph.
        sm_count: the SMs of the GPU.
        is_inference: whether it has no backward pass.
        roots: the paths of modules, by the names that Dynamo has for them.
    """
    return _Planner(graph, sm_count, roots).plan(is_inference)


class _Planner:
    """Reads the plan from Inductor's graph and scheduler."""

    def __init__(self, graph: Any, sm_count: int, roots: Mapping[str, str]) -> None:
        self._graph = graph
        self._roots = roots
        self._sm_count = sm_count
        self._hint = hint_of(graph)
        self._aliases: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._made: set[str] = set()

    def plan(self, is_inference: bool) -> GraphPlan:
        nodes = self._graph.scheduler.nodes
        ops = [self._ops(node) for node in nodes]
        buffers = buffers_of(self._graph, is_inference)
        steps = tuple(map(self._step, nodes, ops, buffers))
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

    def _ops(self, node: Any) -> tuple[PlannedOp, ...]:
        """The kernels and library calls of a node."""
        device = node.get_device()
        if node.get_name() in self._replaced or (device is not None and device.type == "cpu"):
            return ()  # another kernel does its work, or the host
        if node.is_extern():
            return tuple(self._library_ops(list(node.get_nodes())))
        if type(node).__name__ == "NopKernelSchedulerNode":
            return ()
        kernels = kernels_of(node, self._graph, self._sm_count)
        self._replaced.update(kernels.replaced)
        return kernels.planned

    def _step(self, node: Any, ops: tuple[PlannedOp, ...], plan: NodeBuffers) -> PlanStep:
        members = list(node.get_nodes())
        origins = [origin for m in members for origin in getattr(m.node, "origins", None) or ()]
        module, line, source = module_and_lines(origins, self._roots)
        buffers = tuple(self._buffers(members, plan))
        return PlanStep(buffers, ops, plan.freed, module, line, source)

    def _library_ops(self, members: list[Any]) -> Iterator[PlannedOp]:
        for member in members:
            kernel = member.node
            if type(kernel).__name__ in ("MultiOutput", "DynamicScalar", "AssertScalar"):
                continue
            yield library_op(kernel, self._hint)

    def _buffers(self, members: list[Any], plan: NodeBuffers) -> Iterator[PlannedBuffer]:
        """What gets memory at a node: what is allocated for it, and what its call allocates."""
        known = self._graph.scheduler.name_to_buf
        for taken in plan.taken:
            spec = spec_of(known[taken.name].node, self._hint)
            yield PlannedBuffer(taken.name, spec, taken.source, taken.is_shared)
        results = [name for member in members for name in result_names(member.node)]
        for name in dict.fromkeys(results):
            buffer = known.get(name)
            if buffer is None or self._is_alias(buffer) or buffer.node.should_allocate():
                continue
            if name in self._made or not makes_tensor(buffer.node):
                continue  # made by an earlier call, or a call with several results
            self._made.add(name)
            yield PlannedBuffer(name, spec_of(buffer.node, self._hint))

    def _is_alias(self, output: Any) -> bool:
        """Note a buffer that is part of another one, and say whether it is."""
        layout = output.node.get_output_spec()
        base = getattr(layout, "view", None) or getattr(layout, "target", None)
        names = [base.get_name()] if base is not None else list(output.get_aliases())
        if names:
            self._aliases[output.get_name()] = names[0]
        return bool(names)

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
