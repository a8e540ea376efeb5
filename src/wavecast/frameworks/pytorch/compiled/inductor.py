"""Torch's compiler without a GPU: the private interfaces of Inductor that we use.

Inductor lowers a graph and schedules its kernels as it would for the target GPU. Nothing is
generated, built or run. The interfaces change from release to release (`releases.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import device_interface
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._guards import TracingContext
from torch._inductor import async_compile, compile_fx, scheduler
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad, reinplace
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch

from wavecast.frameworks.pytorch.capture.fake_ops import in_layout
from wavecast.frameworks.pytorch.capture.kernels import aten_kernels
from wavecast.frameworks.pytorch.capture.values.places import CPU, GPU, ON_HOST, place_of, suggested
from wavecast.frameworks.pytorch.compiled.dynamo import REAL_DEVICES, share_memory
from wavecast.frameworks.pytorch.compiled.plans import PlannedResult
from wavecast.frameworks.pytorch.compiled.target import CompileTarget, Operand, is_faster_padded
from wavecast.frameworks.replacements import replacing

_aten = torch.ops.aten

InnerCompile = Callable[..., Any]
"""The function that compiles one graph: its module, its inputs and torch's options."""


@contextmanager
def compiler_on(
    target: CompileTarget, compile_graph: Callable[..., Any], on_padded: Callable[[], None]
) -> Iterator[None]:
    """Let torch compile for a GPU that is not there.

    Args:
        target: the GPU.
        compile_graph: called instead of Inductor with a graph of Dynamo's, its inputs and the
            options of the compilation.
        on_padded: called when a matmul is padded, which torch would try on the GPU.
    """
    properties = SimpleNamespace(
        name="the target",
        major=target.capability[0],
        minor=target.capability[1],
        total_memory=target.memory_bytes,
        **target.properties(),
    )
    capability = 10 * target.capability[0] + target.capability[1]
    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        answers = {
            "get_device_properties": staticmethod(lambda device=None: properties),
            "current_device": staticmethod(lambda: 0),
            "set_device": staticmethod(lambda device: None),
        }
        interface = device_interface.CudaInterface
        replace(interface.Worker, **answers)
        replace(interface, **answers)
        replace(
            interface,
            is_available=staticmethod(lambda: True),
            device_count=staticmethod(lambda: 1),
            get_compute_capability=staticmethod(lambda device=None: capability),
            raise_if_triton_unavailable=staticmethod(lambda device=None: None),
        )
        _forget_devices()
        stack.callback(_forget_devices)
        replace(
            inductor_utils,
            get_device_tflops=lambda dtype: target.flops_of(_precision(dtype)) / 1e12,
            get_gpu_dram_gbps=lambda: target.memory_bytes_per_s / 1e9,
        )
        for module in (scheduler, pad_mm):  # both have imported it
            replace(module, has_triton=lambda *_: True)
        _replace_passes(replace, target, on_padded)
        replace(compile_fx, compile_fx=compile_graph)
        stack.enter_context(_configured())
        stack.enter_context(aten_kernels("CUDA", _FACTORIES))
        yield


def _replace_passes(
    replace: Callable[..., None], target: CompileTarget, on_padded: Callable[[], None]
) -> None:
    """Replace what passes over a graph would do on the GPU."""
    # The patterns are traced once, with small tensors, which cannot be made on the GPU.
    for module in (joint_graph, post_grad):
        replace(module, lazy_init=functools.partial(_on_cpu, module.lazy_init))
    replace(async_compile.AsyncCompile, wakeup=classmethod(lambda cls: None))
    for name in ("_should_pad", "should_pad_bench"):
        if hasattr(pad_mm, name):
            replace(pad_mm, **{name: _padding(target, on_padded)})
    # Recomputed ops draw the same random numbers again, for which torch would restore the state of
    # the GPU's generator. There is no generator here, and the kernels are the same without it.
    replace(partitioners, functionalize_rng_ops=lambda joint, ahead, back, *_: (ahead, back))
    # A pass copies fake tensors of the GPU, for which torch's CPU build has no code. Torch
    # finds the function under both names, and compares what it finds.
    replace(
        reinplace,
        _inplace_generalized_scatter=_written,
        inplaceable_ops={
            op: dataclasses.replace(way, inplace_op=_written)
            if way.inplace_op is reinplace._inplace_generalized_scatter
            else way
            for op, way in reinplace.inplaceable_ops.items()
        },
    )


def _written(written: Any, _values: Any, _views: Any) -> Any:
    """The result of writing values into views of a tensor: that tensor."""
    return written


def _on_cpu(init: Callable[..., Any], *_device: Any, **_named: Any) -> Any:
    """Torch's constructor of patterns, on the CPU. Older releases ask for no device."""
    if inspect.signature(init).parameters:
        return init(CPU)
    with replacing() as replace:
        replace(torch.cuda, is_available=lambda: False)
        return init()


def _precision(dtype: Any) -> str:
    """How matmuls of a dtype are computed, under the step's switches."""
    is_tf32 = dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if is_tf32 else str(dtype).removeprefix("torch.")


def _forget_devices() -> None:
    DeviceProperties.create.cache_clear()
    device_interface.caching_worker_device_properties.pop("cuda", None)


@contextmanager
def _configured() -> Iterator[None]:
    """Set the compiler's switches for compiling without code."""
    with ExitStack() as stack:
        for config, values in (
            (functorch_config, {"enable_autograd_cache": False, **_NOT_LAZY}),
            (inductor_config, {"fx_graph_cache": False, "compile_threads": 1}),
        ):
            known = {name: value for name, value in values.items() if hasattr(config, name)}
            stack.enter_context(config.patch(known))
        yield


_NOT_LAZY = {"force_non_lazy_backward_lowering": True}


def _padding(target: CompileTarget, on_padded: Callable[[], None]) -> Callable[..., bool]:
    """What decides whether to pad a matmul whose sizes are not aligned, instead of trying it."""

    def is_worth_it(match: Any, mat1: Any, mat2: Any, *_args: Any, **_kwargs: Any) -> bool:
        m, k, n = (int(size) for size in (*mat1.shape[-2:], mat2.shape[-1]))
        lack_m, lack_k, lack_n = (
            pad_mm.get_padded_length(size, pad_mm.get_alignment_size(mat1)) for size in (m, k, n)
        )
        if not (lack_m or lack_k or lack_n):
            return False
        if not pad_mm.is_mm_compute_bound(m, k, n, mat1.dtype):
            return False
        padded = tuple(
            Operand(
                matrix.numel() * matrix.element_size(),
                pad_mm.should_exclude_padding_time(match, name),
                matrix.is_contiguous(),
            )
            for name, matrix, lacks in (
                ("mat1", mat1, lack_m or lack_k),
                ("mat2", mat2, lack_k or lack_n),
            )
            if lacks
        )
        batch = mat1.numel() // (m * k)
        is_worth = is_faster_padded(target, _precision(mat1.dtype), (batch, m, k, n), padded)
        if is_worth:
            on_padded()
        return is_worth

    return is_worth_it


def _empty(size: Any, dtype: Any = None, **_: Any) -> Any:
    return torch.empty(size, dtype=dtype)


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype)


_FACTORIES = (("empty.memory_format", _empty), ("empty_strided", _empty_strided))
"""What makes plain tensors on the GPU: the compiler folds constants with them."""


def inductor(gm: Any, inputs: Sequence[Any], inner: InnerCompile, **options: Any) -> Any:
    """Torch's own compilation of a graph, with `inner` for the forward and backward graphs."""
    patches = options.pop("config_patches", None) or {}
    with inductor_config.patch(patches):
        # The backward graph may be compiled later.
        patched = inductor_config.patch(patches)(inner) if patches else inner
        return _compile_fx(
            gm, inputs, inner_compile=patched, decompositions=_decompositions(), **options
        )


_compile_fx = compile_fx.compile_fx


_TUNING = ("max_autotune", "max_autotune_gemm", "coordinate_descent_tuning")


def untuned(options: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The options without autotuning on the GPU, and whether there was any."""
    patches = dict(options.get("config_patches") or {})
    is_tuned = any(patches.get(n, getattr(inductor_config, n, False)) for n in _TUNING)
    if is_tuned:
        known = [name for name in _TUNING if hasattr(inductor_config, name)]
        options = {**options, "config_patches": patches | dict.fromkeys(known, False)}
    return options, is_tuned


def _decompositions() -> dict[Any, Any]:
    """Inductor's decompositions. A cast that C++ code asks for leaves the tensor where it is."""
    table = dict(select_decomp_table())
    to_copy = table[_aten._to_copy.default]

    @functools.wraps(to_copy)
    def cast(x: Any, *, device: Any = None, **options: Any) -> Any:
        is_move = device is not None and x.device.type == "cpu" != torch.device(device).type
        return to_copy(x, device=device if is_move else None, **options)

    table[_aten._to_copy.default] = cast
    return table


# The lowering of one graph.


class RealDevices(FakeTensorMode):
    """A mode whose fake tensors are on the devices that they show, as Inductor needs them."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op. Convolutions give the layout that cuDNN gives, which torch would ask."""
        if func is _aten._unsafe_masked_index_put_accumulate.default:
            # Torch would compute it in place, for which its CPU build has no code.
            return super().dispatch(_aten.empty_like.default, types, args[:1], {})
        if func is _aten.convolution.default:
            out = self._convolve(func, types, args, kwargs)
            return in_layout(suggested(args[0], args[1]), out)
        if func is _aten.convolution_backward.default:
            out = self._convolve(func, types, args, kwargs)
            layout = suggested(args[1], args[2])
            return (*(in_layout(layout, tensor) for tensor in out[:2]), *out[2:])
        return super().dispatch(func, types, args, kwargs or {})

    def _convolve(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        source = 0 if func is _aten.convolution.default else 1
        if args[source].dim() == 3 and not args[source].is_contiguous():
            # Torch would make a contiguous copy, for which its CPU build has no code.
            options = {"memory_format": torch.contiguous_format}
            copy = super().dispatch(_aten.empty_like.default, types, args[source:][:1], options)
            args = (*args[:source], copy, *args[source + 1 :])
        with replacing() as replace:
            # With a CUDA build, torch 2.9 asks the driver in order to choose a library.
            replace(torch._C, **dict.fromkeys(_CHOOSE_LIBRARY, lambda *_, **__: None))
            return super().dispatch(func, types, args, kwargs or {})


_CHOOSE_LIBRARY = ("_select_conv_backend", "_conv_determine_backend_memory_format")

setattr(RealDevices, REAL_DEVICES, True)


@torch.no_grad()  # type: ignore[untyped-decorator]
def lowered(gm: Any, given: Sequence[Any], is_backward: bool, is_inference: bool) -> Any:
    """Inductor's graph with its scheduled kernels (`GraphLowering`) for a graph and its inputs."""
    values = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder" and "val" in n.meta]
    fakes = [value for value in values if isinstance(value, FakeTensor)]
    mode = RealDevices(shape_env=fakes[0].fake_mode.shape_env if fakes else None)
    is_changed = _took_sizes(gm, given)
    _put_on_devices(gm, mode)
    inputs = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    compile_fx.view_to_reshape(gm)
    if is_changed:
        FakeTensorProp(gm, mode=mode).propagate_dont_convert_inputs(*inputs)
    with _traced_under(mode), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        compile_fx._recursive_record_original_output_strides(gm)
        compile_fx._recursive_post_grad_passes(gm, is_inference=is_inference)
        graph = GraphLowering(
            gm,
            example_inputs=inputs,
            shape_env=mode.shape_env,
            is_backward=is_backward,
            is_inference=is_inference,
        )
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            graph.run(*inputs)
            graph.init_wrapper_code()
            graph._update_scheduler()
            graph.scheduler.compute_last_usage()
    return graph


@contextmanager
def _traced_under(mode: RealDevices) -> Iterator[None]:
    """Let passes that trace a replacement find this mode, and not that of AOTAutograd.

    In older releases, AOTAutograd's is still active.
    """
    context = TracingContext.try_get()
    before = None if context is None else context.fake_mode
    if context is not None:
        context.fake_mode = mode
    try:
        with unset_fake_temporarily():
            yield
    finally:
        if context is not None:
            context.fake_mode = before


def handling(graph: Any) -> Any:
    """The context in which the attributes of a graph's nodes may be read."""
    return V.set_graph_handler(graph)


def report_strides(results: Sequence[PlannedResult]) -> None:
    """Tell AOTAutograd the strides of the results, for the inputs of the backward graph."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides += [r.strides if r.name is not None else None for r in results]


def _took_sizes(gm: Any, given: Sequence[Any]) -> bool:
    """Give the placeholders the sizes and strides of the inputs; whether any changed: strides in a
    backward graph whose forward graph saved another layout than eager code would, and symbols."""
    changed = False
    nodes = (node for node in gm.graph.nodes if node.op == "placeholder")
    for node, value in zip(nodes, given, strict=True):
        before = node.meta.get("val")
        is_fixed = has_symbols([before]) and not has_symbols([value])
        is_turned = isinstance(before, FakeTensor) and before.stride() != value.stride()
        if is_fixed or is_turned:
            node.meta["val"], changed = value, True
    return changed


def _put_on_devices(gm: Any, mode: RealDevices) -> None:
    """Replace the values in a graph by fake tensors on their true devices."""
    on_device: dict[int, tuple[Any, Any]] = {}

    def convert(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        if id(value) not in on_device:
            device = CPU if place_of(value) == ON_HOST else GPU
            with no_dispatch():
                elements = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="meta"
                )
                share_memory(elements, value)
                on_device[id(value)] = (value, FakeTensor(mode, elements, device))
        return on_device[id(value)][1]

    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _pytree.tree_map(convert, node.meta["val"])
        if isinstance(node.kwargs.get("device"), torch.device):
            # C++ code, which sees the CPU, may have made the tensor.
            node.kwargs = {**node.kwargs, "device": node.meta["val"].device}


# What identifies a graph of the compiler: all that its lowering depends on, as one digest.


_PLAIN = (bool, int, float, complex, str, type(None))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch._ops.OperatorBase)
_UNREAD = frozenset(
    "tensor_meta from_node source_fn_stack fwd_source_fn_stack seq_nr desc output_stack_traces "
    "mutation_region_id".split()
)
"""What a node says of itself that its lowering does not depend on: it repeats the value, or says
where in the making of the graph the node came from."""
_STACKS = ("nn_module_stack", "fwd_nn_module_stack")
_MOST_ELEMENTS = 64
"""Constants of up to this many elements may become part of a kernel."""


class _Unkeyed(Exception):
    """A graph holds something of which we do not know what its lowering makes of it."""


def key_of(gm: Any, inputs: Sequence[Any], *about: Any) -> str | None:
    """The key of a graph with its inputs; None if it has none.

    `about` is what else its lowering depends on: the GPU and options, as plain data.
    """
    digest = hashlib.sha256(_environment().encode())
    try:
        for line in (_switches(), _text(about), _text(inputs), *_lines(gm)):
            digest.update(line.encode(errors="surrogatepass"))
            digest.update(b"\n")
    except _Unkeyed:
        return None
    return digest.hexdigest()


@functools.cache
def _environment() -> str:
    """The programs that decide: torch with sympy, and our reading of what they say."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{torch.__version__} {version('sympy')} {sys.version_info[:2]} {code}"


def _switches() -> str:
    """The state of the process that Inductor reads."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    state = (
        matmul.fp32_precision,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        cudnn.enabled,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    return f"{state} {sorted(inductor_config.get_config_copy().items())}"


def _lines(gm: Any) -> Iterator[str]:
    """The nodes of a graph, one after the other, with what each says of itself."""
    for node in gm.graph.nodes:
        yield f"{node.name} {node.op} {_text(node.target)} {_text(node.args)} {_text(node.kwargs)}"
        if node.op == "get_attr":
            yield from _attribute(functools.reduce(getattr, node.target.split("."), gm))
        for name, value in node.meta.items():
            if name in _STACKS:
                yield f"{name} {[str(path) for path, _kind in (value or {}).values()]}"
            elif name not in _UNREAD:
                yield f"{name} {_text(value)}"


def _attribute(value: Any) -> Iterator[str]:
    if isinstance(value, torch.fx.GraphModule):
        yield from _lines(value)
    elif type(value) is torch.Tensor and value.numel() <= _MOST_ELEMENTS:
        yield f"{_tensor(value)} {value.tolist()}"
    else:
        raise _Unkeyed


def _text(value: Any) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, FakeTensor):
        return f"{_tensor(value)} {place_of(value)}"
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, tuple | list):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_text(k)}:{_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step))}"
    if type(value).__name__ == "builtin_function_or_method":
        return f"{value.__module__}.{value.__qualname__}"
    raise _Unkeyed


def _tensor(value: Any) -> str:
    if has_symbols([value]):
        raise _Unkeyed  # sizes that are not known when the code is compiled
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.storage_offset()}"


def sizes_of(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The sizes that inputs of a graph have, or are. A symbol counts as the size that it has."""
    return tuple(_pytree.tree_map_only(torch.SymInt, lambda n: n.node.hint, _sizes(inputs)))


def has_symbols(inputs: Sequence[Any]) -> bool:
    """Whether sizes are symbols, as in code that torch compiles once for several sizes."""
    return any(isinstance(size, torch.SymInt) for size in _pytree.tree_leaves(_sizes(inputs)))


def _sizes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (tuple(x.shape), x.stride(), x.storage_offset()) if isinstance(x, torch.Tensor) else x
        for x in inputs
    )
