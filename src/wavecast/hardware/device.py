"""What is known of one accelerator.

Conventions:

* A *device* is what a framework sees: one die of a K80, one GCD of an MI250X.
* ``memory_bytes`` reads the "24 GB" of a data sheet as GiB, which is what such cards hold
  (nvidia-smi shows 24576 MiB). Cards sold by a decimal number, such as the H200's "141 GB", carry
  what nvidia-smi shows.
* Rates are dense, and fp16 and bf16 tensor rates are with fp32 accumulation, as PyTorch uses them:
  a GeForce does half its advertised tensor rate.
* Nominal numbers are the attributes of a `Device`; measured ones stay apart, in `Device.measured`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wavecast.errors import UnknownName

RATE_UNITS = (
    "fp64",
    "fp32",
    "fp16",
    "fp32_tensor",
    "tf32_tensor",
    "fp16_tensor",
    "bf16_tensor",
    "fp8_tensor",
)
"""The arithmetic units that `Device.rate` knows; those without ``_tensor`` are the plain cores."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number and where it comes from."""

    value: float
    source: str


class _Named(type):
    """Lets a device be written as an attribute: `Device.V100`, `Device.H100_SXM_80GB`."""

    def __getattr__(cls, name: str) -> Device:
        if not name[:1].isupper():
            raise AttributeError(f"Device has no attribute {name!r}")
        from wavecast.hardware.devices import device

        try:
            return device(_HABITAT.get(name) or name.replace("_", " "))
        except UnknownName as error:
            raise AttributeError(f"Device.{name}: {error}") from error


_HABITAT = {"P100": "p100-pcie-16gb", "V100": "v100-sxm-16gb"}
"""The GPUs of Habitat's paper (table 2) whose names would fit several of ours."""


@dataclass(frozen=True, slots=True)
class Device(metaclass=_Named):
    """One accelerator as a framework sees it; ``None`` means that we do not know.

    ``fp32_tensor_flops`` is fp32 on matrix cores, which AMD's CDNA has and NVIDIA does not.
    ``sm_count`` counts compute units on AMD and Xe cores on Intel. ``nvlink_bytes_per_s`` is the
    link between GPUs (Infinity Fabric on AMD); on PCIe cards it needs a bridge, as its source says.
    Both link speeds are per direction.
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
    shared_bytes_per_sm: int | None = None
    shared_bytes_per_block_optin: int | None = None
    registers_per_sm: int | None = None
    max_threads_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    tdp_w: float | None = None
    # Dictionaries do not hash; two devices that differ here are still unequal.
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    measured: Mapping[str, Fact] = field(default_factory=dict, hash=False, repr=False)

    def rate(self, unit: str) -> float | None:
        """Dense FLOP/s of a unit ("fp32", "bf16_tensor", ...), or None if absent or unknown.

        Raises:
            UnknownName: `unit` is not one of `RATE_UNITS`.
        """
        if unit not in RATE_UNITS:
            known = ", ".join(RATE_UNITS)
            raise UnknownName(f'unknown arithmetic unit "{unit}"; the units are {known}')
        flops: float | None = getattr(self, f"{unit}_flops")
        return flops

    def __str__(self) -> str:
        return self.name
