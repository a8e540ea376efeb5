"""The compiler of a traced step: what torch.compile would make of its code on the target GPU."""

from __future__ import annotations

import copy
import functools
import gc
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from wavecast.errors import WavecastError
from wavecast.frameworks.pytorch.capture.values.places import (
    CPU,
    ON_GPU,
    ON_HOST,
    compiling,
    place_of,
    put,
)
from wavecast.frameworks.pytorch.compiled import dynamo, inductor, shortcuts
from wavecast.frameworks.pytorch.compiled.dynamo import CompilerDevices
from wavecast.frameworks.pytorch.compiled.fused_ops import BufferView, PlannedOp
from wavecast.frameworks.pytorch.compiled.graph_plan import Planner
from wavecast.frameworks.pytorch.compiled.inductor import has_symbols, key_of, sizes_of
from wavecast.frameworks.pytorch.compiled.plans import (
    GraphPlan,
    PlannedBuffer,
    PlannedResult,
    PlanStep,
    store_plan,
    stored_plan,
)
from wavecast.frameworks.pytorch.compiled.target import CompileTarget
from wavecast.frameworks.pytorch.compiled.tracing import untried_note
from wavecast.frameworks.pytorch.recording.recorder import EmittedKernel, OpRecorder
from wavecast.frameworks.pytorch.recording.signature import on_host, with_switches
from wavecast.frameworks.pytorch.recording.user_lines import (
    failing_line,
    is_users,
    line_of,
    source_line,
    user_line,
)
from wavecast.frameworks.replacements import replacing
from wavecast.frameworks.stages import stage
from wavecast.traces.graphs import CALL, GRAPH_LAUNCH, GUARDS, LEFT_EAGER, NOT_FOLLOWED
from wavecast.traces.step import Phase, TensorSpec

_OPTIMIZERS = "/torch/optim/"
"""The folder of torch's optimizers: a graph whose code is all from there is an update."""

_AUTOTUNED = (
    "torch.compile: max-autotune would try Triton's kernels for matmuls on the GPU; those of "
    "cuBLAS are assumed"
)

_PADDED = (
    "torch.compile: matmuls whose sizes are not aligned are padded where this is estimated to be "
    "faster; torch would try it on the GPU"
)

_NOTHING = (
    "torch.compile: nothing was compiled; torch leaves module.compile() eager for classes of its "
    "own, such as Sequential, which torch.compile(module) compiles"
)


class StepCompiler:
    """Compiles what a traced step asks torch to compile, for one GPU.

    With `everything`, the modules that the step calls are compiled, too, if it compiles none: in
    the default mode of torch.compile, or in the mode that `everything` names.
    """

    def __init__(self, target: CompileTarget, everything: bool | str = False) -> None:
        self._target = target
        self._everything = everything
        self._compiled: list[Any] = []
        self._is_asked = bool(everything)
        """Whether the step asks torch to compile anything."""
        dynamo.look_up_functions()
        self.notes: tuple[str, ...] = ()
        """What was noticed while compiling: graph breaks, and code that could not be compiled."""

    def properties(self) -> dict[str, Any]:
        """What the compiler asks of the GPU, by the names of torch's device properties."""
        return self._target.properties()

    @contextmanager
    def active(self, recorder: OpRecorder, mode: FakeTensorMode) -> Iterator[None]:
        """Compile what the step compiles, inside the block."""
        session = _Session(self._target, recorder, mode)
        with ExitStack() as stack:
            on_padded = partial(session.notes.setdefault, _PADDED)
            compiler = inductor.compiler_on(self._target, session.compile, on_padded)
            stack.enter_context(compiler)
            stack.enter_context(
                dynamo.frames_compiled(session.outside, session.notice_error, session.note_left)
            )
            stack.callback(self._undo)
            stack.callback(self._take_notes, session)
            replace = stack.enter_context(replacing())
            replace(torch, compile=self._noticing(torch.compile))
            yield

    def _noticing(self, original: Any) -> Any:
        """torch.compile, which notes that it is asked. Module.compile calls it, too."""

        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self._is_asked = True
            return original(*args, **kwargs)

        return compile_

    def rewrite(self, recorder: OpRecorder) -> bool:
        """After a first call of the step: compile the modules that it called from outside.

        Each such module with parameters is compiled as a whole, as `torch.compile` does. It
        returns whether anything was compiled.
        """
        if not self._everything:
            return False
        mode = self._everything if isinstance(self._everything, str) else None
        for module in recorder.structure.roots():
            if dynamo.is_compiled(module) or not any(True for _ in module.parameters()):
                continue
            dynamo.compile_module(module, mode)
            self._compiled.append(module)
        return bool(self._compiled)

    def _take_notes(self, session: _Session) -> None:
        breaks = breaks_as_notes(dynamo.graph_breaks())
        silent = session.has_graphs or breaks or session.notes or not self._is_asked
        nothing = () if silent else (_NOTHING,)
        self.notes = (*untried_note(), *breaks, *session.notes, *nothing)

    def _undo(self) -> None:
        for module in self._compiled:
            module._compiled_call_impl = None
        self._compiled.clear()


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage inside the block. Graphs live until its end, and searching them for
    garbage again and again takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Session:
    """The compilations of one trace."""

    def __init__(self, target: CompileTarget, recorder: OpRecorder, mode: FakeTensorMode) -> None:
        self._target = target
        self._recorder = recorder
        self._mode = mode
        self._devices = CompilerDevices()
        self._depth = 0
        self._frame: Any = None
        self._compiled = 0
        """How many graphs were compiled."""
        self.notes: dict[str, None] = {}
        self._graphs_before = dynamo.graph_count()

    @property
    def has_graphs(self) -> bool:
        """Whether the compiler has made a graph of any code."""
        return dynamo.graph_count() > self._graphs_before

    @contextmanager
    def outside(self, frame: Any = None) -> Iterator[None]:
        """Run the block as the compiler's code: without modes and hooks, all tensors on the GPU.

        `frame` is the frame that is compiled. None if it is known already.
        """
        if frame is not None:
            self._frame = frame
        if self._depth:
            yield
            return
        self._depth += 1
        try:
            with ExitStack() as stack:
                # The compiler's warnings about the code will appear when it runs on the GPU.
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                stack.enter_context(dynamo.without_traces())
                stack.enter_context(self._devices.shown())
                stack.enter_context(compiling())
                stack.enter_context(_without_collection())
                stack.enter_context(stage(f"compiling graph {self._compiled + 1}"))
                yield
        finally:
            self._depth -= 1

    def notice_error(self, error: BaseException) -> bool:
        """Whether a frame that could not be compiled is to run as it is."""
        if isinstance(error, WavecastError) or dynamo.is_user_error(error):
            return False
        self._note_failure(error)
        return True

    def note_left(self, code: Any) -> None:
        """Note that a function runs as it is, since a graph breaks in a loop of it."""
        line = source_line(code.co_filename, code.co_firstlineno)
        self.notes.setdefault(
            f"{LEFT_EAGER} {code.co_name} at {line} as it is: a graph breaks in a loop of it"
        )

    def _note_failure(self, error: BaseException) -> None:
        line = failing_line(error)
        message = str(error).strip().split("\n")[0][:200] or type(error).__name__
        where = user_line() if line == "an unknown line" else line
        self.notes.setdefault(
            f"{NOT_FOLLOWED} {where} ({type(error).__name__}: {message}); "
            "this code was traced as eager PyTorch"
        )

    def compile(self, gm: Any, inputs: Sequence[Any], **options: Any) -> Any:
        """What runs instead of a graph of Dynamo's."""
        root, roots = self._recorder.structure.place()[1], dict[str, str]()
        if not root:
            modules = dynamo.modules_of(gm, self._frame)
            roots = {s: self._recorder.structure.path_of(m) for s, m in modules.items()}
        options, is_tuned = inductor.untuned(options)
        if is_tuned:
            self.notes.setdefault(_AUTOTUNED)
        compile_inner = partial(self._compile_inner, root, roots)
        try:
            with shortcuts.taken(tuple(shortcuts.SHORTCUTS)):
                compiled = inductor.inductor(gm, inputs, compile_inner, **options)
        except WavecastError:
            raise
        except Exception as error:
            if dynamo.is_restart(error):
                raise
            self._note_failure(error)
            return gm.forward
        return self._falling_back(compiled, gm.forward)

    def _falling_back(self, compiled: Any, eager: Any) -> Any:
        """A compiled graph, which runs as eager code from the first call on that fails."""
        is_followed = True

        def run(*args: Any) -> Any:
            nonlocal is_followed
            if is_followed:
                self._recorder.mark(GUARDS)
                try:
                    return compiled(*args)
                except WavecastError:
                    raise
                except Exception as error:
                    self._note_failure(error)
                    is_followed = False
            return eager(*args)

        return run

    def _compile_inner(
        self,
        root: str,
        roots: dict[str, str],
        gm: Any,
        inputs: Sequence[Any],
        *,
        is_backward: bool = False,
        is_inference: bool = False,
        cudagraphs: Any = None,
        **_options: Any,
    ) -> Any:
        is_symbolic = has_symbols(inputs)

        def run_for(given: Sequence[Any]) -> GraphRun:
            # A symbolic graph is lowered again for other sizes, and lowering changes it.
            graph = copy.deepcopy(gm) if is_symbolic else gm
            with self.outside():
                plan = self._plan(graph, given, roots, is_backward, is_inference)
                if not is_backward:
                    inductor.report_strides(plan.results)
            self._compiled += 1
            in_optimizer = is_inference and all(_OPTIMIZERS in s.line for s in plan.steps if s.line)
            return GraphRun(
                plan,
                self._recorder,
                self._mode,
                root,
                phase=Phase.OPTIMIZER if in_optimizer else None,
                is_replayed=bool(cudagraphs),
                is_forward=not is_backward and not is_inference,
            )

        run = run_for(inputs)
        return SizedRun(run_for, {sizes_of(inputs): run}) if is_symbolic else run

    def _plan(
        self,
        gm: Any,
        inputs: Sequence[Any],
        roots: dict[str, str],
        is_backward: bool,
        is_inference: bool,
    ) -> GraphPlan:
        """The plan of a graph: one that an earlier trace has made, or a new one."""
        options = is_backward, is_inference
        key = key_of(gm, inputs, roots, *options, asdict(self._target))
        plan = None if key is None else stored_plan(key)
        if plan is None:
            graph = inductor.lowered(gm, inputs, *options)
            with inductor.handling(graph):
                plan = Planner(graph, self._target.sm_count, roots).plan(is_inference)
            if key is not None:
                store_plan(key, plan)
        return plan


# Graph breaks: where the compiler gives up, and code runs as it was written.


_EXPLANATION = re.compile(r"Explanation:\s*(.+)")
_MORE = re.compile(r"\s+\(?(has_kwargs|with argument types).*")
_FOLDER = re.compile(r"(?<=`)/(?:[^`\s]*/)?(?=[^/`\s]+`)")
"""The folder of a file that a reason names: notes do not tell of the machine."""

_OUR_OWN = "ModuleCalls.watched"
"""The function through which a script's modules are called here, and on a GPU are not."""
_MEANING = {
    "capture/flex_attention.py": (
        "flex_attention is traced as one kernel between two graphs, which a GPU does not separate"
    ),
    "TracedLogger": "DistributedDataParallel calls its logger",
    "generic_jump": "a branch depends on the values of a tensor",
    "_local_scalar_dense": "a value is read from the GPU",
}


def breaks_as_notes(breaks: Iterable[tuple[str, list[Any]]]) -> list[str]:
    """One note for each line of the user's code at which a graph ends, and the reason.

    The compiler's reasons come with the frames of the user's code.
    """
    notes: dict[str, None] = {}
    explained = set()
    # A break in a library's function is seen there, too, after the line that called it.
    for reason, frames in breaks:
        if _OUR_OWN in reason:
            continue
        text = _reason(reason)
        if any(is_users(frame.filename) for frame in frames) or text not in explained:
            notes.setdefault(f"torch.compile: graph break at {_line(frames)}: {text}")
        explained.add(text)
    return list(notes)


def _line(frames: list[Any]) -> str:
    """The innermost line of the user's code; that of a library if there is none."""
    for frame in reversed(frames):
        if is_users(frame.filename):
            return line_of(frame.filename, frame.lineno)
    return source_line(frames[-1].filename, frames[-1].lineno) if frames else "an unknown line"


def _reason(text: str) -> str:
    """The reason in one sentence. Torch explains at length, and adds hints for its developers."""
    for word, meaning in _MEANING.items():
        if word in text:
            return meaning
    explained = _EXPLANATION.search(text)
    sentence = explained[1] if explained else text.strip().split("\n")[0]
    return _FOLDER.sub("", _MORE.sub("", sentence)).strip().rstrip(".")


# Compiled graphs as they run in a traced step: they record their kernels and compute nothing.


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
        for name, spec in self.plan.constants.items():
            if name not in self._constants:
                self._constants[name] = self._empty(spec)
        tensors |= self._constants
        # Torch compiles once what layers that are alike run.
        root = self._recorder.structure.place()[1]
        if _NUMBER.sub("#", root) != _NUMBER.sub("#", self._root):
            root = self._root
        with self._recorder.graph():
            self._recorder.mark(CALL, inputs=len(self.plan.inputs))
            if self._is_replayed:
                self._recorder.mark(GRAPH_LAUNCH)
            for step in self.plan.steps:
                self._run(step, tensors, root)
        return [self._result(result, tensors) for result in self.plan.results]

    def _run(self, step: PlanStep, tensors: dict[str, Any], root: str) -> None:
        allocated, replaced, early = [], {}, {}
        for buffer in step.buffers:
            if buffer.name in tensors:  # the kernel of another step has written it
                early[buffer.name] = tensors[buffer.name]
            source = tensors.get(buffer.source) if buffer.source else None
            tensors[buffer.name] = self._allocate(buffer, source)
            if source is None and buffer.spec.device == "cuda":
                allocated.append(tensors[buffer.name])
            elif not buffer.is_shared:
                replaced[buffer.name] = str(buffer.source)
        for planned in step.ops:
            if not on_host(planned.op):
                run = self._kernel(planned, step, tensors, root)
                renewed = [tensors[w.buffer] for w in planned.writes if w.buffer in replaced]
                self._recorder.emit(run, allocated, renewed)
        for tensor in allocated:  # no kernel may run where memory is only set aside
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
        places = []
        for operand, spec in zip(operands, specs, strict=True):
            name = self._name(operand.buffer, tensors)
            if name not in tensors:  # scratch memory of a kernel, or allocated by a later step
                tensors[name] = self._empty(spec)
            places.append((tensors[name], tensors[name].storage_offset() + operand.offset))
        return places

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


class SizedRun:
    """A graph that torch compiled once for several sizes: for each it has kernels of its own."""

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
