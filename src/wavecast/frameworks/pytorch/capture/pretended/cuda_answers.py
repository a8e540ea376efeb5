"""What `torch.cuda` and its neighbours say about the GPU, its memory, and torch's CUDA build.

All of it is of one machine: with the GPU that was asked about, or with the usual one of a compute
capability. Versions are those of a recent build. No time depends on them; scripts compare them
with the oldest one that they need.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import torch

from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.places import GPU
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import is_ours, is_users
from wavecast.hardware.devices import Device

CUDA_VERSION, _CUDNN_VERSION, _NCCL_VERSION = "12.8", 91002, (2, 27, 3)
_ARCHITECTURES = (75, 80, 86, 90, 100, 120)
_MEMORY = "the GPU's free memory"


class _CudaDeviceProperties(SimpleNamespace):
    """What `torch.cuda.get_device_properties` returns."""


def properties_of(
    gpu: Device | None, capability: tuple[int, int], known: Mapping[str, Any]
) -> _CudaDeviceProperties:
    """The properties of a GPU; of one of a compute capability and 80 GiB if none is given.

    What `known` says, which a compiler may ask, counts more.
    """
    facts = {
        "name": f"a GPU of compute capability {capability[0]}.{capability[1]}",
        "major": capability[0],
        "minor": capability[1],
        "total_memory": 80 << 30,
        "multi_processor_count": 132,
        "warp_size": 32,
        "max_threads_per_multi_processor": 2048,
        "regs_per_multiprocessor": 65_536,
        "shared_memory_per_block": 49_152,
        "shared_memory_per_block_optin": 232_448,
        "shared_memory_per_multiprocessor": 233_472,
        "L2_cache_size": 50 << 20,
        "is_integrated": 0,
        "is_multi_gpu_board": 0,
        "uuid": UUID(int=0),
    }
    if gpu is not None:
        own = {
            "name": gpu.name if gpu.vendor in gpu.name else f"{gpu.vendor} {gpu.name}",
            "total_memory": gpu.memory_bytes,
            "multi_processor_count": gpu.sm_count,
            "max_threads_per_multi_processor": gpu.max_threads_per_sm,
            "regs_per_multiprocessor": gpu.registers_per_sm,
            "shared_memory_per_block_optin": gpu.shared_bytes_per_block_optin,
            "shared_memory_per_multiprocessor": gpu.shared_bytes_per_sm,
            "L2_cache_size": gpu.l2_bytes,
        }
        own |= dict(zip(("major", "minor"), gpu.compute_capability or (), strict=False))
        facts |= {name: value for name, value in own.items() if value is not None}
    return _CudaDeviceProperties(**(facts | dict(known)))


def answers(
    capability: tuple[int, int],
    for_libraries: Any,
    for_users: Any,
    assumptions: Assumptions,
) -> dict[str, Any]:
    """The functions of `torch.cuda` that describe the GPU. Calls by the user's code are noted.

    Args:
        capability: the compute capability whose kernels are chosen, which is what libraries get.
        for_libraries: the properties that libraries get.
        for_users: the properties that the user's code gets: those of the GPU that it asks about.
        assumptions: what was answered is noted there.
    """
    own = (for_users.major, for_users.minor)
    memory, name = for_users.total_memory, "{}.{}".format(*own)

    def telling(question: str, shown: str, answer: Any, other: Any) -> Callable[..., Any]:
        def tell(device: Any = None) -> Any:
            if not _is_asked_by_user():
                return other
            assumptions.note_answer(question, shown)
            assumptions.asks_capability |= question != _MEMORY
            return answer

        return tell

    def since_ampere() -> bool:
        assumptions.asks_capability = True
        return capability >= (8, 0)

    def count() -> int:
        assumptions.asks_count |= _is_asked_by_user()
        return 1

    size = f"{memory >> 30} GiB"
    return {
        "device_count": count,
        "get_device_capability": telling("the GPU's compute capability", name, own, capability),
        "get_device_properties": telling(
            "a property of the GPU",
            f"compute capability {name}, {size}",
            for_users,
            for_libraries,
        ),
        "get_device_name": lambda device=None: for_users.name,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or since_ampere(),
        "is_tf32_supported": since_ampere,
        "mem_get_info": telling(_MEMORY, size, *2 * ((memory, memory),)),
    }


def _is_asked_by_user() -> bool:
    """Whether the user's own code calls the calling function, maybe through another of ours."""
    frame = sys._getframe(2)
    while is_ours(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return is_users(frame.f_code.co_filename)


def _is_asked_by_torch() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.")


_COUNTERS = (
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("max_memory_cached", "memory_cached", "utilization", "memory_usage", "device_memory_used"),
    *("temperature", "power_draw", "clock_rate", "get_sync_debug_mode", "current_blas_handle"),
)
_SILENT = (
    *("set_device", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated"),
    *("reset_max_memory_cached", "reset_accumulated_memory_stats", "set_sync_debug_mode"),
    *("reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats", "check_error"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
    *("init", "set_per_process_memory_fraction", "ipc_collect", "_lazy_init", "_sleep"),
    *("_record_memory_history", "_dump_snapshot"),
)


def _no_statistics(device: Any = None) -> dict[str, int]:
    """Zero under every name."""
    return defaultdict(int)


class _Runtime:
    """What `torch.cuda.cudart()` returns: functions of CUDA's runtime, which all succeed."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "cudaMemGetInfo":
            return lambda device=0: torch.cuda.mem_get_info()
        return lambda *_: 0


IDLE: Mapping[str, Any] = {
    "memory_stats": _no_statistics,
    "host_memory_stats": _no_statistics,
    "memory_stats_as_nested_dict": lambda device=None: {},
    "memory_summary": lambda *_, **__: "",
    "memory_snapshot": lambda *_, **__: [],
    "list_gpu_processes": lambda device=None: "",
    "get_allocator_backend": lambda: "native",
    "get_per_process_memory_fraction": lambda device=None: 1.0,
    "can_device_access_peer": lambda device, peer: True,
    "cudart": _Runtime,
    **dict.fromkeys(_COUNTERS, lambda *_, **__: 0),
    **dict.fromkeys(_SILENT, lambda *_, **__: None),
}
"""The functions of `torch.cuda` that tell and set what a GPU is doing, as of an idle one."""


def cuda_build(capability: tuple[int, int]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What makes torch a build for CUDA that has kernels for this compute capability."""
    numbers = sorted({*_ARCHITECTURES, 10 * capability[0] + capability[1]})
    flags = " ".join(f"-gencode compute=compute_{n},code=sm_{n}" for n in numbers)
    yield torch.version, {"cuda": torch.version.cuda or CUDA_VERSION}
    # Torch itself would import what only such a build has.
    yield torch.backends.cuda, {"is_built": lambda: not _is_asked_by_torch()}
    yield torch.backends.cudnn, {"version": lambda: _CUDNN_VERSION}
    yield torch.cuda.nccl, {"version": lambda: _NCCL_VERSION, "is_available": lambda _: True}
    yield torch.cuda, {"get_arch_list": lambda: [f"sm_{number}" for number in numbers]}
    yield torch.cuda, {"get_gencode_flags": lambda: flags}
    # A build for the CPU lacks these functions, or refuses what they are asked to set.
    names = ("_set_linalg_preferred_backend", "_set_blas_preferred_backend")
    nothing = dict.fromkeys((*names, "_cuda_clearCublasWorkspaces"), lambda *_, **__: None)
    yield torch._C, nothing


# CUDA streams and events for tracing: a stream is a number, and waits are recorded.


def stream_class(recorder: OpRecorder) -> type:
    """The class that replaces `torch.cuda.Stream`."""

    class Stream:
        """A CUDA stream: a number that is recorded with each op."""

        cuda_stream = 0

        def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
            recorder.streams += 1
            self.stream_id = recorder.streams
            self.device = GPU
            self.priority = priority

        def synchronize(self) -> None:
            recorder.mark("cuda.stream_synchronize")

        def wait_stream(self, stream: Any) -> None:
            recorder.mark("cuda.stream_wait", self.stream_id, stream=stream.stream_id)

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def record_event(self, event: Any = None) -> Any:
            event = torch.cuda.Event() if event is None else event
            event.record(self)
            return event

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

    return Stream


def event_class(recorder: OpRecorder) -> type:
    """The class that replaces `torch.cuda.Event`."""

    class Event:
        """A CUDA event. It has no real time, because nothing runs."""

        def __init__(self, enable_timing: bool = False, **_: Any) -> None:
            self.enable_timing = enable_timing
            self.number: int | None = None

        def record(self, stream: Any = None) -> None:
            self.number = recorder.count_event()
            recorder.mark("cuda.event_record", _number_of(stream), event=self.number)

        def wait(self, stream: Any = None) -> None:
            if self.number is not None:  # CUDA does not wait for an event that was never recorded
                recorder.mark("cuda.stream_wait", _number_of(stream), event=self.number)

        def synchronize(self) -> None:
            recorder.mark("cuda.event_synchronize")

        def query(self) -> bool:
            return True

        def elapsed_time(self, end_event: Any) -> float:
            return 1.0

    return Event


def _number_of(stream: Any) -> int | None:
    return None if stream is None else int(stream.stream_id)


class _CurrentStream(threading.local):
    """The stream that the present thread has chosen. None for the default stream."""

    stream: Any = None


class Streams:
    """The current stream of each thread, and the functions that change it."""

    def __init__(self, recorder: OpRecorder, stream_type: type) -> None:
        self._recorder = recorder
        self._default = stream_type()
        self._default.stream_id = 0
        recorder.streams = 0
        self._here = _CurrentStream()

    def default(self, device: Any = None) -> Any:
        """`torch.cuda.default_stream`."""
        return self._default

    def current(self, device: Any = None) -> Any:
        """`torch.cuda.current_stream`."""
        return self._here.stream or self._default

    def set(self, stream: Any) -> None:
        """`torch.cuda.set_stream`."""
        if stream is not None:
            self._here.stream = stream
            self._recorder.stream = stream.stream_id

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        """`torch.cuda.stream`."""
        previous = self.current()
        self.set(stream)
        try:
            yield
        finally:
            self.set(previous)
