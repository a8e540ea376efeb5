"""Releases of torch: which ones were tried with compiled steps, and what another one lacks."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable

import torch
import torch._dynamo

#
# Tracing compiled code needs private interfaces of torch, and these change from release to
# release. They are used in `dynamo.py`, `inductor.py` and `buffer_plan.py` only, and all of them
# are listed here. The functions that `shortcuts.py` stands in for need not be there
# (`shortcuts.py`).


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
