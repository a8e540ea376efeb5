"""A GPU as XLA describes it: the target config of a compilation, from our own facts."""

from __future__ import annotations

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device

CUDNN, CUDA = (9, 12, 0), (13, 0, 0)
"""The versions that a module is compiled for."""
_SHARED_PER_BLOCK = 49_152
_OTHER_LANES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_LANES = 128
"""float32 lanes of an SM (CUDA C++ Programming Guide, arithmetic instructions)."""
_ACCELERATED = 9
"""From this capability on, kernels are compiled for one architecture only ("sm_90a")."""
_LEAST = (7, 0)


def target_config(gpu: Device) -> str:
    """The text of XLA's target config for a GPU.

    Raises:
        InvalidInput: XLA has no compiler for the GPU, or a fact about it is unknown.
    """
    capability = gpu.compute_capability
    if capability is None or capability < _LEAST:
        raise InvalidInput(
            f"XLA's CUDA compiler is for NVIDIA GPUs from compute capability 7.0 on; {gpu.name} is "
            "not one of them, so a JAX step cannot be compiled for it; choose another GPU"
        )
    facts = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": _SHARED_PER_BLOCK,
        "shared_memory_per_core": gpu.shared_bytes_per_sm,
        "threads_per_core_limit": gpu.max_threads_per_sm,
        "core_count": gpu.sm_count,
        "fpus_per_core": _OTHER_LANES.get(capability, _LANES),
        "block_dim_limit_x": 2_147_483_647,
        "block_dim_limit_y": 65_535,
        "block_dim_limit_z": 65_535,
        "memory_bandwidth": int(gpu.memory_bytes_per_s),
        "l2_cache_size": gpu.l2_bytes,
        "clock_rate_ghz": None if gpu.boost_clock_hz is None else gpu.boost_clock_hz / 1e9,
        "device_memory_size": _usable_bytes(gpu),
        "shared_memory_per_block_optin": gpu.shared_bytes_per_block_optin,
        "registers_per_core_limit": gpu.registers_per_sm,
        "registers_per_block_limit": gpu.registers_per_sm,
    }
    unknown = [name for name, value in facts.items() if value is None]
    if unknown:
        raise InvalidInput(
            f"{gpu.name}: XLA needs facts that are unknown ({', '.join(unknown)}); add them to its "
            "device file (docs/howto/add-a-gpu.md), or choose another GPU"
        )
    lines = [f"  {name}: {value}" for name, value in facts.items()]
    extension = " feature_extension: ACCELERATED_FEATURES" if capability[0] >= _ACCELERATED else ""
    cuda, cudnn = (".".join(map(str, version)) for version in (CUDA, CUDNN))
    lines += [
        f"  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]}{extension} }}",
        f'  driver_version: "{cuda}" runtime_version: "{cuda}"',
        f'  compile_time_toolkit_version: "{cuda}" dnn_version: "{cudnn}"',
        f'  name: "{gpu.name}" device_vendor: "NVIDIA Corporation"',
    ]
    version = "major: {} minor: {} patch: {}".format(*CUDNN)
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ {version} }}",
            f'device_description_str: "{gpu.name}"',
        ]
    )


_NEWER = ("_version:", "device_vendor:")
"""Fields on lines that releases before 0.10 do not know."""


def in_old_form(config: str) -> str:
    """The config without the fields that releases before 0.10 do not know."""
    lines = config.splitlines()
    return "\n".join(line for line in lines if not any(name in line for name in _NEWER))


def _usable_bytes(gpu: Device) -> int:
    measured = gpu.measured.get("memory_bytes")
    return int(measured.value) if measured is not None else gpu.memory_bytes
