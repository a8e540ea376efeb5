"""Compiled graphs as they run in a traced step: they record their kernels and compute nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from wavecast.frameworks.pytorch.capture.places import CPU, ON_GPU, ON_HOST, place_of, put
from wavecast.frameworks.pytorch.compiled.node_accesses import BufferView, PlannedOp
from wavecast.frameworks.pytorch.compiled.plan_keys import sizes_of
from wavecast.frameworks.pytorch.compiled.plans import (
    GraphPlan,
    PlannedBuffer,
    PlannedResult,
    PlanStep,
)
from wavecast.frameworks.pytorch.recording.recorded import EmittedKernel
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.signature import on_host, with_switches
from wavecast.traces.graphs import CALL, GRAPH_LAUNCH
from wavecast.traces.step import Phase, TensorSpec

_NUMBER = re.compile(r"\d+")


class GraphRun:
    """A compiled graph, as torch calls it: with a list of tensors, which it empties.

    Args:
        plan: what it does.
        recorder: records its kernels.
        mode: the mode of the trace's fake tensors.
        root: the path of the module whose code was compiled.
        phase: the phase of the step. None for the present one.
        is_replayed: whether its kernels are replayed as one CUDA graph.
        is_forward: whether it is the forward pass of code that is trained.
    """

    def __init__(
        self,
        plan: GraphPlan,
        recorder: OpRecorder,
        mode: FakeTensorMode,
        root: str = "",
        *,
        phase: Phase | None = None,
        is_replayed: bool = False,
        is_forward: bool = False,
    ) -> None:
        self.plan = plan
        self._recorder = recorder
        self._mode = mode
        self._root = root
        self._phase = phase
        self._is_replayed = is_replayed
        self._is_forward = is_forward
        self._constants: dict[str, Any] = {}
        self._boxed_call = True  # torch asks for it, also through wrappers that copy attributes

    def __call__(self, args: list[Any]) -> list[Any]:
        """Record the kernels of the graph, and return its results as fake tensors."""
        # The gradient mode shows the recorder which phase runs, but torch turns gradients off here.
        with torch.set_grad_enabled(torch.is_grad_enabled() or self._is_forward):
            return self._run_all(args)

    def _run_all(self, args: list[Any]) -> list[Any]:
        tensors = dict(zip(self.plan.inputs, args, strict=True))
        self._recorder.meet(arg for arg in args if isinstance(arg, torch.Tensor))
        args.clear()  # the caller keeps no saved tensor alive
        tensors |= self._own_constants()
        root = self._present_root()
        with self._recorder.graph():
            self._recorder.mark(CALL, inputs=len(self.plan.inputs))
            if self._is_replayed:
                self._recorder.mark(GRAPH_LAUNCH)
            for step in self.plan.steps:
                self._run(step, tensors, root)
        return [self._result(result, tensors) for result in self.plan.results]

    def _present_root(self) -> str:
        """The module that runs the graph: torch compiles once what layers that are alike run."""
        present = self._recorder.structure.place()[1]
        alike = _NUMBER.sub("#", present) == _NUMBER.sub("#", self._root)
        return present if alike else self._root

    def _run(self, step: PlanStep, tensors: dict[str, Any], root: str) -> None:
        made, replaced, early = [], {}, {}
        for buffer in step.buffers:
            if buffer.name in tensors:  # the kernel of another step has written it
                early[buffer.name] = tensors[buffer.name]
            source = tensors.get(buffer.source) if buffer.source else None
            tensors[buffer.name] = self._allocate(buffer, source)
            if source is None and buffer.spec.device == "cuda":
                made.append(tensors[buffer.name])
            elif not buffer.is_shared:
                replaced[buffer.name] = str(buffer.source)
        for planned in step.ops:
            if not on_host(planned.op):
                run = self._kernel(planned, step, tensors, root)
                renewed = [tensors[w.buffer] for w in planned.writes if w.buffer in replaced]
                self._recorder.emit(run, made, renewed)
        for tensor in made:  # no kernel may run where memory is only set aside
            self._recorder.follow(tensor)
        for name, tensor in early.items():
            self._recorder.adopt(tensor, tensors[name])
        for name in (*replaced.values(), *step.frees):
            tensors.pop(name, None)

    def _kernel(
        self, planned: PlannedOp, step: PlanStep, tensors: dict[str, Any], root: str
    ) -> EmittedKernel:
        return EmittedKernel(
            op=with_switches(planned.op),
            module=f"{root}.{step.module}".strip("."),
            line=step.source,
            phase=self._phase,
            reads=self._tensors(planned.reads, planned.op.inputs, tensors),
            writes=self._tensors(planned.writes, planned.op.outputs, tensors),
        )

    def _tensors(
        self, operands: Sequence[BufferView], specs: Sequence[TensorSpec], tensors: dict[str, Any]
    ) -> list[tuple[Any, int]]:
        """The tensor of each operand, and where in its storage the operand begins."""
        found = []
        for operand, spec in zip(operands, specs, strict=True):
            name = self._name(operand.buffer, tensors)
            if name not in tensors:  # scratch memory of a kernel, or allocated by a later step
                tensors[name] = self._empty(spec)
            found.append((tensors[name], tensors[name].storage_offset() + operand.offset))
        return found

    def _name(self, name: str, tensors: dict[str, Any]) -> str:
        while name not in tensors and name in self.plan.aliases:
            name = self.plan.aliases[name]
        return name

    def _allocate(self, buffer: PlannedBuffer, source: Any) -> Any:
        if source is None:
            return self._empty(buffer.spec)
        spec = buffer.spec
        offset = 0 if not buffer.is_shared else source.storage_offset()
        return self._view(source, spec.shape, _strides(spec), offset, getattr(torch, spec.dtype))

    def _empty(self, spec: TensorSpec) -> Any:
        dtype = getattr(torch, spec.dtype)
        with no_dispatch():
            elements = torch.empty_strided(spec.shape, _strides(spec), dtype=dtype, device="meta")
            tensor = FakeTensor(self._mode, elements, CPU)
        put(tensor, ON_GPU if spec.device == "cuda" else ON_HOST)
        return tensor

    def _view(
        self, base: Any, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: Any
    ) -> Any:
        with no_dispatch():
            elements = torch.empty(0, dtype=dtype, device="meta")
            elements.set_(base.untyped_storage(), offset, shape, strides)
            tensor = FakeTensor(self._mode, elements, CPU)
        put(tensor, place_of(base))
        return tensor

    def _result(self, result: PlannedResult, tensors: dict[str, Any]) -> Any:
        if result.name is None:
            return result.constant
        name = self._name(result.name, tensors)
        tensor = tensors[name]
        same = tuple(tensor.shape) == result.shape and tensor.stride() == result.strides
        if same and tensor.storage_offset() == result.offset:
            return tensor
        if name in self.plan.inputs and same:
            return tensor
        return self._view(tensor, result.shape, result.strides, result.offset, tensor.dtype)

    def _own_constants(self) -> dict[str, Any]:
        for name, spec in self.plan.constants.items():
            if name not in self._constants:
                self._constants[name] = self._empty(spec)
        return dict(self._constants)


class SizedRun:
    """A graph that torch compiled once for several sizes: for each it has kernels of its own.

    Args:
        run_for: makes the graph for the sizes of its inputs.
        runs: those that are made, by the sizes.
    """

    def __init__(
        self,
        run_for: Callable[[Sequence[Any]], GraphRun],
        runs: dict[tuple[Any, ...], GraphRun],
    ) -> None:
        self._run_for = run_for
        self._runs = runs
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph as it is for the sizes of these arguments."""
        sizes = sizes_of(args)
        if sizes not in self._runs:
            with tracing(TracingContext(None)):
                self._runs[sizes] = self._run_for(args)
        return self._runs[sizes](args)


def _strides(spec: TensorSpec) -> tuple[int, ...]:
    if spec.strides is not None:
        return spec.strides
    return tuple(math.prod(n or 1 for n in spec.shape[i + 1 :]) for i in range(len(spec.shape)))
