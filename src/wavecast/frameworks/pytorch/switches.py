"""Torch's process-wide switches, restored after a traced step that may have changed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_backends = torch.backends
_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark),
    (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
    (_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    (_backends.cuda.mem_efficient_sdp_enabled, _backends.cuda.enable_mem_efficient_sdp),
    (_backends.cuda.cudnn_sdp_enabled, _backends.cuda.enable_cudnn_sdp),
    (_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
)

# Torch has two interfaces for the precision of float32 products. The old one raises an error once
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
    """Restore torch's switches after the block."""
    with ExitStack() as stack:
        for read, write in _SWITCHES:
            stack.callback(write, read())
        stack.callback(_restore_precisions, *_precisions())
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        stack.callback(_restore_default_device, context)
        yield


@contextmanager
def true_float32() -> Iterator[None]:
    """Compute float32 matrix products in float32 and not in TF32, whose 10 bits may be too few."""
    with switches_restored():
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        yield


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
