"""A pretended CUDA machine: `torch.cuda`, cuDNN's switches, GradScaler, torch.compile and so on."""

from __future__ import annotations

import copy
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch._dynamo  # imported now, because it must not be imported while torch.cuda is replaced
from torch._dynamo import eval_frame
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal import nested_tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach
from torch.utils import _pytree, cpp_extension
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.fake_ops import flatten_parameters
from wavecast.frameworks.pytorch.capture.flex_attention import flex_attention
from wavecast.frameworks.pytorch.capture.kernels import adaptive_log_softmax
from wavecast.frameworks.pytorch.capture.pretended.cuda_answers import (
    IDLE,
    Streams,
    answers,
    cuda_build,
    event_class,
    properties_of,
    stream_class,
)
from wavecast.frameworks.pytorch.capture.tensor_methods import OutsideTensors
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.host_values import LARGEST_CONSTANT
from wavecast.frameworks.pytorch.capture.values.places import GPU, is_gpu, on_gpu, pin, put_on_gpu
from wavecast.frameworks.pytorch.capture.values.sparse_tensors import sparse_functions
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.frameworks.replacements import replacing
from wavecast.hardware.devices import Device

Row = tuple[Any, Mapping[str, Any]]
"""A module, class or object of torch, and its attributes by name."""


@contextmanager
def cuda_machine(
    capability: tuple[int, int],
    recorder: OpRecorder,
    assumptions: Assumptions,
    outside: OutsideTensors,
    is_ranked: bool,
    properties: Mapping[str, Any] | None,
    gpu: Device | None = None,
) -> Iterator[None]:
    """Make torch behave as if the machine had one GPU of this compute capability.

    Args:
        capability: the compute capability.
        recorder: records synchronisations.
        assumptions: what is assumed of the GPU is noted there.
        outside: plain tensors that are moved to the GPU.
        is_ranked: whether the step is one rank of several.
        properties: what else a compiler may ask of the GPU. None if compiled code is to run as it
            was written.
        gpu: the GPU that the user's code is told of. None for one of the capability.
    """
    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        _device_constructors()  # it caches torch's functions, so it must run before replacing them
        shown = [properties_of(device, capability, properties or {}) for device in (None, gpu)]
        functions = answers(capability, shown[0], shown[1], assumptions)
        for owner, attributes in (
            *_cuda(_cuda_module(recorder) | functions),
            *_libraries(recorder, assumptions),
            *((owner, {"isfinite": _assumed_finite(assumptions)}) for owner in _TENSORS),
            *refused_functions(is_ranked),
            *sparse_functions(),
            *_made_on_the_host(outside),
        ):
            replace(owner, **attributes)
        for owner, attributes in (*_accelerator(), *cuda_build(capability), *_grouped_by_device()):
            replace(owner, **attributes)
        for types in (foreach._foreach_supported_types, optimizers._foreach_supported_types):
            # Torch uses the foreach form only for tensors of these exact types.
            types.append(FakeTensor)
            stack.callback(types.remove, FakeTensor)
        if properties is None:
            compile_nothing(replace, stack, assumptions)
        yield


def _cuda(functions: dict[str, Any]) -> Iterator[Row]:
    """The functions of `torch.cuda`, some of which are called where they are defined."""
    yield torch.cuda, functions
    for module in (torch.cuda.random, torch.cuda.memory):
        yield module, {name: f for name, f in functions.items() if name in vars(module)}
    yield torch.cuda, {f"{name}Tensor": _legacy_type(dtype) for name, dtype in _LEGACY.items()}


def _libraries(recorder: OpRecorder, assumptions: Assumptions) -> Iterator[Row]:
    """What torch and libraries do differently where there is a GPU, or where tensors are fake."""
    yield torch.cuda.amp.common, {"amp_definitely_not_available": lambda: False}
    yield torch.backends.cudnn, {"is_available": lambda: True, "is_acceptable": lambda _: True}
    yield torch.nn.RNNBase, {"flatten_parameters": flatten_parameters}
    yield torch.amp.GradScaler, {"_maybe_opt_step": _unchecked_step(assumptions)}
    yield torch.cuda.nvtx, dict.fromkeys(_NVTX, lambda *_, **__: 0)
    yield torch.cuda.profiler, {"start": lambda: None, "stop": lambda: None}
    yield torch.nn.AdaptiveLogSoftmaxWithLoss, {"forward": adaptive_log_softmax}
    encoder = torch.nn.TransformerEncoder
    yield encoder, {"forward": _padded(encoder.forward)}
    yield flex, flex_attention(recorder, assumptions)
    yield torch.jit, {"script": script, "trace": trace}
    yield torch.utils.data.DataLoader, {"_get_iterator": _load_in_this_process}
    yield torch.nn.DataParallel, {"scatter": lambda _, inputs, named, __: ((inputs,), (named,))}
    # Libraries take other branches for fake tensors. They should not notice them here.
    yield torch._subclasses, {"FakeTensor": _NoFakeTensor}
    yield (
        fake_tensor,
        {"CONSTANT_NUMEL_LIMIT": LARGEST_CONSTANT, "init_gpu_context": lambda *_: None},
    )


def _made_on_the_host(outside: OutsideTensors) -> Iterator[Row]:
    """What makes tensors from data, files and random numbers."""
    yield torch, {"tensor": _from_data(torch.tensor, outside), "as_tensor": _as_tensor(outside)}
    yield torch, {"load": load_real(torch.load), "Generator": _Generator}
    yield torch._utils, {"_rebuild_tensor": rebuilt(torch._utils._rebuild_tensor)}
    # Torch can set it only once in a process, so it could not be restored.
    yield torch, {"set_num_interop_threads": lambda _: None}
    for module in (torch, torch.random):
        yield module, {"set_rng_state": _unless_fake(torch.set_rng_state)}


def _grouped_by_device() -> Iterator[Row]:
    """The grouping of tensors with which optimizers run their foreach form, as on CUDA.

    Torch groups tensors by the device that C++ sees, which is the CPU.
    """
    for module in (foreach, clip_grad, optimizers):
        grouping = _grouping(module._group_tensors_by_device_and_dtype)
        yield module, {"_group_tensors_by_device_and_dtype": grouping}


def _cuda_module(recorder: OpRecorder) -> dict[str, Any]:
    stream = stream_class(recorder)
    streams = Streams(recorder, stream)
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: recorder.mark("cuda.synchronize"),
        "Stream": stream,
        "Event": event_class(recorder),
        "CUDAGraph": _CudaGraph,
        "graph": _CudaGraph,
        "make_graphed_callables": lambda *_, **__: _CudaGraph(),
        "device": _DeviceContext,
        "device_of": _DeviceContext,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "default_generators": (_Generator("cuda"),),
        "initial_seed": torch.initial_seed,
        "_snapshot": lambda *_, **__: {},
        "stream": streams.use,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "set_stream": streams.set,
        **IDLE,
    }


class _NoFakeTensor:
    """A class that no tensor is an instance of."""


class _DeviceContext:
    """`torch.cuda.device`, which does nothing, because there is only one GPU."""

    def __init__(self, device: Any = None) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _CudaGraph:
    """`torch.cuda.CUDAGraph`, which is refused: nothing is launched that it could record."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise CaptureError(
            f"the step captures a CUDA graph at {user_line()}, which needs a GPU; trace the step "
            "without the graph, and predict it with graphed=True (--cuda-graph)"
        )


class _Generator(torch._C.Generator):
    """A random generator that is on the CPU, whichever device was asked for."""

    _place: Any
    device = property(lambda self: self._place)

    def __new__(cls, device: Any = "cpu") -> Any:
        generator = super().__new__(cls, "cpu")
        generator._place = GPU if is_gpu(device) else torch.device("cpu")
        return generator

    def graphsafe_get_state(self) -> Any:
        """A generator with the same state, as those of GPUs give it to captured graphs."""
        return self.clone_state()

    def graphsafe_set_state(self, state: Any) -> Any:
        """Take the state of another generator."""
        return self.set_state(state.get_state())

    def set_state(self, state: Any) -> Any:
        """Take a state. One that came from the GPU has no values, and the generator keeps its."""
        return self if isinstance(state, FakeTensor) else super().set_state(state)


def _unless_fake(set_state: Callable[[Any], None]) -> Callable[[Any], None]:
    """`torch.set_rng_state`, which keeps the state where the new one came from the GPU."""
    return lambda new_state: None if isinstance(new_state, FakeTensor) else set_state(new_state)


def _unchecked_step(assumptions: Assumptions) -> Any:
    """GradScaler's step, which reads whether a gradient overflowed. Here none does."""

    def step(scaler: Any, optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with assumptions.unnoted():
            for found_inf in state["found_inf_per_device"].values():
                found_inf.item()
        return optimizer.step(*args, **kwargs)

    return step


_TENSORS = (torch, torch.Tensor)
"""What has functions on tensors, and what has them as methods."""


def _assumed_finite(assumptions: Assumptions) -> Callable[[Any], Any]:
    """`torch.isfinite`, whose result is assumed to be true where the step reads it."""
    isfinite = torch.isfinite

    def is_finite(input: Any) -> Any:
        out = isfinite(input)
        assumptions.assume_true(out)
        return out

    return is_finite


def _from_data(make: Any, outside: OutsideTensors) -> Any:
    """`torch.tensor` or the like, made on the CPU: its C++ code would ask the GPU for memory."""

    def tensor(data: Any, *, device: Any = None, pin_memory: bool = False, **options: Any) -> Any:
        on_host = make(data, device="cpu", **options)
        place = torch.device(device if device is not None else _default_device())
        if place.type == "meta":
            return on_host.to(place)
        if place.type != "cuda":
            return pin(on_host) if pin_memory else on_host
        on_the_gpu = outside.copy_of(on_host)
        put_on_gpu(on_the_gpu)
        return torch.ops.aten.lift_fresh.default(on_the_gpu)

    return tensor


def _default_device() -> Any:
    """The default device. `torch.get_default_device` would call `torch.tensor`, replaced here."""
    for mode in reversed(torch.overrides._get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return "cpu"


def _as_tensor(outside: OutsideTensors) -> Any:
    from_data = _from_data(torch.tensor, outside)

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
        if isinstance(data, torch.Tensor):
            return data.to(device=device or data.device, dtype=dtype or data.dtype)
        return from_data(data, dtype=dtype, device=device)

    return as_tensor


def _grouping(group: Any) -> Any:
    """Torch's grouping of tensors by device and dtype, with the devices that we pretend."""

    def group_by_pretended_device(*args: Any, **kwargs: Any) -> Any:
        groups = group(*args, **kwargs)
        return {
            (GPU if on_gpu(lists[0][0]) else device, dtype): (lists, indices)
            for (device, dtype), (lists, indices) in groups.items()
        }

    return group_by_pretended_device


_NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")


def _load_in_this_process(loader: Any) -> Any:
    """The iterator of a DataLoader without workers: fake tensors cannot go to other processes."""
    workers, timeout = loader.num_workers, loader.timeout
    loader.num_workers = loader.timeout = 0
    try:
        return torch.utils.data.dataloader._SingleProcessDataLoaderIter(loader)
    finally:
        loader.num_workers, loader.timeout = workers, timeout


_LEGACY = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


def _legacy_type(dtype: Any) -> Any:
    """`torch.cuda.FloatTensor` and the like: from sizes, or from data."""

    def make(*arguments: Any) -> Any:
        if arguments and not isinstance(arguments[0], int):
            return torch.as_tensor(arguments[0], dtype=dtype, device=GPU)
        return torch.empty(arguments or (0,), dtype=dtype, device=GPU)

    return make


def _padded(forward: Any) -> Any:
    """The forward pass of `nn.TransformerEncoder`, which computes padding as well.

    In evaluation it would convert a batch with a padding mask to a nested tensor.
    """

    def encode(encoder: Any, *args: Any, **kwargs: Any) -> Any:
        use_nested = encoder.use_nested_tensor
        encoder.use_nested_tensor = False
        try:
            return forward(encoder, *args, **kwargs)
        finally:
            encoder.use_nested_tensor = use_nested

    return encode


# `torch.accelerator` of a pretended CUDA machine: it answers as `torch.cuda` does.


_SAME = (
    *("synchronize", "current_stream", "set_stream", "empty_cache", "reset_peak_memory_stats"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    "memory_stats",
)
"""Functions that `torch.cuda` has under the same name."""
_SILENT = ("set_device_index", "set_device_idx", "reset_accumulated_memory_stats")


def _accelerator() -> Iterator[Row]:
    """The functions of `torch.accelerator`, after those of `torch.cuda` were replaced."""
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: torch.cuda.device_count(),
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_index": torch.cuda.device,
        "get_memory_info": lambda device=None: torch.cuda.mem_get_info(),
        "get_device_capability": lambda device=None: {"supported_dtypes": set()},
        **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: 0),
        **dict.fromkeys(_SILENT, lambda *_, **__: None),
        **{name: _as_cuda(name) for name in _SAME},
    }
    known = {name: f for name, f in functions.items() if hasattr(torch.accelerator, name)}
    yield torch.accelerator, known
    memory = getattr(torch.accelerator, "memory", None)
    if memory is not None:
        yield memory, {name: f for name, f in known.items() if hasattr(memory, name)}


def _as_cuda(name: str) -> Callable[..., Any]:
    """A function that answers as that of `torch.cuda`. Dynamo knows each function by itself."""
    return lambda *args, **kwargs: getattr(torch.cuda, name)(*args, **kwargs)


# TorchScript, which is plain Python while a step is traced.


class _NoScript:
    """What `torch.jit` adds to a module: a graph, here without nodes, and a file to save it in."""

    @property
    def graph(self) -> Any:
        """A graph without nodes, enough for a logger such as TensorBoard's `add_graph`."""
        return torch._C.Graph()

    inlined_graph = graph
    code = ""

    def save(self, file: Any, **_: Any) -> None:
        """Write nothing."""


def script(code: Any, *_: Any, **__: Any) -> Any:
    """`torch.jit.script`, which gives plain Python: it cannot compile the functions replaced here.

    Libraries script functions when they are imported, which may happen inside `make_step`.
    """
    return _plain(code) if isinstance(code, torch.nn.Module) else code


def trace(code: Any, example_inputs: Any = None, *_: Any, **options: Any) -> Any:
    """`torch.jit.trace`, which runs the code once and gives it back.

    Torch's own makes tensors of all shapes, whose values torch's fake tensors then ask for.
    """
    named = options.get("example_kwarg_inputs") or {}
    if named or example_inputs is not None:
        is_one = isinstance(example_inputs, torch.Tensor | dict)
        code(*((example_inputs,) if is_one else example_inputs or ()), **named)
    return script(code)


def _plain(module: Any) -> Any:
    """A module that shares all with another one, and has what `torch.jit` adds."""
    plain = copy.copy(module)
    if not isinstance(plain, _NoScript):
        kind = type(module)
        plain.__class__ = type(kind.__name__, (_NoScript, kind), {"__module__": kind.__module__})
    return plain


# Functions of torch that cannot be traced, refused with the line of the user's code and a remedy.
#
# Process groups would wait for other processes; nested tensors and the parameters of lazy layers
# have no fake form.


class Refused(NamedTuple):
    """Functions of some owners that are refused, where these have them."""

    owners: tuple[Any, ...]
    names: tuple[str, ...]
    action: str
    """What the step does that calls them."""
    remedy: str


_PADDED = (
    "pad the sequences to one length (torch.nn.utils.rnn.pad_sequence), or concatenate them into "
    "one long sequence"
)
_NESTING = "makes a nested tensor"
_BUILDING = (
    "builds a CUDA kernel from source",
    "its time would not be known; call torch's own ops there, or give the kernel a fake form "
    "with torch.library.custom_op and register_fake",
)
_REFUSED = (
    Refused(
        (torch.nested,),
        ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "masked_select"),
        *(_NESTING, _PADDED),
    ),
    # This class makes the jagged ones, also for code that imported a function before tracing.
    Refused((nested_tensor.NestedTensor,), ("__new__",), _NESTING, _PADDED),
    Refused(
        (UninitializedParameter, UninitializedBuffer),
        ("__new__",),
        "makes a lazy layer",
        "give the number of its inputs, as in nn.Linear(512, 10)",
    ),
    Refused(
        _TENSORS,
        (
            *("to_sparse_bsr", "to_sparse_bsc", "sparse_bsr_tensor", "sparse_bsc_tensor"),
            "sparse_compressed_tensor",
        ),
        "makes a sparse tensor of blocks (BSR and the like)",
        "use the dense form, or to_sparse_csr",
    ),
    Refused((torch.cuda,), ("_compile_kernel",), *_BUILDING),
    Refused((cpp_extension,), ("load", "load_inline"), *_BUILDING),
)


def refused_functions(is_ranked: bool = False) -> Iterator[Row]:
    """The refused functions; with `is_ranked`, the step may start process groups."""
    table = list(_REFUSED)
    if torch.distributed.is_available():
        table += _refused_on_ranks() if is_ranked else _refused_groups()
    for owners, names, action, remedy in table:
        refuse = _refusal(action, remedy)
        for owner in owners:
            yield owner, {name: refuse for name in names if hasattr(owner, name)}


def _refused_groups() -> Iterator[Refused]:
    from torch.distributed import distributed_c10d
    from torch.distributed.fsdp import FullyShardedDataParallel

    remedy = (
        "say how many ranks there are, as in ranks=8 (--ranks 8), or trace the step of one rank "
        "instead: without a process group, and with the plain model in place of "
        "DistributedDataParallel or FSDP"
    )
    # Code that imported `init_process_group` before tracing calls torch's own, which begins with
    # the two others.
    starts = ("init_process_group", "rendezvous", "_new_process_group_helper")
    yield Refused((torch.distributed,), starts[:1], "starts a process group", remedy)
    yield Refused((distributed_c10d,), starts, "starts a process group", remedy)
    for wrapper in (torch.nn.parallel.DistributedDataParallel, FullyShardedDataParallel):
        yield Refused((wrapper,), ("__init__",), f"wraps a model in {wrapper.__name__}", remedy)


def _refused_on_ranks() -> Iterator[Refused]:
    """What cannot be traced on one rank of many, either."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.pipelining import Pipe

    yield Refused(
        (Pipe,),
        ("from_tracing",),
        "lets torch export a model and cut it into stages",
        "give each rank's own part of the model to PipelineStage, or trace the whole model and "
        "predict it with parallel=Parallel(pipeline=4)",
    )
    yield Refused(
        (FullyShardedDataParallel,),
        ("__init__",),
        "wraps a model in FullyShardedDataParallel",
        "use its successor, torch.distributed.fsdp.fully_shard, on each block and on the model",
    )


def _refusal(action: str, remedy: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CaptureError(f"the step {action} at {user_line()}, which cannot be traced; {remedy}")

    return refuse


# Files of tensors that a step reads: plain tensors on the host, which take little memory.


def load_real(load: Any) -> Any:
    """`torch.load`, which gives plain tensors and not fake ones: a file may hold the data."""

    def load_plain(
        file: Any, map_location: Any = None, pickle_module: Any = None, **options: Any
    ) -> Any:
        if isinstance(file, str | os.PathLike) and options.get("mmap") is None:
            options["mmap"] = zipfile.is_zipfile(file)  # weights that nobody reads take no memory
        with _disable_current_modes():
            loaded = load(file, "cpu", pickle_module, **options)
        is_named = isinstance(map_location, str | torch.device)
        if is_named and torch.device(map_location).type == "cuda":
            return _pytree.tree_map_only(torch.Tensor, lambda t: t.cuda(), loaded)
        return loaded

    return load_plain


def rebuilt(rebuild: Any) -> Any:
    """How torch makes a tensor from a storage that was read: a plain one, if it has memory."""

    def rebuild_plain(storage: Any, *args: Any) -> Any:
        if storage._untyped_storage.device.type != "cpu":
            return rebuild(storage, *args)
        with _disable_current_modes():
            return rebuild(storage, *args)

    return rebuild_plain


# Steps that call torch.compile, traced as eager code.


class CompilesCode(BaseException):
    """Raised where a step calls torch.compile, to begin again with a compiler.

    It is no error of the step, so the step's own handlers should not catch it.
    """


def compile_nothing(
    replace: Callable[..., None], stack: ExitStack, assumptions: Assumptions
) -> None:
    """Let compiled code run as it was written, and note that the step has some."""
    replace(torch, compile=_eager(assumptions))
    stack.enter_context(torch.compiler.set_stance("force_eager"))
    if hasattr(eval_frame, "_callback_from_stance"):
        noticing = _noticing(eval_frame._callback_from_stance, assumptions)
        replace(eval_frame, _callback_from_stance=noticing)


def _eager(assumptions: Assumptions) -> Any:
    def compiled(model: Any = None, **options: Any) -> Any:
        if torch.compile is not compiled:  # a module that was imported meanwhile has kept this one
            return torch.compile(model, **options)
        _notice(assumptions)
        return model if model is not None else (lambda function: function)

    return compiled


def _noticing(callback_from_stance: Any, assumptions: Assumptions) -> Any:
    """Torch's callback for compiled code, wrapped to note that the step uses torch.compile."""

    def callback(compiler: Any) -> Any:
        # None and False mean that torch itself wants code that is not compiled.
        if callable(compiler):
            _notice(assumptions)
        return callback_from_stance(compiler)

    return callback


def _notice(assumptions: Assumptions) -> None:
    assumptions.compiled = True
    if assumptions.stops_at_compile:
        raise CompilesCode
