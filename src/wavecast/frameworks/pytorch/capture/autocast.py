"""CUDA's autocast on fake CPU tensors: which ops run in half precision, and which in float32.

The CPU's autocast casts other ops than CUDA's. While tracing, its kernels are replaced by ones
that follow CUDA's lists in `aten/src/ATen/autocast_mode.h`. A test compares the names with those
that torch has registered for CUDA.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.kernels import aten_kernels
from wavecast.frameworks.pytorch.capture.values.places import is_cuda
from wavecast.frameworks.replacements import replacing

LOWER_PRECISION = """
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
    cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear
    addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell
    lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention
""".split()

FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm
    group_norm rms_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist
    pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
""".split()

# These ops take an optional dtype. Float32 is passed unless the caller chose one.
FLOAT32_DTYPE = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()

# These ops are redirected to an overload that takes a dtype.
FLOAT32_OVERLOAD = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}

WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""".split()

BANNED = ["binary_cross_entropy"]

Policy = Callable[[str, Any, "Casts"], Callable[..., Any]]
"""Makes the kernel of an op, given its name, torch's own op and the casts of the region."""
_AUTOCAST_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


class Casts:
    """The casts of one autocast region. A weight is cast once and kept until the region ends."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[Any, Any]] = {}

    def clear(self) -> None:
        """Forget the cast weights."""
        self._cache.clear()

    def cast(self, value: Any, dtype: Any) -> Any:
        """The value, with its floating-point GPU tensors cast to a dtype (`cached_cast`)."""
        if isinstance(value, torch.Tensor):
            return self._cast_tensor(value, dtype)
        if isinstance(value, list | tuple):
            return type(value)(self.cast(v, dtype) for v in value)
        return value

    def _cast_tensor(self, tensor: Any, dtype: Any) -> Any:
        if not _eligible(tensor) or tensor.dtype is dtype:
            return tensor
        cachable = (
            dtype is not torch.float32
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not cachable:
            return tensor.to(dtype)
        if id(tensor) not in self._cache:
            self._cache[id(tensor)] = (tensor, tensor.to(dtype))
        return self._cache[id(tensor)][1]


class _CpuAutocast(threading.local):
    """Whether autocast for the CPU is on in the present thread."""

    on = False


class _Switches:
    """Autocast's switches. Our kernels run on the CPU's autocast, so CUDA's turns it on, too."""

    def __init__(self) -> None:
        self._set, self._is_enabled = torch.set_autocast_enabled, torch.is_autocast_enabled
        self._before = self._is_enabled("cpu")
        self._cpu = _CpuAutocast()
        self._cpu.on = self._before
        self._on_cuda_before = self._is_enabled("cuda")

    def set(self, *args: Any) -> None:
        """`torch.set_autocast_enabled`."""
        device = args[0] if len(args) == 2 else "cuda"
        if device == "cpu":
            self._cpu.on = args[-1]
        else:
            self._set(device, args[-1])
        self._set("cpu", self._cpu.on or self._is_enabled("cuda"))

    def is_enabled(self, device: str = "cuda") -> bool:
        """`torch.is_autocast_enabled`."""
        return bool(self._cpu.on if device == "cpu" else self._is_enabled(device))

    def restore(self) -> None:
        """Set both switches as they were before."""
        self._set("cpu", self._before)
        self._set("cuda", self._on_cuda_before)


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Make `torch.autocast("cuda")` cast fake tensors as on a CUDA machine."""
    casts, switches = Casts(), _Switches()
    clear_cache = torch.clear_autocast_cache

    def clear_both() -> None:
        casts.clear()
        clear_cache()

    with ExitStack() as stack:
        stack.enter_context(aten_kernels("AutocastCPU", _kernels(casts)))
        stack.callback(switches.restore)
        replace = stack.enter_context(replacing())
        replace(
            torch,
            set_autocast_enabled=switches.set,
            is_autocast_enabled=switches.is_enabled,
            clear_autocast_cache=clear_both,
        )
        yield


@cache
def registered(key: str) -> frozenset[str]:
    """The names of the aten ops that have a kernel for an autocast dispatch key."""
    return frozenset(
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    )


def _kernels(casts: Casts) -> Iterator[tuple[str, Callable[..., Any]]]:
    policies: dict[str, Policy] = {
        **dict.fromkeys(LOWER_PRECISION, _cast_to(lambda _: torch.get_autocast_dtype("cuda"))),
        **dict.fromkeys(FLOAT32, _cast_to(lambda _: torch.float32)),
        **dict.fromkeys(FLOAT32_DTYPE, _with_dtype),
        **dict.fromkeys(FLOAT32_OVERLOAD, _to_overload),
        **dict.fromkeys(WIDEST, _cast_to(_widest)),
        **dict.fromkeys(BANNED, _refuse),
    }
    on_cuda = registered("AutocastCUDA")
    for name in sorted(registered("AutocastCPU") | on_cuda):
        if name in on_cuda and name in policies:
            yield name, policies[name](name, _overload(name), casts)
        else:
            yield name, torch.library.fallthrough_kernel


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _guarded(run: Callable[..., Any], op: Any) -> Callable[..., Any]:
    """The kernel with autocast off inside, as on CUDA; the plain op if CUDA's autocast is off."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return (run if torch.is_autocast_enabled("cuda") else op)(*args, **kwargs)

    return kernel


def _cast_to(dtype_of: Callable[[Any], Any]) -> Policy:
    """The policy that casts all arguments to one dtype, which may depend on them."""

    def policy(_name: str, op: Any, casts: Casts) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            dtype = dtype_of((args, tuple(kwargs.values())))
            named = {name: casts.cast(value, dtype) for name, value in kwargs.items()}
            return op(*(casts.cast(value, dtype) for value in args), **named)

        return _guarded(run, op)

    return policy


def _widest(arguments: Any) -> Any:
    wide = any(tensor.dtype is torch.float32 for tensor in _floats(arguments))
    return torch.float32 if wide else torch.get_autocast_dtype("cuda")


def _with_dtype(_name: str, op: Any, _casts: Casts) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        if _eligible(args[0]) and given.get("dtype") is None:
            args = args[: names.index("dtype")]
            kwargs = {k: v for k, v in kwargs.items() if k != "dtype"}
            return op(*args, **kwargs, dtype=torch.float32)
        return op(*args, **kwargs)

    return _guarded(run, op)


def _to_overload(name: str, op: Any, _casts: Casts) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not _eligible(args[0]) or args[0].dtype is torch.float32:
            return op(*args, **kwargs)
        widened = _overload(f"norm.{FLOAT32_OVERLOAD[name]}")
        return widened(*args, **kwargs, dtype=torch.float32)

    return _guarded(run, op)


def _refuse(_name: str, op: Any, _casts: Casts) -> Callable[..., Any]:
    def run(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; "
            "use binary_cross_entropy_with_logits"
        )

    return _guarded(run, op)


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and is_cuda(value)
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _floats(value: Any) -> Iterator[Any]:
    if _eligible(value):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _floats(item)
