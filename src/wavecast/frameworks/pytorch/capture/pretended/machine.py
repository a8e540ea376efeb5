"""A pretended CUDA machine: `torch.cuda`, cuDNN's switches, GradScaler, torch.compile and so on."""

from __future__ import annotations

import copy
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

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
from wavecast.frameworks.pytorch.capture.flex_masks import OpenBlocks, open_blocks
from wavecast.frameworks.pytorch.capture.kernels import adaptive_log_softmax
from wavecast.frameworks.pytorch.capture.outside_tensors import OutsideTensors
from wavecast.frameworks.pytorch.capture.pretended.cuda_answers import (
    Streams,
    answers,
    event_class,
    properties_of,
    replace_build,
    state_of_no_work,
    stream_class,
)
from wavecast.frameworks.pytorch.capture.pretended.replacements import replacing
from wavecast.frameworks.pytorch.capture.rnn import flatten_parameters
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.host_values import LARGEST_CONSTANT, known_values
from wavecast.frameworks.pytorch.capture.values.places import GPU, is_gpu, on_gpu, pin, put_on_gpu
from wavecast.frameworks.pytorch.capture.values.sparse_tensors import sparse_functions
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.hardware.devices import Device
from wavecast.ops.attention import ATTENDED, LEAST_ATTENDED
from wavecast.traces.step import Scalar


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
        replace = replacing(stack)
        _device_constructors()  # it caches torch's functions, so it must run before replacing them
        described = [properties_of(shown, capability, properties or {}) for shown in (None, gpu)]
        functions = answers(capability, described[0], described[1], assumptions)
        _replace_cuda(replace, _cuda_module(recorder) | functions)
        replace(torch.cuda.amp.common, amp_definitely_not_available=lambda: False)
        replace(torch.backends.cudnn, is_available=lambda: True, is_acceptable=lambda _: True)
        replace(torch.nn.RNNBase, flatten_parameters=flatten_parameters)
        replace(torch.amp.GradScaler, _maybe_opt_step=_unchecked_step(assumptions))
        replace(torch.cuda.nvtx, **dict.fromkeys(_NVTX, lambda *_, **__: 0))
        replace(torch.cuda.profiler, start=lambda: None, stop=lambda: None)
        replace(torch.nn.AdaptiveLogSoftmaxWithLoss, forward=adaptive_log_softmax)
        replace(torch.nn.TransformerEncoder, forward=_padded(torch.nn.TransformerEncoder.forward))
        replace(flex, **flex_attention(recorder, assumptions))
        replace(torch.jit, script=script, trace=trace)
        checks = _assumed_finite(assumptions)
        for owner, functions in (*checks, *refused_functions(is_ranked), *sparse_functions()):
            replace(owner, **functions)
        replace(torch.utils.data.DataLoader, _get_iterator=_load_in_this_process)
        replace(torch.nn.DataParallel, scatter=lambda _, inputs, named, __: ((inputs,), (named,)))
        # Torch can set it only once in a process, so it could not be restored.
        replace(torch, set_num_interop_threads=lambda _: None, Generator=_Generator)
        replace(torch, tensor=_from_data(torch.tensor, outside), as_tensor=_as_tensor(outside))
        replace(torch, load=load_real(torch.load))
        replace(torch._utils, _rebuild_tensor=rebuilt(torch._utils._rebuild_tensor))
        for module in (torch, torch.random):
            replace(module, set_rng_state=_unless_fake(torch.set_rng_state))
        replace(fake_tensor, CONSTANT_NUMEL_LIMIT=LARGEST_CONSTANT)
        # Libraries take other branches for fake tensors. They should not notice them here.
        replace(torch._subclasses, FakeTensor=_NoFakeTensor)
        replace(fake_tensor, init_gpu_context=lambda *_: None)
        replace_accelerator(replace)
        replace_build(replace, capability)
        _use_foreach(replace, stack)
        if properties is None:
            compile_nothing(replace, stack, assumptions)
        yield


def _replace_cuda(replace: Callable[..., None], machine: dict[str, Any]) -> None:
    """Replace the functions of `torch.cuda`, some of which are called where they are defined."""
    replace(torch.cuda, **machine)
    for module in (torch.cuda.random, torch.cuda.memory):
        replace(module, **{n: f for n, f in machine.items() if n in vars(module)})
    replace(torch.cuda, **{f"{n}Tensor": _legacy_type(d) for n, d in _LEGACY.items()})


def _use_foreach(replace: Callable[..., None], stack: ExitStack) -> None:
    """Let optimizers use the foreach form for the tensors of a traced step, as on CUDA."""
    for module in (foreach, clip_grad, optimizers):
        # Torch groups tensors by the device that C++ sees, which is the CPU.
        grouping = _grouping(module._group_tensors_by_device_and_dtype)
        replace(module, _group_tensors_by_device_and_dtype=grouping)
    for types in (foreach._foreach_supported_types, optimizers._foreach_supported_types):
        # Torch uses it only for tensors of these exact types.
        types.append(FakeTensor)
        stack.callback(types.remove, FakeTensor)


def _cuda_module(recorder: OpRecorder) -> dict[str, Any]:
    machine: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: recorder.mark("cuda.synchronize"),
        "Stream": stream_class(recorder),
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
    }
    streams = Streams(recorder, machine["Stream"])
    machine |= {
        "stream": streams.use,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "set_stream": streams.set,
    }
    return machine | state_of_no_work()


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


def _assumed_finite(assumptions: Assumptions) -> Iterator[tuple[Any, dict[str, Any]]]:
    """`torch.isfinite`, whose result is assumed to be true where the step reads it."""
    isfinite = torch.isfinite

    def is_finite(input: Any) -> Any:
        out = isfinite(input)
        assumptions.assume_true(out)
        return out

    yield from ((owner, {"isfinite": is_finite}) for owner in (torch, torch.Tensor))


def _from_data(make: Any, outside: OutsideTensors) -> Any:
    """`torch.tensor` or the like, made on the CPU: its C++ code would ask the GPU for memory."""

    def tensor(data: Any, *, device: Any = None, pin_memory: bool = False, **options: Any) -> Any:
        made = make(data, device="cpu", **options)
        wanted = torch.device(device if device is not None else _default_device())
        if wanted.type == "meta":
            return made.to(wanted)
        if wanted.type != "cuda":
            return pin(made) if pin_memory else made
        on_the_gpu = outside.copy_of(made)
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


def replace_accelerator(replace: Callable[..., None]) -> None:
    """Replace the functions of `torch.accelerator`, after those of `torch.cuda`."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: torch.cuda.device_count(),
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": nothing,
        "set_device_idx": nothing,
        "device_index": torch.cuda.device,
        "reset_accumulated_memory_stats": nothing,
        "get_memory_info": lambda device=None: torch.cuda.mem_get_info(),
        "get_device_capability": lambda device=None: {"supported_dtypes": set()},
    }
    functions |= {name: _as_cuda(name) for name in _SAME}
    known = {name: f for name, f in functions.items() if hasattr(torch.accelerator, name)}
    replace(torch.accelerator, **known)
    memory = getattr(torch.accelerator, "memory", None)
    if memory is not None:
        replace(memory, **{name: f for name, f in known.items() if hasattr(memory, name)})


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


# Functions of torch that cannot be traced, replaced by errors.
#
# Process groups would wait for other processes; nested tensors and the parameters of lazy layers
# have no fake form. Each error names the line of the user's code and what to do instead.


_ONE_RANK = (
    "say how many ranks there are, as in ranks=8 (--ranks 8), or trace the step of one rank "
    "instead: without a process group, and with the plain model in place of "
    "DistributedDataParallel or FSDP"
)
_PADDED = (
    "pad the sequences to one length (torch.nn.utils.rnn.pad_sequence), or concatenate them into "
    "one long sequence"
)
_BLOCKS = (
    *("to_sparse_bsr", "to_sparse_bsc", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    "sparse_compressed_tensor",
)
_DENSE = "use the dense form, or to_sparse_csr"
_BUILDING = (
    *((torch.cuda, "_compile_kernel"), (cpp_extension, "load"), (cpp_extension, "load_inline")),
)
_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "masked_select")


def refused_functions(is_ranked: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each module or class with refused functions, and their replacements by name.

    Args:
        is_ranked: whether the step may start process groups.
    """
    nested = _refusal("makes a nested tensor", _PADDED)
    yield torch.nested, dict.fromkeys(_NESTED, nested)
    # This class makes the jagged ones, also for code that imported a function before tracing.
    yield nested_tensor.NestedTensor, {"__new__": nested}
    lazy = _refusal("makes a lazy layer", "give the number of its inputs, as in nn.Linear(512, 10)")
    for parameter in (UninitializedParameter, UninitializedBuffer):
        yield parameter, {"__new__": lazy}
    blocks = _refusal("makes a sparse tensor of blocks (BSR and the like)", _DENSE)
    for owner in (torch, torch.Tensor):
        yield owner, {name: blocks for name in _BLOCKS if hasattr(owner, name)}
    build = _refusal(
        "builds a CUDA kernel from source",
        "its time would not be known; call torch's own ops there, or give the kernel a fake form "
        "with torch.library.custom_op and register_fake",
    )
    for owner, name in _BUILDING:
        if hasattr(owner, name):
            yield owner, {name: build}
    if torch.distributed.is_available():
        yield from _of_one_rank() if is_ranked else _distributed()


def _distributed() -> Iterator[tuple[Any, dict[str, Any]]]:
    from torch.distributed import distributed_c10d
    from torch.distributed.fsdp import FullyShardedDataParallel

    start = _refusal("starts a process group", _ONE_RANK)
    yield torch.distributed, {"init_process_group": start}
    # Code that imported `init_process_group` before tracing calls torch's own, which begins here.
    inner = dict.fromkeys(("rendezvous", "_new_process_group_helper"), start)
    yield distributed_c10d, {"init_process_group": start, **inner}
    for wrapper in (torch.nn.parallel.DistributedDataParallel, FullyShardedDataParallel):
        wrap = _refusal(f"wraps a model in {wrapper.__name__}", _ONE_RANK)
        yield wrapper, {"__init__": wrap}


def _of_one_rank() -> Iterator[tuple[Any, dict[str, Any]]]:
    """What cannot be traced on one rank of many, either."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.pipelining import Pipe

    cut = _refusal(
        "lets torch export a model and cut it into stages",
        "give each rank's own part of the model to PipelineStage, or trace the whole model and "
        "predict it with parallel=Parallel(pipeline=4)",
    )
    yield Pipe, {"from_tracing": staticmethod(cut)}
    wrap = _refusal(
        "wraps a model in FullyShardedDataParallel",
        "use its successor, torch.distributed.fsdp.fully_shard, on each block and on the model",
    )
    yield FullyShardedDataParallel, {"__init__": wrap}


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
        if _is_cuda(map_location):
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


def _is_cuda(location: Any) -> bool:
    """Whether `map_location` puts everything on the GPU."""
    return isinstance(location, str | torch.device) and torch.device(location).type == "cuda"


# `flex_attention`, taken as the one fused kernel that torch.compile makes of it.
#
# Torch has no fake version of it with a backward pass. While tracing, the operator behind
# `torch.nn.attention.flex_attention` is replaced by one that records the op and returns empty
# results. Kernels skip blocks that the mask leaves empty; these are counted with the user's own
# mask function (`flex_masks`).


Attributes = list[tuple[str, Scalar]]
_OPEN = "_wavecast_open_blocks"
"""The attribute of a mask's counts of blocks that keeps what its function leaves open."""
_NO_BLOCKS = 1 << 30
"""The block size with which torch says that there is no mask."""


def flex_attention(recorder: OpRecorder, assumptions: Assumptions) -> dict[str, Any]:
    """The replacements in torch's module, by name: the operator, and how eager code calls it."""

    def attend(
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        *_: Any,
        **__: Any,
    ) -> Any:
        attributes = _attended(block_mask, query, key, assumptions)
        learned = list(_learned_tensors(score_mod))
        return _FlexAttention.apply(recorder, attributes, query, key, value, *learned)

    @contextmanager
    def uncompiled() -> Iterator[str]:
        if not assumptions.compiled:
            assumptions.note(
                f"flex_attention at {user_line()} runs outside of compiled code, where torch "
                "computes all scores; the fused kernel of compiled code was assumed"
            )
        yield "eager"

    direct = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "setup_compilation_env": uncompiled}
    known = {name: value for name, value in direct.items() if hasattr(flex, name)}
    return {"flex_attention_hop": attend, **known}


class _FlexAttention(torch.autograd.Function):
    """The forward and backward kernels, each as one recorded op."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: OpRecorder,
        attributes: Attributes,
        query: Any,
        key: Any,
        value: Any,
        *learned: Any,
    ) -> Any:
        same_width = query.shape[-1] == value.shape[-1]
        shape = (*query.shape[:-1], value.shape[-1])
        # The output has the layout of the query.
        out = torch.empty_like(query) if same_width else query.new_empty(shape)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        maxima = query.new_empty(0, dtype=torch.float32)
        recorder.record("flex_attention", [query, key, value, *learned], [out, sums], attributes)
        ctx.save_for_backward(query, key, value, out, sums, *learned)
        ctx.recorder, ctx.attributes = recorder, attributes
        ctx.mark_non_differentiable(maxima)
        ctx.set_materialize_grads(False)
        return out, sums, maxima

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, out, sums, *learned = ctx.saved_tensors
        results = [torch.empty_like(tensor) for tensor in (query, key, value, *learned)]
        given = [gradient for gradient in gradients[:2] if gradient is not None]
        inputs = [query, key, value, out, sums, *given, *learned]
        ctx.recorder.record("flex_attention_backward", inputs, results, ctx.attributes)
        return None, None, *results


def _attended(
    block_mask: tuple[Any, ...], query: Any, key: Any, assumptions: Assumptions
) -> Attributes:
    """How many pairs of a query and a key, of one sequence and head, the kernel computes.

    Where data decide, the most are assumed, and the fewest are said as well.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    *_, q_block, k_block, _mask = block_mask
    if q_block >= _NO_BLOCKS:
        return [(ATTENDED, int(queries * keys))]
    all_blocks = math.ceil(queries / q_block) * math.ceil(keys / k_block)
    listed = fewest = _listed_blocks(block_mask)
    if listed is None or fewest is None:
        most, fewest = _open_blocks(block_mask, queries, keys)
        listed = min(most, _listed_at_most(block_mask))
        if fewest < listed:
            assumptions.note(
                f"the mask of flex_attention at {user_line()} depends on data: between "
                f"{fewest / all_blocks:.1%} and {listed / all_blocks:.1%} of its blocks are "
                "computed; the most were assumed"
            )
    most_pairs, least_pairs = (
        int(min(blocks * q_block * k_block, queries * keys)) for blocks in (listed, fewest)
    )
    possible = [(LEAST_ATTENDED, least_pairs)] if least_pairs < most_pairs else []
    return [(ATTENDED, most_pairs), *possible]


def _open_blocks(block_mask: tuple[Any, ...], queries: int, keys: int) -> OpenBlocks:
    """The open blocks of a mask, computed once: layers share it."""
    *_, q_block, k_block, mask = block_mask
    counts = block_mask[2]
    if not hasattr(counts, _OPEN):
        # In compiled code, the user's function would be compiled, too.
        count = torch.compiler.disable(open_blocks)
        setattr(counts, _OPEN, count(mask, queries, keys, q_block, k_block))
    known: OpenBlocks = getattr(counts, _OPEN)
    return known


def _listed_blocks(block_mask: tuple[Any, ...]) -> int | None:
    """How many blocks of keys a mask lists for one sequence and head; None if it is not known."""
    lists = [
        known_values(counts) for counts in (block_mask[2], block_mask[4]) if counts is not None
    ]
    if any(counts is None for counts in lists):
        return None
    return sum(math.ceil(int(n.sum()) / int(math.prod(n.shape[:-1]))) for n in lists)


def _listed_at_most(block_mask: tuple[Any, ...]) -> int:
    """How many blocks of keys a mask has room for."""
    indices = [listed for listed in (block_mask[3], block_mask[5]) if listed is not None]
    return sum(math.prod(listed.shape[-2:]) for listed in indices)


def _learned_tensors(function: Any) -> Iterator[Any]:
    """The tensors inside a function that get gradients, such as a learned bias of the scores."""
    return (tensor for tensor in _tensors_of(function) if tensor.requires_grad)


def _tensors_of(function: Any, depth: int = 4) -> Iterator[Any]:
    """The tensors that a function holds: in its closure, or in the functions that it calls."""
    for cell in getattr(function, "__closure__", None) or ():
        inside = cell.cell_contents
        if isinstance(inside, torch.Tensor):
            yield inside
        elif isinstance(inside, torch.nn.Module):
            yield from inside.parameters()
        elif callable(inside) and depth:
            yield from _tensors_of(inside, depth - 1)
        elif isinstance(inside, list | tuple):
            for item in inside:
                if callable(item) and depth:
                    yield from _tensors_of(item, depth - 1)


# Steps that call torch.compile, traced as eager code.


class CompilesCode(BaseException):
    """Raised where a step calls torch.compile, to begin again with a compiler.

    It is no error of the step, so the step's own handlers should not catch it.
    """


def compile_nothing(
    replace: Callable[..., None], stack: ExitStack, assumptions: Assumptions
) -> None:
    """Let compiled code run as it was written, and note that the step has some.

    Args:
        replace: replaces attributes until the stack is closed.
        stack: is closed at the end of the trace.
        assumptions: keeps the notes, and says whether to stop instead.
    """
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
