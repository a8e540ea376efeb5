"""The plan of a compiled graph, read from Inductor's graph.

Inductor's scheduler has decided on all of it. Only attributes of its nodes are read here.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._inductor import ir
from torch._inductor.codegen import wrapper as wrappers
from torch._inductor.codegen.common import Kernel
from torch._inductor.virtualized import V

from wavecast.frameworks.pytorch.compiled.fused_ops import (
    BufferView,
    PlannedOp,
    hint_of,
    kept_inside,
    kernels_of,
    operand_of,
    spec_of,
)
from wavecast.frameworks.pytorch.compiled.plans import (
    GraphPlan,
    PlannedBuffer,
    PlannedResult,
    PlanStep,
)
from wavecast.frameworks.pytorch.recording.signature import attribute_of, signature_of
from wavecast.frameworks.pytorch.recording.user_lines import source_line
from wavecast.traces.step import Op, Scalar, TensorSpec

_NO_CALLS = ("MultiOutput", "DynamicScalar", "AssertScalar")
"""Inductor's nodes that stand among library calls and call none."""


class Planner:
    """Reads the plan of a graph that Inductor has scheduled (`GraphLowering`), once.

    `roots` are the paths of modules, by the names that Dynamo has for them.
    """

    def __init__(self, graph: Any, sm_count: int, roots: Mapping[str, str]) -> None:
        self._graph = graph
        self._roots = roots
        self._sm_count = sm_count
        self._hint = hint_of(graph)
        self._aliases: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._made: set[str] = set()

    def plan(self, is_inference: bool) -> GraphPlan:
        """The plan; `is_inference` says that there is no backward pass."""
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
            calls = (member.node for member in node.get_nodes())
            kernels = [call for call in calls if type(call).__name__ not in _NO_CALLS]
            return tuple(library_op(kernel, self._hint) for kernel in kernels)
        if type(node).__name__ == "NopKernelSchedulerNode":
            return ()
        generated = kernels_of(node, self._graph, self._sm_count)
        self._replaced.update(generated.replaced)
        return generated.planned

    def _step(self, node: Any, ops: tuple[PlannedOp, ...], plan: NodeBuffers) -> PlanStep:
        members = list(node.get_nodes())
        origins = [origin for m in members for origin in getattr(m.node, "origins", None) or ()]
        module, line, source = module_and_lines(origins, self._roots)
        buffers = tuple(self._buffers(members, plan))
        return PlanStep(buffers, ops, plan.freed, module, line, source)

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


# The buffers of a compiled graph: what each scheduled node allocates, takes over and frees.
#
# Inductor decides on this while it writes the code that calls the kernels: a kernel may write over
# an input that nothing needs any more, and a buffer that is not needed any more may be kept for a
# later one of the same size. Here Inductor's own functions decide; the code is not written.


class Taken(NamedTuple):
    """A buffer that gets memory."""

    name: str
    source: str | None = None
    """The buffer whose memory it gets. None for new memory."""
    is_shared: bool = False
    """Whether it is a part of the source, which lives on."""


class NodeBuffers(NamedTuple):
    """What happens to buffers when one scheduled node runs."""

    taken: tuple[Taken, ...]
    freed: tuple[str, ...]
    """What is freed after it."""


class _Ran(NamedTuple):
    """The place of a node among the lines of the wrapper."""

    number: int


def buffers_of(graph: Any, is_inference: bool) -> list[NodeBuffers]:
    """What each scheduled node of a graph (`GraphLowering`) does to buffers, in order.

    Results of calls that allocate themselves are not among the taken buffers. The graph must be
    the present one (`inductor.handling`), and can be planned only once.
    """
    wrapper, scheduler = graph.wrapper_code, graph.scheduler
    for number, node in enumerate(scheduler.nodes):
        _run(graph, node)
        wrapper.lines.append(_Ran(number))
        if type(node).__name__ != "NopKernelSchedulerNode":
            scheduler.free_buffers()
        scheduler.available_buffer_names.update(node.get_buffer_names())
        scheduler.completed_operations.update(node.get_operation_names())
    wrapper.run_wrapper_ir_passes(is_inference)
    return list(_read(wrapper.lines, len(scheduler.nodes)))


def _run(graph: Any, node: Any) -> None:
    """Let Inductor allocate for a node, as it does when it writes the node's kernel."""
    members = list(node.get_nodes())
    scheduler = graph.scheduler
    scheduler.current_node = node
    scheduler.buffer_names_to_free.update(node.last_usage)
    kernel = Kernel(increase_kernel_count=False)
    with V.set_kernel_handler(kernel):
        for member in members:
            member.decide_inplace_update()
        for member in members:
            member.mark_run()
    if not node.is_extern():
        inside = kept_inside(members)
        graph.removed_buffers.update(_removed(inside, kernel.args.inplace_buffers))


def _removed(inside: set[str], updated: Any) -> Iterator[str]:
    """The buffers that get no memory.

    One that never leaves the kernel does get memory if it is the first that a kernel writes where
    it later writes one that does.
    """
    for name in inside:
        names = getattr(updated.get(name), "other_names", ())
        if all(other in inside for other in names):
            yield name


def _read(lines: Sequence[Any], count: int) -> Iterator[NodeBuffers]:
    """The planned lines, by node: those before it allocate for it, those after it free."""
    taken: list[list[Taken]] = [[] for _ in range(count + 1)]
    freed: list[list[str]] = [[] for _ in range(count)]
    present = 0
    for line in lines:
        if isinstance(line, _Ran):
            present = line.number + 1
        elif isinstance(line, wrappers.AllocateLine):
            taken[present].append(Taken(line.node.get_name()))
        elif isinstance(line, wrappers.ReuseLine):
            taken[present].append(Taken(line.reused_as.get_name(), line.node.get_name()))
        elif isinstance(line, wrappers.ReinterpretLine):
            names = line.reused_as.get_name(), line.node.get_name()
            taken[present].append(Taken(*names, is_shared=True))
        elif isinstance(line, wrappers.FreeLine) or (
            isinstance(line, wrappers.FreeIfNotReusedLine) and not line.is_reused
        ):
            freed[max(present - 1, 0)].append(line.node.get_name())
    for number in range(count):
        yield NodeBuffers(tuple(taken[number]), tuple(freed[number]))


# Calls of libraries in a compiled graph, such as matmuls and attention, as ops.
#
# They have the names, inputs and attributes that the same calls have in a step that is not
# compiled.


Hint = Callable[[Any], int]

_LIBRARY = "extern_kernels."
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_COPY = "DeviceCopy"
"""Inductor's node for a copy between the host and the GPU."""
_INDEX_PUT = "IndexPutFallback"
"""Inductor's node for torch's own `index_put_`. It has the values before the places."""
_PATH = (
    (re.compile(r"^L\['\w+'\]"), ""),  # the local variable that holds the compiled module
    (re.compile(r"_modules\['(\w+)'\]"), r"\1"),
    (re.compile(r"\[['\"]?(\w+)['\"]?\]"), r".\1"),
    (re.compile(r"\.?(_orig_mod|__self__)\b"), ""),
)
"""How Dynamo's names of modules become paths of modules."""


def library_op(kernel: Any, hint: Hint) -> PlannedOp:
    """The op of a library call."""
    func = _overload(kernel)
    results = list(_results(kernel))
    outputs = tuple(spec_of(buffer, hint) for buffer in results)
    writes = tuple(operand_of(buffer, hint) for buffer in results)
    signature = None if func is None else signature_of(func)
    if type(kernel).__name__ == _COPY or func is None:
        called = getattr(kernel, "python_kernel_name", None) or type(kernel).__name__
        name = "aten._to_copy" if type(kernel).__name__ == _COPY else f"inductor.{called}"
        specs, reads = _tensors(kernel.inputs, hint)
        return PlannedOp(Op(name, specs, outputs), reads, writes)
    if signature is None:
        return PlannedOp(Op(str(func), (), outputs), (), writes)
    inputs: tuple[TensorSpec, ...] = ()
    reads = ()
    attrs: list[tuple[str, Scalar]] = []
    for name, value in _arguments(kernel, func):
        specs, operands = _tensors(value, hint)
        if specs:
            inputs, reads = inputs + specs, reads + operands
            continue
        attribute = attribute_of(_numbers(value, hint))
        if attribute is not None:
            attrs.append((name, attribute))
    op = Op(signature.name, inputs, outputs or inputs[:1], tuple(attrs))
    return PlannedOp(op, reads, writes or reads[:1])


def _overload(kernel: Any) -> Any:
    """The torch op behind a call. None if there is none."""
    name = str(getattr(kernel, "python_kernel_name", None) or "")
    if name.startswith(_LIBRARY):
        packet = getattr(torch.ops.aten, name.removeprefix(_LIBRARY), None)
        return getattr(packet, "default", None)
    overload = getattr(kernel, "op_overload", None)
    return overload if isinstance(overload, torch._ops.OpOverload) else None


def _arguments(kernel: Any, func: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of a call's arguments, in the order of the schema."""
    names = [argument.name for argument in func._schema.arguments]
    if type(kernel).__name__ == _INDEX_PUT:
        changed, values, *places = kernel.inputs
        yield from zip(names, (changed, places, values, *kernel.constant_args), strict=False)
        return
    if hasattr(kernel, "unflatten_args"):
        args, kwargs = kernel.unflatten_args(kernel.inputs, kernel.constant_args)
        yield from zip(names, args, strict=False)
        yield from {**kwargs, **kernel.kwargs}.items()
        return
    tensors, rest = list(kernel.inputs), list(kernel.constant_args)
    for argument in func._schema.arguments:
        is_tensor = "Tensor" in str(argument.type)
        if argument.name in kernel.kwargs:
            yield argument.name, kernel.kwargs[argument.name]
        elif is_tensor and tensors:
            yield argument.name, tensors.pop(0)
        elif not is_tensor and rest:
            yield argument.name, rest.pop(0)


def _results(kernel: Any) -> Iterator[Any]:
    """The tensors that a call makes."""
    results = getattr(kernel, "outputs", None)
    if results:
        yield from _flat(results)
    elif makes_tensor(kernel):
        yield kernel


def makes_tensor(kernel: Any) -> bool:
    """Whether a call makes one tensor: not several, and not none, as one that changes its input."""
    layout = kernel.get_output_spec()
    return hasattr(layout, "size") and not isinstance(layout, ir.NoneLayout)


def result_names(kernel: Any) -> Iterator[str]:
    """The names of the buffers that a node makes, also of those that it hands to later nodes."""
    for result in (*_flat(getattr(kernel, "outputs", None) or []), *kernel.get_outputs()):
        yield str(result.get_name())


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None and hasattr(value, "get_size"):
        yield value


def _tensors(value: Any, hint: Hint) -> tuple[tuple[TensorSpec, ...], tuple[BufferView, ...]]:
    """The tensors of an argument: their specs, and where they are."""
    tensors = [item for item in _flat(value) if item.has_tensor_output()]
    return (
        tuple(spec_of(item, hint) for item in tensors),
        tuple(operand_of(item, hint) for item in tensors),
    )


def _numbers(value: Any, hint: Hint) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_numbers(item, hint) for item in value)
    if hasattr(value, "free_symbols") or isinstance(value, torch.SymInt):
        return hint(value)
    return value


def module_and_lines(origins: Sequence[Any], roots: Mapping[str, str]) -> tuple[str, str, str]:
    """Where most of a kernel's graph nodes come from: the module, the innermost line of code, and
    the innermost line outside of torch."""
    modules, lines, sources = Counter[str](), Counter[str](), Counter[str]()
    folder = str(Path.cwd())
    for node in origins:
        modules[_module(node.meta, roots)] += 1
        line, source = _lines(node.meta.get("stack_trace"), folder)
        lines[line] += 1
        sources[source] += 1
    return _most(modules), _most(lines), _most(sources)


def _most(counts: Counter[str]) -> str:
    return max(counts, key=lambda key: (bool(key), counts[key]), default="")


def _module(meta: dict[str, Any], roots: Mapping[str, str]) -> str:
    """The path of the innermost module that ran a node, from the root of the compiled code."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    source = next((name for name in roots if path.startswith(name)), "")
    path = roots.get(source, "") + path.removeprefix(source)
    for before, after in _PATH:
        path = before.sub(after, path)
    return path.strip(".")


@functools.lru_cache(1 << 14)
def _lines(stack: str | None, _folder: str) -> tuple[str, str]:
    """The innermost line of a recorded stack and the innermost outside of torch, "file.py:12".

    The second is relative to the present folder.
    """
    last = source = ""
    for row in (stack or "").splitlines():
        row = row.strip()
        if row.startswith('File "'):
            name, _, rest = row.removeprefix('File "').partition('", line ')
            number = rest.split(",")[0]
            last = f"{name}:{number}"
            if not name.startswith(_TORCH) and number.isdigit():
                source = source_line(name, int(number))
    return last, source
