"""The facts about one accelerator.

Conventions:

* A *device* is what a framework sees: one die of a K80, one GCD of an MI250X.
* ``memory_bytes`` reads the "24 GB" of a data sheet as 24 GiB, since such cards have that much
  (nvidia-smi shows 24576 MiB). Cards sold by a decimal number, such as the H200's "141 GB", have
  the number that nvidia-smi shows.
* Rates are dense. Those of fp16 and bf16 tensor cores are with fp32 accumulation, as PyTorch uses
  them: a GeForce then runs at half its advertised tensor rate.
* The attributes of a `Device` are nominal numbers. Measured numbers are in `Device.measured`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wavecast.errors import UnknownName
from wavecast.showing import Shown

RATE_UNITS = (
    "fp64",
    "fp32",
    "fp16",
    "fp32_tensor",
    "tf32_tensor",
    "fp16_tensor",
    "bf16_tensor",
    "fp8_tensor",
    "int8_tensor",
)
"""The arithmetic units of `Device.rate`. Those without ``_tensor`` are the CUDA cores."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A measured number and its source."""

    value: float
    source: str


class _Named(type):
    """A metaclass that gives devices as attributes: `Device.V100`, `Device.H100_SXM_80GB`."""

    def __getattr__(cls, name: str) -> Device:
        if not name[:1].isupper():
            raise AttributeError(f"Device has no attribute {name!r}")
        from wavecast.hardware.devices import device

        try:
            return device(_HABITAT.get(name) or name.replace("_", " "))
        except UnknownName as error:
            raise AttributeError(f"Device.{name}: {error}") from error


_HABITAT = {"P100": "p100-pcie-16gb", "V100": "v100-sxm-16gb"}
"""The GPUs of Habitat's paper (table 2) whose names fit several of our devices. Its V100 is that of
AWS's p3.2xlarge (section 5.1), which has the SXM2 card."""


@dataclass(frozen=True, slots=True, repr=False)
class Device(Shown, metaclass=_Named):
    """One accelerator as a framework sees it. ``None`` means that a number is unknown.

    Units are SI: bytes, bytes/s, FLOP/s, Hz, W. ``fp32_tensor_flops`` is fp32 on matrix cores,
    which AMD's CDNA has and NVIDIA does not. ``sm_count`` counts compute units on AMD and Xe cores
    on Intel. ``nvlink_bytes_per_s`` is the link between GPUs (Infinity Fabric on AMD); on PCIe
    cards it needs a bridge, as its source says. Both link speeds are per direction.

    >>> Device.H100_SXM_80GB.sm_count
    132
    """

    id: str
    name: str
    vendor: str
    architecture: str
    memory_bytes: int
    memory_bytes_per_s: float
    fp32_flops: float
    aliases: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    base_clock_hz: float | None = None
    boost_clock_hz: float | None = None
    l2_bytes: int | None = None
    fp64_flops: float | None = None
    fp16_flops: float | None = None
    fp32_tensor_flops: float | None = None
    tf32_tensor_flops: float | None = None
    fp16_tensor_flops: float | None = None
    bf16_tensor_flops: float | None = None
    fp8_tensor_flops: float | None = None
    int8_tensor_flops: float | None = None
    shared_bytes_per_sm: int | None = None
    shared_bytes_per_block_optin: int | None = None
    registers_per_sm: int | None = None
    max_threads_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    tdp_w: float | None = None
    # Dictionaries cannot be hashed. Devices that differ only here are unequal all the same.
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    measured: Mapping[str, Fact] = field(default_factory=dict, hash=False, repr=False)

    def rate(self, unit: str) -> float | None:
        """Dense FLOP/s of a unit ("fp32", "bf16_tensor", ...), or None if absent or unknown.

        Raises:
            UnknownName: `unit` is not one of `RATE_UNITS`.
        """
        if unit not in RATE_UNITS:
            listed = ", ".join(RATE_UNITS)
            raise UnknownName(f'unknown arithmetic unit "{unit}"; the units are {listed}')
        flops: float | None = getattr(self, f"{unit}_flops")
        return flops

    def __str__(self) -> str:
        return self.name
