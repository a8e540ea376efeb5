"""A pretended CUDA machine: `torch.cuda`, cuDNN's switches, GradScaler, torch.compile and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch._dynamo  # imported now, because it must not be imported while torch.cuda is replaced
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import flex_attention as flex
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach
from torch.utils._device import DeviceContext, _device_constructors

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import torchscript
from wavecast.frameworks.pytorch.capture.accelerator import replace_accelerator
from wavecast.frameworks.pytorch.capture.adaptive_softmax import adaptive_log_softmax
from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.cuda_answers import (
    answers,
    properties_of,
    replace_build,
    state_of_no_work,
)
from wavecast.frameworks.pytorch.capture.flex_attention import flex_attention
from wavecast.frameworks.pytorch.capture.host_values import LARGEST_CONSTANT
from wavecast.frameworks.pytorch.capture.loaded_files import load_real, rebuilt
from wavecast.frameworks.pytorch.capture.outside_tensors import OutsideTensors
from wavecast.frameworks.pytorch.capture.places import GPU, is_gpu, on_gpu, pin, put_on_gpu
from wavecast.frameworks.pytorch.capture.refusals import refused_functions
from wavecast.frameworks.pytorch.capture.replacements import replacing
from wavecast.frameworks.pytorch.capture.rnn_weights import flatten_parameters
from wavecast.frameworks.pytorch.capture.sparse_making import sparse_functions
from wavecast.frameworks.pytorch.capture.streams import Streams, event_class, stream_class
from wavecast.frameworks.pytorch.capture.uncompiled import compile_nothing
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.hardware.device import Device


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
        replace(torch.jit, script=torchscript.script, trace=torchscript.trace)
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
