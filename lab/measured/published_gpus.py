"""What published tables call a GPU, and what we call it."""

from __future__ import annotations

NEUSIGHT = {
    "P4": "p4",
    "P100": "p100-pcie-16gb",
    "T4": "t4",
    "V100": "v100-pcie-32gb",
    "A100-PCIE-40GB": "a100-pcie-40gb",
    "MI100": "mi100",
}
NEUSIGHT_NVIDIA = {name: gpu for name, gpu in NEUSIGHT.items() if name != "MI100"}
KERNELS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "l40s": "l40s",
    "b200_sxm": "b200-sxm",
}
