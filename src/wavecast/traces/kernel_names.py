"""What the names of kernels mean: the one place that knows."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COPIES = ("Memcpy", "Memset")
_PRODUCT = re.compile(
    r"gemm|gemv|conv(?!ert)|xmma|cutlass|winograd|fft|nvjet|dgrad|wgrad|fprop|flash|fmha|sdpa"
    r"|attention|persist"
)
_GEMM_OR_CONVOLUTION = re.compile(r"gemm|conv(?!ert)|xmma|cutlass|winograd|nvjet", re.IGNORECASE)
_TF32 = re.compile(r"tf32|(?<![a-z])s(?:1688|16816)(?:gemm|fprop|dgrad|wgrad|cudnn)")
_COMMUNICATION = re.compile(r"(?:nccl|rccl|msccl)\w*?Kernel_?([A-Z][A-Za-z]*)?")
_COMMUNICATION_LIBRARIES = ("nccl", "rccl", "msccl")
# The first pattern that a kernel's name contains tells the type of its data.
_DTYPES = (
    (re.compile(r"BFloat16|bf16"), "bfloat16"),
    (re.compile(r"\bHalf\b|__half|OpaqueType<2"), "float16"),
    (re.compile(r"\bfloat\b|OpaqueType<4"), "float32"),
    (re.compile(r"\bdouble\b"), "float64"),
    (re.compile(r"\blong\b|OpaqueType<8"), "int64"),
    (re.compile(r"\bint\b"), "int32"),
    (re.compile(r"OpaqueType<1|\bunsigned char\b"), "uint8"),
)


def is_copy(name: str) -> bool:
    """Whether the driver copies or fills memory, without a kernel."""
    return name.startswith(_COPIES)


def copies_to_gpu(name: str) -> bool:
    """Whether it is a copy from the host's memory to the GPU's."""
    return name.startswith("Memcpy HtoD")


def copies_to_host(name: str) -> bool:
    """Whether it is a copy from the GPU's memory to the host's."""
    return name.startswith("Memcpy DtoH")


def is_pageable_copy(name: str) -> bool:
    """Whether a copy goes through memory of the host that is not pinned."""
    return "Pageable" in name


def is_product(name: str) -> bool:
    """Whether a kernel does the arithmetic of a product, convolution, attention or RNN."""
    return _PRODUCT.search(name) is not None


def is_gemm_or_convolution(name: str) -> bool:
    """Whether Daydream would call the kernel compute-bound (Zhu et al., ATC 2020, section 5.1)."""
    return _GEMM_OR_CONVOLUTION.search(name) is not None


def rounds_to_tf32(name: str) -> bool:
    """Whether a kernel of a float32 product rounds its inputs to TF32."""
    return _TF32.search(name) is not None


def is_triton(name: str) -> bool:
    """Whether Triton made the kernel, as `torch.compile` has it do."""
    return name.startswith("triton_")


def is_collective(name: str) -> bool:
    """Whether a kernel exchanges data with other GPUs."""
    return name.startswith(_COMMUNICATION_LIBRARIES)


def collective_in(name: str) -> str | None:
    """The collective that a kernel runs, `all_reduce` of `ncclDevKernel_AllReduce_Sum_f32`.

    "generic" where the name does not say which; None for kernels that are no collective.
    """
    match = _COMMUNICATION.match(name)
    if match is None:
        return None
    return re.sub(r"(?<!^)(?=[A-Z])", "_", match[1] or "generic").lower()


def dtype_in(names: Iterable[str]) -> str | None:
    """The data type that the names of an op's kernels tell; None if they tell none."""
    text = " ".join(names)
    return next((dtype for pattern, dtype in _DTYPES if pattern.search(text)), None)


def short_name(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", name, maxsplit=1)[0].strip().replace(" ", "_") or "unnamed"


def function_name(name: str) -> str:
    """The function's own name: `softmax` of `void at::softmax<float, 4>(float*)`."""
    depth, kept = 0, []
    for character in name.replace("(anonymous namespace)", "").replace("<unnamed>", ""):
        depth += character == "<"
        if not depth:
            kept.append(character)
        depth -= character == ">" and depth > 0
    plain = "".join(kept).split("(")[0].strip()
    return plain.split(" ")[-1].split("::")[-1]


def template_words(name: str) -> tuple[str, ...]:
    """The words of a function's template arguments, as both tools write them."""
    plain = name.replace("(anonymous namespace)", "").replace("<unnamed>", "")
    depth = 0
    for position, character in enumerate(plain):
        depth += (character == "<") - (character == ">")
        if character == "(" and not depth:
            plain = plain[:position]
            break
    # ncu writes (int)4, (bool)1 and (unsigned long)3 for 4, true and 3ul.
    uncast = re.sub(r"\([a-z ]+\)(?=-?\d)", "", plain.partition("<")[2])
    words = re.findall(r"\w+", re.sub(r"\b(\d+)u?l{0,2}\b", r"\1", uncast))
    return tuple({"true": "1", "false": "0"}.get(word, word) for word in words)
