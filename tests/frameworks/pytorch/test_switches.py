"""Every switch of torch that a traced step changes is afterwards as it was before."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from networks import Step, mlp, training

from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.recording.switches import true_float32

cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn


def _open_autocast() -> None:
    torch.autocast("cuda", torch.bfloat16, cache_enabled=False).__enter__()
    torch.autocast("cpu", torch.float16).__enter__()


def _autocast() -> list[Any]:
    torch.autocast_increment_nesting()
    nesting = torch.autocast_decrement_nesting()
    state: list[Any] = [torch.is_autocast_cache_enabled(), nesting]
    for device in ("cpu", "cuda"):
        state += [torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)]
    return state


def _deterministic() -> list[Any]:
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        getattr(sys.modules.get("torch._inductor.config"), "deterministic", False),
    ]


def _set_deterministic() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


_kept: list[Any] = []


def _open_inference_mode() -> None:
    _kept.append(torch.inference_mode())  # kept, so that Python does not close it
    _kept[-1].__enter__()


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "deterministic": (_deterministic, _set_deterministic),
    "anomaly": (
        lambda: [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    ),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "interop threads": (
        torch.get_num_interop_threads,
        lambda: torch.set_num_interop_threads(torch.get_num_interop_threads() + 1),
    ),
    "mkldnn": (
        lambda: [mkldnn.enabled, mkldnn.deterministic],
        lambda: mkldnn.set_flags(False, True),
    ),
    "nnpack": (torch._C._get_nnpack_enabled, lambda: torch._C._set_nnpack_enabled(False)),
    "fp16 reductions": (
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        _set(cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    ),
    "bf16 reductions": (
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
        _set(cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    ),
    "fp16 accumulation": (
        lambda: cuda.matmul.allow_fp16_accumulation,
        _set(cuda.matmul, "allow_fp16_accumulation", True),
    ),
    "denormals": (
        lambda: sys.float_info.min / 2 == 0.0,
        lambda: torch.set_flush_denormal(True),
    ),
    "autocast": (_autocast, _open_autocast),
    "gradients": (torch.is_grad_enabled, lambda: torch._C._set_grad_enabled(False)),
    "inference mode": (
        lambda: [torch.is_inference_mode_enabled(), torch.is_grad_enabled()],
        _open_inference_mode,
    ),
    "default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "default device": (torch.get_default_device, lambda: torch.set_default_device("cuda")),
    "cudnn": (
        lambda: [cudnn.enabled, cudnn.benchmark, cudnn.deterministic],
        lambda: torch._C._set_cudnn_enabled(False) or _set(cudnn, "benchmark", True)(),
    ),
    "flash": (cuda.flash_sdp_enabled, lambda: cuda.enable_flash_sdp(False)),
    "efficient": (cuda.mem_efficient_sdp_enabled, lambda: cuda.enable_mem_efficient_sdp(False)),
    "cudnn attention": (cuda.cudnn_sdp_enabled, lambda: cuda.enable_cudnn_sdp(False)),
    "plain attention": (cuda.math_sdp_enabled, lambda: cuda.enable_math_sdp(False)),
    "half attention": (
        cuda.fp16_bf16_reduction_math_sdp_allowed,
        lambda: cuda.allow_fp16_bf16_reduction_math_sdp(True),
    ),
    "attention order": (
        torch._C._get_sdp_priority_order,
        lambda: torch._C._set_sdp_priority_order([2, 1, 0, 3, 4]),
    ),
    "fast path": (
        torch.backends.mha.get_fastpath_enabled,
        lambda: torch.backends.mha.set_fastpath_enabled(False),
    ),
    "printing": (
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda: torch.set_printoptions(precision=9, sci_mode=True, linewidth=10),
    ),
    "sharing": (
        torch.multiprocessing.get_sharing_strategy,
        lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
    ),
    "warnings": (torch.is_warn_always_enabled, lambda: torch.set_warn_always(True)),
    "overwritten parameters": (
        torch.__future__.get_overwrite_module_params_on_conversion,
        lambda: torch.__future__.set_overwrite_module_params_on_conversion(True),
    ),
    "distributions": (
        lambda: torch.distributions.Distribution._validate_args,
        lambda: torch.distributions.Distribution.set_default_validate_args(
            not torch.distributions.Distribution._validate_args
        ),
    ),
    "torch's random numbers": (lambda: torch.get_rng_state().tolist(), lambda: torch.rand(3)),
    "Python's random numbers": (random.getstate, random.random),
    "numpy's random numbers": (lambda: repr(np.random.get_state(legacy=False)), np.random.rand),
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("fails", [False, True], ids=["traced", "failed"])
def test_a_switch_is_restored(name: str, fails: bool) -> None:
    read, change = SWITCHES[name]
    np.random.seed(7)
    before = read()
    changed: list[bool] = []

    def make_step() -> Step:
        step = training(mlp)()
        calls = iter(range(2))

        def step_and_change() -> None:
            step()
            if next(calls) == 1:
                change()
                changed.append(name == "interop threads" or read() != before)
                if fails:
                    raise ValueError("enough")

        return step_and_change

    if fails:
        with pytest.raises(Exception, match="enough"):
            capture(make_step)
    else:
        capture(make_step)
    assert changed == [True]
    assert read() == before


def test_the_switches_of_the_caller_stay_in_force() -> None:
    inside: list[bool] = []

    def make_step() -> Step:
        model, x = mlp().cuda().eval(), torch.randn(4, 8, device="cuda")
        inside.append(torch.is_grad_enabled())
        return lambda: model(x)

    for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with mode:
            capture(make_step)
            assert inside[-1] is torch.is_grad_enabled()
            assert torch.is_inference_mode_enabled() is isinstance(mode, torch.inference_mode)
    assert inside == [False, False, True]


def test_true_float32_restores_the_precision_and_no_random_state() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    precision = cuda.matmul.fp32_precision
    with true_float32():
        assert cuda.matmul.fp32_precision == "ieee"
        torch.rand(1)
    assert cuda.matmul.fp32_precision == precision
    assert not torch.equal(torch.get_rng_state(), state)
