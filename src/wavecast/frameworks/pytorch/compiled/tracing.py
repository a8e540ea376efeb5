"""The function that traces a training step, with the code that it compiles."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch._dynamo

from wavecast.errors import WavecastError
from wavecast.frameworks.pytorch.capture.pretended.machine import CompilesCode
from wavecast.frameworks.pytorch.capture.tracing import capture as capture_plain
from wavecast.frameworks.pytorch.compiled.target import OLDEST, target_of
from wavecast.hardware.devices import DEFAULT_CAPABILITY, Device, family
from wavecast.traces.graphs import NOT_COMPILED
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.compiled.compiling import StepCompiler


Traced = TypeVar("Traced")


def capture(
    make_step: Callable[[], Callable[[], Any]],
    *,
    gpu: Device | None = None,
    capability: tuple[int, int] | None = None,
    compiled: bool | str = False,
    **options: Any,
) -> Trace:
    """The trace of one training step on a GPU that is not there.

    What the step compiles is compiled for that GPU, and its kernels are those of the trace.

    Args:
        make_step: builds model, optimizer and inputs, and returns the function of one step.
        gpu: the GPU. None for the usual one of the compute capability.
        capability: the compute capability, if no GPU is given; Hopper's if None.
        compiled: whether to compile the modules that the step calls, as if it had compiled them;
            or the mode of torch.compile in which to do so.
        options: further arguments of `capture.tracing.capture`.
    """
    if gpu is not None:
        capability = family(gpu)
    options["capability"] = capability
    if not compiled:
        try:
            return capture_plain(make_step, stops_at_compile=True, **options)
        except CompilesCode:
            pass  # the compiler is slow to load, and most steps do not need it
    compiler, reason = compiler_for(gpu, capability, compiled)
    trace, why = followed(lambda c: capture_plain(make_step, compiler=c, **options), compiler)
    return with_notes(trace, None if why else compiler, why or reason)


def followed(
    attempt: Callable[[StepCompiler | None], Traced], compiler: StepCompiler | None
) -> tuple[Traced, str]:
    """What a trace with a compiler gives; or one without, and why, if torch's compiler fails.

    The compiler's interfaces are private to torch, so any error may come from there. An error of
    the user's code occurs without the compiler, too, or is one that a GPU would raise.
    """
    try:
        return attempt(compiler), ""
    except Exception as error:
        why = why_not_followed(error, compiler)
        if not why:
            raise
    return attempt(None), why


class NotFollowed(BaseException):
    """Torch's compiler failed on a script; the text says how. No script catches it."""


def why_not_followed(error: Exception, compiler: StepCompiler | None) -> str:
    """How torch's compiler failed; empty if the error is not its own."""
    if compiler is None or _is_meant(error):
        return ""
    cause = error.__cause__ or error
    message = str(cause).strip().split("\n")[0][:200]
    return f"torch.compile could not be followed ({type(cause).__name__}: {message})"


def _is_meant(error: Exception) -> bool:
    """Whether an error was written for the user, or is one that a GPU would raise, too."""
    from wavecast.frameworks.pytorch.compiled.dynamo import is_user_error

    if error.__cause__ is None:
        return isinstance(error, WavecastError)
    return is_user_error(error.__cause__)


def with_notes(trace: Trace, compiler: StepCompiler | None, reason: str = "") -> Trace:
    """A trace with what was noticed while compiling, or why nothing was compiled."""
    notes = () if compiler is None else compiler.notes
    if reason:
        notes = (*notes, f"{NOT_COMPILED}: {reason}")
    return replace(trace, notes=(*trace.notes, *notes)) if notes else trace


def compiler_for(
    gpu: Device | None, capability: tuple[int, int] | None, compiled: bool | str
) -> tuple[StepCompiler | None, str]:
    """The compiler for a GPU, or None and the reason why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch uses parts of its own that are deprecated
        why = why_unsupported()
        if why:
            return None, why
        from wavecast.frameworks.pytorch.compiled.compiling import StepCompiler
    capability = DEFAULT_CAPABILITY if capability is None else capability
    if capability < OLDEST:
        return None, "Triton has no kernels for GPUs before compute capability 7.0"
    return StepCompiler(target_of(gpu, capability), compiled), ""


# Tracing compiled code needs private interfaces of torch, and these change from release to
# release. All of them are listed here. What `shortcuts.py` stands in for need not be there.


OLDEST_TORCH, NEWEST_TORCH = (2, 9), (2, 15)
"""The oldest and the newest release with which compiled steps were tried."""
TRIED = "torch 2.9 to 2.13 and 2.15"
"""All of them (docs/compatibility.md)."""

REQUIRED = tuple(
    """
    torch._C._dynamo:guards
    torch._dispatch.python:enable_python_dispatcher
    torch._dynamo:exc.RestartAnalysis
    torch._dynamo:exc.Unsupported
    torch._dynamo:exc.UserError
    torch._dynamo.convert_frame:CatchErrorsWrapper
    torch._dynamo.device_interface:CudaInterface
    torch._dynamo.device_interface:caching_worker_device_properties
    torch._dynamo.eval_frame:OptimizedModule._initialize
    torch._dynamo.external_utils:wrap_inline
    torch._dynamo.guards:CheckFunctionManager
    torch._dynamo.output_graph:OutputGraph.call_user_compiler
    torch._dynamo.output_graph:graph_break_reasons
    torch._dynamo.symbolic_convert:InstructionTranslatorBase
    torch._dynamo.trace_rules:SKIP_DIRS
    torch._dynamo.trace_rules:get_torch_obj_rule_map
    torch._dynamo.types:ConvertFrameReturn
    torch._dynamo.utils:counters
    torch._dynamo.utils:run_node
    torch._functorch.config:patch
    torch._functorch.partitioners:functionalize_rng_ops
    torch._guards:TracingContext
    torch._guards:tracing
    torch._inductor.async_compile:AsyncCompile.wakeup
    torch._inductor.choices:InductorChoices
    torch._inductor.codegen.common:Kernel
    torch._inductor.codegen.wrapper:AllocateLine
    torch._inductor.codegen.wrapper:FreeIfNotReusedLine
    torch._inductor.codegen.wrapper:FreeLine
    torch._inductor.codegen.wrapper:PythonWrapperCodegen.run_wrapper_ir_passes
    torch._inductor.codegen.wrapper:ReinterpretLine
    torch._inductor.codegen.wrapper:ReuseLine
    torch._inductor.compile_fx:_recursive_post_grad_passes
    torch._inductor.compile_fx:_recursive_record_original_output_strides
    torch._inductor.compile_fx:compile_fx
    torch._inductor.compile_fx:view_to_reshape
    torch._inductor.config:patch
    torch._inductor.debug:DebugContext
    torch._inductor.decomposition:select_decomp_table
    torch._inductor.fx_passes.joint_graph:lazy_init
    torch._inductor.fx_passes.pad_mm:get_alignment_size
    torch._inductor.fx_passes.pad_mm:get_padded_length
    torch._inductor.fx_passes.pad_mm:has_triton
    torch._inductor.fx_passes.pad_mm:is_mm_compute_bound
    torch._inductor.fx_passes.pad_mm:should_exclude_padding_time
    torch._inductor.fx_passes.post_grad:lazy_init
    torch._inductor.fx_passes.reinplace:_inplace_generalized_scatter
    torch._inductor.fx_passes.reinplace:inplaceable_ops
    torch._inductor.fx_utils
    torch._inductor.graph:GraphLowering._update_scheduler
    torch._inductor.graph:GraphLowering.init_wrapper_code
    torch._inductor.ir
    torch._inductor.pattern_matcher
    torch._inductor.runtime.hints:DeviceProperties.create
    torch._inductor.scheduler:Scheduler.compute_last_usage
    torch._inductor.scheduler:has_triton
    torch._inductor.sizevars:SizeVarAllocator
    torch._inductor.utils:get_device_tflops
    torch._inductor.utils:get_gpu_dram_gbps
    torch._inductor.virtualized:V
    torch._subclasses.fake_tensor:FakeTensor
    torch._subclasses.fake_tensor:FakeTensorMode.dispatch
    torch._subclasses.fake_tensor:unset_fake_temporarily
    torch.fx.passes.fake_tensor_prop:FakeTensorProp
    torch.utils:_config_module
    torch.utils:_pytree
    torch.utils._mode_utils:no_dispatch
    torch.utils._ordered_set:OrderedSet
    torch.utils._python_dispatch:_disable_current_modes
    """.split()
)
"""What is needed of torch: modules, and names in them."""


def missing(required: Iterable[str] = REQUIRED) -> list[str]:
    """The names that the installed torch does not have."""
    return [name.replace(":", ".") for name in required if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def why_unsupported() -> str:
    """Why compiled steps cannot be traced with the installed torch; empty if they can."""
    if _version() < OLDEST_TORCH:
        return f"torch {torch.__version__} is too old for it; {TRIED} were tried"
    absent = missing()
    if absent:
        return f"torch {torch.__version__} lacks {', '.join(absent)}; {TRIED} were tried"
    return ""


def untried_note() -> tuple[str, ...]:
    """A note if the installed torch is newer than all that were tried; else none."""
    if _version() <= NEWEST_TORCH:
        return ()
    return (
        f"torch.compile: torch {torch.__version__} is newer than the releases with which compiled "
        f"steps were tried ({TRIED})",
    )


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
