"""The function that traces a training step, written for CUDA, on a machine without a GPU."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from wavecast.errors import CaptureError, InvalidInput, WavecastError
from wavecast.frameworks.pytorch.capture.autocast import cuda_autocast
from wavecast.frameworks.pytorch.capture.bitsandbytes_ops import bitsandbytes_on_cuda
from wavecast.frameworks.pytorch.capture.kernels import all_iterations, cuda_kernels
from wavecast.frameworks.pytorch.capture.placement import Placement
from wavecast.frameworks.pytorch.capture.pretended.machine import cuda_machine
from wavecast.frameworks.pytorch.capture.pretended.threads import TracedThreads, one_trace_at_a_time
from wavecast.frameworks.pytorch.capture.ranks import RankPlace, one_rank
from wavecast.frameworks.pytorch.capture.tensor_methods import (
    OutsideTensors,
    fake_subclasses,
    gpu_tensors,
    numbered_devices,
)
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions, Given, GivenValues
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder, Recording
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.frameworks.pytorch.recording.switches import switches_restored
from wavecast.frameworks.pytorch.recording.user_lines import (
    failing_line,
    failures_explained,
    user_line,
)
from wavecast.frameworks.replacements import replacing
from wavecast.hardware.devices import DEFAULT_CAPABILITY, Device
from wavecast.traces.step import Trace

_UNTRACEABLE = (UnsupportedFakeTensorException, UnsupportedOperatorException)
_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")
_ON_REAL_GPU = "with arguments from the 'CUDA' backend"


class Compiler(Protocol):
    """What compiles the code of a step that calls torch.compile."""

    def properties(self) -> Mapping[str, Any]:
        """What the compiler asks of the GPU, by the names of torch's device properties."""
        ...

    def active(self, recorder: OpRecorder, mode: FakeTensorMode) -> AbstractContextManager[None]:
        """Compile what the step compiles, inside the block."""
        ...

    def rewrite(self, recorder: OpRecorder) -> bool:
        """Compile more of the step after its first call; whether anything was compiled."""
        ...


def capture(
    make_step: Callable[[], Callable[[], Any]],
    *,
    capability: tuple[int, int] | None = None,
    samples: int | None = None,
    unit: str = "samples",
    warm_up: int | None = None,
    progress: Callable[[int], None] | None = None,
    assume: Mapping[str, Given] | None = None,
    ranks: int | None = None,
    rank: int = 0,
    compiler: Compiler | None = None,
    stops_at_compile: bool = False,
) -> Trace:
    """The trace of one training step.

    Args:
        make_step: builds model, optimizer and inputs, and returns the function of one step.
        capability: the compute capability whose attention kernels to choose.
        samples: how many samples (or other `unit`) the step consumes.
        unit: what `samples` counts.
        warm_up: how many steps to run before the recorded one. None for one, which creates the
            optimizer's state, and with `ranks` a second, which rebuilds DDP's buckets.
        progress: called with the number of ops recorded so far.
        assume: values and sizes that depend on data, by `FILE:LINE`.
        ranks: how many ranks the step's own parallel code has. None for code that starts none.
        rank: the rank whose step is traced.
        compiler: compiles what the step compiles. None to run it as it was written.
        stops_at_compile: whether to raise CompilesCode where a step compiles, without a compiler.
    """
    place = None if ranks is None and not rank else RankPlace(1 if ranks is None else ranks, rank)
    warm_up = warm_up if warm_up is not None else 1 if place is None else 2
    capability = DEFAULT_CAPABILITY if capability is None else capability
    _check_arguments(make_step, capability, samples, warm_up)
    assumptions = Assumptions(GivenValues(assume), stops_at_compile)
    recorder = OpRecorder(Structure())
    with pretending(capability, recorder, assumptions, place, compiler) as threads, explaining():
        step = _made(make_step)
        call = partial(_call, step, assumptions, threads)
        before = _warmed_up(call, warm_up, recorder, compiler)
        assumptions.notes.clear()
        recorder.on_call = progress
        with recorder.step(), (recorded := StepWatch()).watch(recorder):
            call()
        recording = _not_empty(recorder.recording())
        assumptions.given.check_used()
        for note in check(recorded, before):
            assumptions.note(note)
        assumptions.note_machine()
        del step, call
    return Trace(
        **vars(recording),
        framework=f"torch {torch.__version__.split('+')[0]}",
        capability=capability,
        samples=samples,
        unit=unit,
        notes=tuple(assumptions.notes),
        asks_capability=assumptions.asks_capability,
    )


def _check_arguments(make_step: Any, capability: Any, samples: Any, warm_up: Any) -> None:
    if isinstance(make_step, torch.nn.Module) or not callable(make_step):
        raise InvalidInput(
            f"make_step is a {type(make_step).__name__}; it must be a function that builds model, "
            "optimizer and inputs and returns the function that runs one step"
        )
    if not (isinstance(capability, tuple) and [type(n) for n in capability] == [int, int]):
        raise InvalidInput(f"capability is {capability!r}; it must be a pair such as (9, 0)")
    if samples is not None and not (isinstance(samples, int) and samples > 0):
        raise InvalidInput(f"samples is {samples!r}; it must be a whole number of at least 1")
    if not (isinstance(warm_up, int) and warm_up >= 0):
        raise InvalidInput(f"warm_up is {warm_up!r}; it must be a whole number of at least 0")


def _made(make_step: Callable[[], Any]) -> Any:
    step = make_step()
    if not callable(step):
        raise CaptureError(
            f"make_step returned an object of type {type(step).__name__}, not a function; it must "
            "build model, optimizer and inputs and return the function that runs one step"
        )
    return step


def _call(step: Callable[[], Any], assumptions: Assumptions, threads: TracedThreads) -> None:
    assumptions.given.begin()
    step()
    threads.settle()


def _warmed_up(
    call: Callable[[], None], times: int, recorder: OpRecorder, compiler: Compiler | None
) -> StepWatch | None:
    """Call a step before it is recorded, and return what the last call did, if there was one."""
    before = None
    for _ in range(times):
        before = StepWatch()
        with recorder.structure.watch(), before.watch(recorder):
            call()
    if compiler is not None and compiler.rewrite(recorder):
        with recorder.structure.watch():
            call()
        return None  # that call compiled what the recorded one runs
    return before


def _not_empty(recording: Recording) -> Recording:
    if not recording.calls:
        raise CaptureError(
            "the step ran no op on the GPU; move the model and its inputs there (model.cuda(), "
            'device="cuda"), as for training; if your code chooses the device, let it do so inside '
            "make_step, where torch.cuda.is_available() is true"
        )
    return recording


@contextmanager
def pretending(
    capability: tuple[int, int],
    recorder: OpRecorder,
    assumptions: Assumptions,
    place: RankPlace | None = None,
    compiler: Compiler | None = None,
    gpu: Device | None = None,
) -> Iterator[TracedThreads]:
    """Run the block with fake tensors, as if on a machine with a CUDA GPU.

    It yields the threads that take part in the trace. The user's code sees the GPU that is given.
    """
    threads = TracedThreads()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    fake.cache_enabled = False  # Placement has a faster cache
    fake._allow_unsafe_data_ptr_access = False  # raise an error instead of giving a null pointer
    placement = Placement(assumptions, recorder, fake, threads)
    outside = OutsideTensors(placement.host)
    recorder.structure.adopt = outside.optimizer
    recorder.structure.follows = threads.traced
    with ExitStack() as stack:
        stack.enter_context(one_trace_at_a_time(threads))
        # Torch keeps a replaced kernel, and with it the recorder, until it is replaced again.
        stack.callback(recorder.structure.forget)
        stack.enter_context(switches_restored())
        stack.enter_context(fake_subclasses())
        stack.enter_context(numbered_devices())
        stack.enter_context(bitsandbytes_on_cuda(assumptions))
        stack.enter_context(cuda_kernels(capability, recorder, assumptions))
        stack.enter_context(cuda_autocast())
        stack.enter_context(all_iterations(assumptions))
        is_ranked = place is not None
        properties = None if compiler is None else compiler.properties()
        shown = (is_ranked, properties, gpu)
        machine = cuda_machine(capability, recorder, assumptions, outside, *shown)
        stack.enter_context(machine)
        # Torch warns that global hooks also see the wrapper of a compiled module. That is fine.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        # Errors of fake tensors are raised, so they need not be logged, too.
        stack.callback(_FAKE_LOG.setLevel, _FAKE_LOG.level)
        _FAKE_LOG.setLevel(logging.CRITICAL)
        if place is not None:
            stack.enter_context(one_rank(place, placement))
        stack.enter_context(fake)
        stack.enter_context(placement)
        stack.enter_context(gpu_tensors(placement, outside))
        stack.enter_context(threads.follow(fake, placement))
        if compiler is not None:
            stack.enter_context(compiler.active(recorder, fake))
        yield threads


@contextmanager
def explaining(what: str = "the step") -> Iterator[None]:
    """Raise any error in the user's code as a CaptureError that names the line."""
    with failures_explained(what):
        try:
            yield
        except WavecastError:
            raise
        except Exception as error:
            _explain_untraceable(error)
            raise


def _explain_untraceable(error: Exception) -> None:
    """Raise a CaptureError if torch's fake tensors could not do what the step does."""
    line = failing_line(error)
    message = str(error).strip().split("\n")[0]
    if isinstance(error, UnsupportedOperatorException):
        message = f"{error.func} has no fake implementation"
    if _ON_REAL_GPU in message:
        raise CaptureError(
            f"a tensor is made on the GPU at {line} in a thread that was started before "
            "tracing; start the thread in make_step or in the step"
        ) from error
    if higher_order := re.search(r"HigherOrderOperator (\w+)", message):
        message = f"{higher_order[1]} has no fake implementation"
    if higher_order or isinstance(error, _UNTRACEABLE) or "no fake impl" in message:
        message = message.split(". ")[0]
        raise CaptureError(
            f"{message} (at {line}), so it cannot be traced without a GPU; for a custom op, "
            "add one with torch.library.register_fake"
        ) from error


# Checks of a traced step: it trains, its calls agree, and its tensors have elements.
#
# A step that does nothing useful can be traced without an error, and its prediction looks like any
# other. What can only be a mistake is an error; what may be intended is a note in the trace.


_NEED_ELEMENTS = frozenset(
    """
    mm addmm bmm baddbmm addbmm mv addmv _grouped_mm _scaled_mm convolution convolution_backward
    embedding embedding_dense_backward _embedding_bag _cudnn_rnn _cudnn_rnn_backward
    """.split()
)
"""Ops, besides attention, that do the work of a step. Without elements they do none."""

_TOLERANCE = 0.05
_FEW_OPS = 4
"""Two calls agree if they differ by these at most: the first call may create what is kept."""


@dataclass
class StepWatch:
    """What one call of a step does."""

    forward: int = 0
    backward: int = 0
    """How many ops ran on the GPU, without those of optimizers."""
    elements: int = 0
    """How many elements their results have."""
    working: int = 0
    """How many ops need tensors with elements,"""
    empty: int = 0
    """and how many of them got a tensor without any."""
    empty_line: str = ""
    trains: bool = False
    """Whether a model ran in training mode, with parameters to train and gradients enabled."""
    optimizer_line: str = ""
    """The line that stepped an optimizer, if any."""
    has_gradients: bool = False
    """Whether an optimizer had a gradient when it stepped."""
    _optimizing: int = field(default=0, repr=False)

    @contextmanager
    def watch(self, recorder: OpRecorder) -> Iterator[None]:
        """Follow the call of the step inside the block."""
        self._follows = recorder.structure.follows
        with (
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            optimizer_hooks.register_optimizer_step_pre_hook(self._enter_optimizer),
            optimizer_hooks.register_optimizer_step_post_hook(self._leave_optimizer),
            replacing() as replace,
        ):
            replace(recorder, on_op=self._count)
            yield

    def restart(self) -> StepWatch:
        """What was done so far. From here on, a new step is counted."""
        done = copy(self)
        for name, value in vars(StepWatch(_optimizing=self._optimizing)).items():
            setattr(self, name, value)
        return done

    def add(self, other: StepWatch) -> None:
        """Count what another part of the same step did."""
        self.forward += other.forward
        self.backward += other.backward
        self.elements += other.elements
        self.working += other.working
        self.empty += other.empty
        self.empty_line = self.empty_line or other.empty_line
        self.trains = self.trains or other.trains
        self.optimizer_line = self.optimizer_line or other.optimizer_line
        self.has_gradients = self.has_gradients or other.has_gradients

    def _count(self, func: Any, args: tuple[Any, ...], returned: list[Any]) -> None:
        if not any(tensor.is_cuda for tensor in returned):
            return
        node = torch._C._current_autograd_node()
        if self._optimizing and node is None:
            return
        if node is None:
            self.forward += 1
        elif node.name() == "torch::autograd::AccumulateGrad":
            return  # it adds gradients, but not the first ones
        else:
            self.backward += 1
        self.elements += sum(tensor.numel() for tensor in returned)
        if func is not None and _needs_elements(func):
            self.working += 1
            if any(isinstance(a, torch.Tensor) and a.numel() == 0 for a in args[:3]):
                self.empty += 1
                self.empty_line = self.empty_line or user_line()

    def _enter_module(self, module: Any, _args: Any) -> None:
        if not self.trains and module.training and torch.is_grad_enabled() and self._follows():
            self.trains = any(p.requires_grad for p in module.parameters(recurse=False))

    def _enter_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._follows():
            self._optimizing += 1
            self.optimizer_line = self.optimizer_line or user_line()
            self._notice_gradients(optimizer)

    def _leave_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._follows():
            self._optimizing -= 1
            self._notice_gradients(optimizer)  # a closure may have made them

    def _notice_gradients(self, optimizer: Any) -> None:
        self.has_gradients = self.has_gradients or any(
            parameter.grad is not None or getattr(parameter, "main_grad", None) is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        )


@cache
def _needs_elements(func: Any) -> bool:
    name = str(func._schema.name).rpartition("::")[2]
    return name in _NEED_ELEMENTS or "attention" in name


def check(recorded: StepWatch, before: StepWatch | None) -> list[str]:
    """The notes about a step. What can only be a mistake is an error.

    Args:
        recorded: the call that was recorded.
        before: the call before it. None if there was none.
    """
    notes = [_empty(recorded), _training(recorded)]
    if before is not None:
        notes.append(_difference(before, recorded))
    return [note for note in notes if note]


def _empty(step: StepWatch) -> str:
    if not step.empty:
        return ""
    share = f"{step.empty} of {step.working} matmuls, convolutions, lookups and attention ops"
    if 2 * step.empty > step.working:
        raise CaptureError(
            f"{share} of the step get tensors without elements, the first at {step.empty_line}; "
            "check the sizes of the batch"
        )
    return f"{share} get tensors without elements, the first at {step.empty_line}"


def _training(step: StepWatch) -> str:
    if step.optimizer_line and not step.has_gradients:
        raise CaptureError(
            f"the optimizer that steps at {step.optimizer_line} has no gradient for any of its "
            "parameters; call backward() before, on a loss that depends on them"
        )
    if step.backward:
        return ""
    if step.optimizer_line:
        return (
            f"an optimizer steps at {step.optimizer_line}, but the recorded call of the step has "
            "no backward pass"
        )
    if step.trains:
        return (
            "the step runs a model in training mode but has no backward pass; call model.eval() or "
            "use torch.no_grad() if it is meant to be inference"
        )
    return ""


def _difference(first: StepWatch, second: StepWatch) -> str:
    if _differ(first.forward, second.forward) or _differ(first.backward, second.backward):
        return (
            f"the recorded call of the step ran {second.forward} forward and {second.backward} "
            f"backward ops, but the call before ran {first.forward} and {first.backward}; only the "
            "recorded one is predicted"
        )
    if abs(first.elements - second.elements) > _TOLERANCE * max(first.elements, second.elements):
        return (
            f"the results of the recorded call of the step have {second.elements:,} elements, but "
            f"those of the call before have {first.elements:,}; only the recorded one is predicted"
        )
    return ""


def _differ(first: int, second: int) -> bool:
    return abs(first - second) > max(_FEW_OPS, _TOLERANCE * max(first, second))
