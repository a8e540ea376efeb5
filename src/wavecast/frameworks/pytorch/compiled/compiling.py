"""The compiler of a traced step: what torch.compile would make of its code on the target GPU."""

from __future__ import annotations

import copy
import functools
import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wavecast.errors import WavecastError
from wavecast.frameworks.pytorch.capture.places import compiling
from wavecast.frameworks.pytorch.capture.replacements import replacing
from wavecast.frameworks.pytorch.compiled import (
    dynamo,
    inductor,
    quick_fakes,
    quick_fusion,
    quick_graphs,
    quick_sizes,
    quick_structures,
    shortcuts,
)
from wavecast.frameworks.pytorch.compiled.fake_devices import CompilerDevices
from wavecast.frameworks.pytorch.compiled.graph_breaks import breaks_as_notes
from wavecast.frameworks.pytorch.compiled.graph_plan import plan_of
from wavecast.frameworks.pytorch.compiled.plan_keys import has_symbols, key_of, sizes_of
from wavecast.frameworks.pytorch.compiled.plan_store import store_plan, stored_plan
from wavecast.frameworks.pytorch.compiled.plans import GraphPlan
from wavecast.frameworks.pytorch.compiled.releases import untried_note
from wavecast.frameworks.pytorch.compiled.running import GraphRun, SizedRun
from wavecast.frameworks.pytorch.compiled.target import CompileTarget
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import (
    failing_line,
    source_line,
    user_line,
)
from wavecast.frameworks.stages import stage
from wavecast.traces.graphs import GUARDS, LEFT_EAGER, NOT_FOLLOWED
from wavecast.traces.step import Phase

SHORTCUTS = (
    *(*quick_structures.SHORTCUTS, *quick_sizes.SHORTCUTS),
    *(*quick_fakes.SHORTCUTS, *quick_graphs.SHORTCUTS, *quick_fusion.SHORTCUTS),
)
"""What makes the work on a graph quicker, with equal results."""

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

    Args:
        target: the GPU.
        everything: whether to compile the modules that the step calls, too, if it compiles none;
            or the mode of torch.compile in which to do so.
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
            replacing(stack)(torch, compile=self._noticing(torch.compile))
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
            with shortcuts.taken(SHORTCUTS):
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
                plan = plan_of(graph, self._target.sm_count, is_inference, roots)
            if key is not None:
                store_plan(key, plan)
        return plan
