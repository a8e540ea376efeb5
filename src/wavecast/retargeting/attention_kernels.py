"""The attention kernel that a GPU runs, chosen as in torch's `sdp_utils.cpp`."""

from __future__ import annotations

from dataclasses import dataclass

FLASH, EFFICIENT, CUDNN, MATH = "flash", "efficient", "cudnn", "math"
BACKENDS = frozenset((FLASH, EFFICIENT, CUDNN, MATH))
"""All of torch's ways to compute attention. "math" is several ops, the others are one kernel."""

_HALF = ("float16", "bfloat16")
_FLASH_LARGEST_HEAD = 256


@dataclass(frozen=True)
class Query:
    """The facts that the choice of the kernel depends on."""

    dtype: str
    """The data type of query, key and value, one of `DTYPE_BYTES`."""
    head_dim: int
    value_dim: int
    q_length: int
    kv_length: int
    mask: bool
    mask_needs_grad: bool
    dropout: float
    causal: bool
    grouped: bool
    four_d: bool
    mask_strided: bool = False
    """Whether the mask's last dimension has another stride than 1, as an expanded one has."""
    uneven: bool = False
    """Whether keys have fewer heads than queries without being told so, and are expanded."""


def choose(query: Query, capability: tuple[int, int], enabled: frozenset[str] = BACKENDS) -> str:
    """The backend that torch chooses on a GPU of this capability, among the enabled ones."""
    for backend in _order(capability):
        if backend in enabled and supports(backend, query, capability):
            return backend
    return MATH


def supports(backend: str, query: Query, capability: tuple[int, int]) -> bool:
    """Whether a backend can compute this attention on a GPU of this capability."""
    if backend == MATH:
        return True
    # `check_last_dim_stride_equals_1_dense`, for all kernels
    # and `check_batch_size_and_num_heads_dense`
    return not (query.mask_strided or query.uneven) and _SUPPORTS[backend](query, capability)


def has_own(backend: str, query: Query, capability: tuple[int, int]) -> bool:
    """Whether a framework that calls a kernel itself has it for this attention.

    cuDNN has DeepSeek's heads, 192 and 128, on Hopper and Blackwell (its own documentation), which
    torch does not ask it for on Blackwell.
    """
    if backend == CUDNN and capability >= (9, 0) and _is_latent(query):
        return not query.mask and query.dtype in _HALF
    return supports(backend, query, capability)


def _is_latent(query: Query) -> bool:
    return (query.head_dim, query.value_dim) == (192, 128)


def _order(capability: tuple[int, int]) -> tuple[str, ...]:
    # `check_prefer_cudnn_attention`: cuDNN comes first on Hopper and data-centre Blackwell
    # (observed on an H200 with torch 2.11).
    if capability in ((9, 0), (10, 0)):
        return (CUDNN, FLASH, EFFICIENT)
    return (FLASH, EFFICIENT, CUDNN)


def _flash(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and query.four_d
        and query.dtype in _HALF
        and not query.mask
        and query.head_dim == query.value_dim
        and query.head_dim <= _FLASH_LARGEST_HEAD
        and not (query.causal and query.q_length != query.kv_length and query.grouped)
    )


def _efficient(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (5, 0)
        and query.four_d
        and query.dtype in ("float32", *_HALF)
        and not (query.dtype == "bfloat16" and capability < (8, 0))
        and not query.grouped
        and not (query.mask and query.causal)
        and _aligned(query, capability)
    )


def _aligned(query: Query, capability: tuple[int, int]) -> bool:
    """Whether the last dimensions are whole numbers of aligned loads (`check_head_dim_size`)."""
    if query.dtype in _HALF and capability >= (7, 5):
        alignment = 8
    elif query.dtype in _HALF or capability >= (8, 0):
        alignment = 4
    else:
        alignment = 1
    return query.head_dim % alignment == 0 and query.value_dim % alignment == 0


def _cudnn(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and query.four_d
        and query.dtype in _HALF
        and query.head_dim % 8 == 0
        and query.head_dim <= (256 if capability[0] == 9 else 128)
        and not query.mask_needs_grad
    )


_SUPPORTS = {FLASH: _flash, EFFICIENT: _efficient, CUDNN: _cudnn}

FEWER_KERNELS: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (5, 0): ((7, 0), (7, 5)),
    (7, 0): ((5, 0), (7, 5)),
    (8, 0): ((10, 0),),
    (9, 0): ((8, 0), (10, 0)),
    (10, 0): ((8, 0),),
}
"""By GPU family: others that support an attention by a kernel only if this family does as well. So
what runs as several ops here runs so there."""
