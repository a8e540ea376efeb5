"""Torch's process-wide switches, restored after a traced step that may have changed them."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.multiprocessing
from torch import _tensor_str

_C = torch._C

# Switches that torch keeps in C++, by the names of the functions in `torch._C` that read and write
# them. Some releases of torch lack some of them.
_IN_C = (
    ("get_default_dtype", "_set_default_dtype"),
    ("_get_warnAlways", "_set_warnAlways"),
    ("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
    ("_is_multithreading_enabled", "_set_multithreading_enabled"),
    ("_is_view_replay_enabled", "_set_view_replay_enabled"),
    ("_check_sparse_tensor_invariants", "_set_check_sparse_tensor_invariants"),
    ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    ("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    ("_get_nnpack_enabled", "_set_nnpack_enabled"),
    ("_get_qengine", "_set_qengine"),
    ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    ("_get_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_accumulation"),
    *(
        (f"_get_{name}_reduced_precision_reduction", f"_set_{name}_reduced_precision_reduction")
        for name in ("cpu_allow_fp16", "cublas_allow_fp16", "cublas_allow_bf16")
    ),
    ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
    ("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    ("_get_math_sdp_allow_fp16_bf16_reduction", "_set_math_sdp_allow_fp16_bf16_reduction"),
    ("_get_sdp_priority_order", "_set_sdp_priority_order"),
)

# Switches that are attributes of Python objects.
_ATTRIBUTES = (
    (torch.backends.opt_einsum, "enabled"),
    (torch.backends.opt_einsum, "strategy"),
    (torch.distributions.Distribution, "_validate_args"),
)

_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "mtia")

# Torch has two interfaces for the precision of float32 matmuls. The old one raises an error once
# both have been used.
_OLD_PRECISION = (
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch._C._get_cudnn_allow_tf32, torch._C._set_cudnn_allow_tf32),
)
_NEW_PRECISION = (
    ("generic", "all"),
    *(("cuda", op) for op in ("all", "matmul", "conv", "rnn")),
    *(("mkldnn", op) for op in ("all", "matmul", "conv", "rnn")),
)


@contextmanager
def switches_restored() -> Iterator[None]:
    """Restore torch's switches and all random states after the block."""
    with ExitStack() as stack:
        for read, write in (*_readers_and_writers(), *_random_states()):
            stack.callback(_restore, read, write, read())
        stack.callback(_restore_precisions, *_precisions())
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        stack.callback(_restore_default_device, context)
        stack.callback(_C._set_grad_enabled, torch.is_grad_enabled())
        # Torch cannot close an inference mode that the block leaves open. Leaving one that
        # surrounds it restores the state from before.
        surrounding = torch.inference_mode(torch.is_inference_mode_enabled())
        grad_enabled = torch.is_grad_enabled()
        stack.enter_context(surrounding)
        _C._set_grad_enabled(grad_enabled)
        yield


@contextmanager
def true_float32() -> Iterator[None]:
    """Compute float32 matmuls in float32 and not in TF32, whose 10 bits may be too few."""
    old, new = _precisions()
    try:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        yield
    finally:
        _restore_precisions(old, new)


def _readers_and_writers() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How to read and how to write each switch of the installed torch."""
    for reader, writer in _IN_C:
        if hasattr(_C, reader) and hasattr(_C, writer):
            yield getattr(_C, reader), _spreading(getattr(_C, writer))
    for owner, name in _ATTRIBUTES:
        yield _attribute_switch(owner, name)
    yield _deterministic, _set_deterministic
    yield (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda state: torch.autograd.set_detect_anomaly(*state),
    )
    yield torch.get_num_threads, torch.set_num_threads
    # Torch cannot say whether this thread's processor rounds the smallest numbers to zero.
    yield lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal
    yield torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
    yield torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    future = torch.__future__
    for name in ("overwrite_module_params_on_conversion", "swap_module_params_on_conversion"):
        yield getattr(future, f"get_{name}"), getattr(future, f"set_{name}")
    yield (
        lambda: copy.copy(_tensor_str.PRINT_OPTS),
        lambda options: vars(_tensor_str.PRINT_OPTS).update(vars(options)),
    )
    yield _autocast_nesting, _set_autocast_nesting
    for device in _AUTOCAST_DEVICES:
        yield _autocast_switch(torch.is_autocast_enabled, torch.set_autocast_enabled, device)
        yield _autocast_switch(torch.get_autocast_dtype, torch.set_autocast_dtype, device)


def _random_states() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    yield (
        lambda: tuple(torch.get_rng_state().tolist()),
        lambda state: torch.set_rng_state(torch.tensor(state, dtype=torch.uint8)),
    )
    yield random.getstate, random.setstate
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # it need not be imported for a state that no code can have used
        yield numpy.random.get_state, numpy.random.set_state


def _restore(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> None:
    if not _equal(read(), value):
        write(value)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    equal = left == right
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _spreading(write: Callable[..., Any]) -> Callable[[Any], Any]:
    """A writer that takes what the reader returns, which may be several values."""
    return lambda value: write(*value) if isinstance(value, tuple) else write(value)


def _attribute_switch(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _autocast_switch(
    read: Callable[..., Any], write: Callable[..., Any], device: str
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: read(device), lambda value: write(device, value)


def _deterministic() -> tuple[bool, bool, bool, Any]:
    inductor = sys.modules.get("torch._inductor.config")
    return (
        _C._get_deterministic_algorithms(),
        _C._get_deterministic_algorithms_warn_only(),
        _C._get_deterministic_fill_uninitialized_memory(),
        getattr(inductor, "deterministic", False),
    )


def _set_deterministic(state: tuple[bool, bool, bool, Any]) -> None:
    _C._set_deterministic_algorithms(state[0], warn_only=state[1])
    _C._set_deterministic_fill_uninitialized_memory(state[2])
    inductor: Any = sys.modules.get("torch._inductor.config")
    if hasattr(inductor, "deterministic"):
        inductor.deterministic = state[3]


def _autocast_nesting() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _set_autocast_nesting(depth: int) -> None:
    """Close the autocast regions that were left open, and forget their casts."""
    while _autocast_nesting() > depth:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _precisions() -> tuple[list[Any], list[str]]:
    old: list[Any] = []
    for read, _ in _OLD_PRECISION:
        try:
            old.append(read())
        except RuntimeError:  # both interfaces were used
            old.append(None)
    return old, [torch._C._get_fp32_precision_getter(*key) for key in _NEW_PRECISION]


def _restore_precisions(old: list[Any], new: list[str]) -> None:
    now, _ = _precisions()
    for (_, write), value, current in zip(_OLD_PRECISION, old, now, strict=True):
        if value is not None and value != current:
            write(value)
    for key, value in zip(_NEW_PRECISION, new, strict=True):
        if torch._C._get_fp32_precision_getter(*key) != value:
            torch._C._set_fp32_precision_setter(*key, value)


def _restore_default_device(context: Any) -> None:
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not context:
        torch.set_default_device(context.device if context is not None else None)
    if context is None and hasattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context"):
        # Torch 2.9 takes an attribute that is None for a device.
        del torch._GLOBAL_DEVICE_CONTEXT.device_context
