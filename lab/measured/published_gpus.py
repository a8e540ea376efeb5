"""The names of GPUs in public tables, mapped to the ids of our devices."""

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
VIDUR = {"a100": "a100-sxm-80gb", "a40": "a40"}
DEEPBENCH = {
    "GTX 1080 Ti": "gtx-1080-ti",
    "Radeon Vega Frontier Edition": "vega-frontier-edition",
    "TITAN X Maxwell": "gtx-titan-x-maxwell",
    "TITAN X Pascal": "titan-x-pascal",
    "Tesla M40": "m40",
    "Tesla P100 PCIe 16GB": "p100-pcie-16gb",
    "Tesla V100 SXM2 16GB": "v100-sxm-16gb",
}
DEEPBENCH_NVIDIA = {name: gpu for name, gpu in DEEPBENCH.items() if "Radeon" not in name}
