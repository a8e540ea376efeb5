"""Blocks per SM, compared with NVIDIA's calculator and with the figures in profiler files."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_figures import kineto_blocks_per_sm, kineto_occupancy, kineto_warps_per_sm
from over_all import over

from wavecast.hardware.devices import Device, device, devices
from wavecast.hardware.occupancy import (
    LIMITS,
    SmLimits,
    blocks_per_sm,
    kernel_blocks_per_sm,
    limits_of,
)
from wavecast.traces.step import Kernel

KINETO = Path(__file__).parents[3] / "shared" / "data" / "kineto"
HABITAT = ("quadro-p4000", "p100-pcie-16gb", "v100-sxm-16gb", "rtx-2070", "rtx-2080-ti", "t4")

# Threads, registers, shared bytes; blocks per SM on HABITAT's GPUs by NVIDIA's cuda_occupancy.h.
VECTORS = [
    (256, 32, 0, (8, 8, 8, 4, 4, 4)),
    (1024, 32, 0, (2, 2, 2, 1, 1, 1)),
    (128, 64, 0, (8, 8, 8, 8, 8, 8)),
    (256, 128, 0, (2, 2, 2, 2, 2, 2)),
    (512, 40, 16384, (3, 3, 3, 2, 2, 2)),
    (64, 255, 49152, (2, 1, 2, 1, 1, 1)),
    (32, 16, 0, (32, 32, 32, 16, 16, 16)),
]

threads_ = st.integers(1, 1024)
registers_ = st.integers(0, 256)
shared_ = st.integers(0, 240_000)
limits_ = st.sampled_from(list(LIMITS.values()))


def limits(name: str) -> SmLimits:
    limits = limits_of(device(name))
    assert limits is not None
    return limits


@pytest.mark.parametrize(("threads", "registers", "shared", "expected"), VECTORS)
def test_blocks_per_sm_are_those_of_nvidias_calculator(
    threads: int, registers: int, shared: int, expected: tuple[int, ...]
) -> None:
    blocks = (blocks_per_sm(limits(name), threads, registers, shared) for name in HABITAT)
    assert tuple(blocks) == expected


# Computed by hand from the CUDA C++ Programming Guide: an SM's resources over those of a block.
@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "expected"),
    [
        ((3, 7), 256, 64, 0, 8),  # 128 Ki registers: twice as many as on a 5.2
        ((5, 2), 256, 64, 0, 4),
        ((3, 5), 32, 16, 0, 16),
        ((5, 3), 1024, 64, 0, 0),  # 64 Ki registers per SM, but 32 Ki per block
        ((6, 1), 1024, 64, 0, 1),
        ((7, 0), 64, 32, 65536, 1),
        ((8, 0), 128, 32, 16384, 9),  # 164 KiB / (16 + 1) KiB
        ((8, 0), 128, 32, 166912, 1),
        ((8, 0), 128, 32, 166913, 0),
        ((8, 6), 128, 32, 49152, 2),
        ((8, 6), 128, 32, 50177, 1),  # 49 KiB and a byte round up to 49.125 KiB, and 1 KiB more
        ((8, 9), 64, 16, 0, 24),
        ((9, 0), 384, 168, 232448, 1),
        ((10, 0), 32, 16, 0, 32),
        ((11, 0), 512, 32, 0, 3),
        ((12, 0), 256, 32, 101376, 1),
    ],
)
def test_newer_and_older_gpus_by_hand(
    capability: tuple[int, int], threads: int, registers: int, shared: int, expected: int
) -> None:
    assert blocks_per_sm(LIMITS[capability], threads, registers, shared) == expected


def test_more_than_48_kib_per_block_fits_only_where_one_can_opt_in() -> None:
    assert blocks_per_sm(limits("v100-sxm-16gb"), 128, 32, 65536) == 1
    assert blocks_per_sm(limits("p100-pcie-16gb"), 128, 32, 65536) == 0


def test_a_block_of_no_or_too_many_threads_does_not_run() -> None:
    assert blocks_per_sm(LIMITS[9, 0], 0, 32, 0) == blocks_per_sm(LIMITS[9, 0], 1025, 32, 0) == 0


@given(limits_, threads_, registers_, shared_)
def test_asking_for_more_never_fits_more(
    limits: SmLimits, threads: int, registers: int, shared: int
) -> None:
    blocks = blocks_per_sm(limits, threads, registers, shared)
    assert 0 <= blocks <= limits.max_blocks_per_sm
    assert blocks * threads <= limits.max_threads_per_sm
    assert blocks * threads * registers <= limits.registers_per_sm
    assert blocks * shared <= limits.shared_bytes_per_sm
    assert blocks_per_sm(limits, threads, registers + 1, shared) <= blocks
    assert blocks_per_sm(limits, threads, registers, shared + 1) <= blocks


# Devices.


@over("gpu", devices(), called=lambda gpu: gpu.id)
def test_every_nvidia_gpu_has_limits_and_its_facts_agree_with_the_table(gpu: Device) -> None:
    if gpu.compute_capability is None:
        assert gpu.vendor != "NVIDIA"
        assert limits_of(gpu) is None
    else:
        assert limits_of(gpu) == LIMITS[gpu.compute_capability]


def test_what_a_device_says_of_itself_comes_first() -> None:
    own = replace(
        device("h100-sxm-80gb"), max_threads_per_sm=1024, max_blocks_per_sm=4,
        registers_per_sm=32768, shared_bytes_per_sm=65536, shared_bytes_per_block_optin=50000,
    )  # fmt: skip
    limits = limits_of(own)
    assert limits is not None
    assert limits.max_threads_per_sm == 1024
    assert limits.max_blocks_per_sm == 4
    assert limits.registers_per_sm == 32768
    assert limits.shared_bytes_per_sm == 65536
    assert limits.shared_bytes_optin == 50000


@pytest.mark.parametrize(
    ("capability", "used"), [((13, 0), (12, 1)), ((9, 5), (9, 0)), ((3, 6), (3, 5))]
)
def test_an_unknown_capability_is_taken_as_the_nearest_older_one_and_says_so(
    capability: tuple[int, int], used: tuple[int, int]
) -> None:
    bare = Device("x", "X", "NVIDIA", "?", 1, 1.0, 1.0, compute_capability=capability)
    limits = limits_of(bare)
    note = f"compute capability {capability[0]}.{capability[1]} as {used[0]}.{used[1]}"
    assert limits == replace(LIMITS[used], note=note)


def test_gpus_older_than_the_table_and_of_other_makers_have_no_limits() -> None:
    bare = Device("x", "X", "NVIDIA", "Fermi", 1, 1.0, 1.0, compute_capability=(2, 0))
    assert limits_of(bare) is limits_of(device("mi250-gcd")) is None


# Kineto.


def kernel(grid: Any, block: Any, registers: int | None = 32, shared: int | None = 0) -> Kernel:
    return Kernel("k", 1e-6, tuple(grid), tuple(block), registers, shared)


# From the real files in ../shared/data/kineto.
@pytest.mark.parametrize(
    ("gpu", "launch", "percent"),
    [
        ("a100-sxm-40gb", ((864, 1, 1), (256, 1, 1), 47, 0), 63),
        ("a100-sxm-40gb", ((3025, 1, 1), (128, 1, 1), 160, 16384), 19),
        ("v100-sxm-16gb", ((110, 1, 1), (128, 1, 1), 20, 0), 9),
        ("v100-sxm-16gb", ((4, 3, 12), (256, 1, 1), 57, 16384), 22),  # 22.5 in single precision
        ("v100-sxm-16gb", ((1, 1, 1), (128, 1, 1), 20, 0), 0),
    ],
)
def test_kinetos_occupancy(gpu: str, launch: tuple[Any, ...], percent: int) -> None:
    assert kineto_occupancy(device(gpu), kernel(*launch)) == percent


def test_kineto_never_opts_in_to_more_shared_memory() -> None:
    large = kernel((1000, 1, 1), (256, 1, 1), 128, 67584)
    assert kineto_occupancy(device("a100-sxm-40gb"), large) == 0
    assert kernel_blocks_per_sm(device("a100-sxm-40gb"), large) == 2


def test_without_a_launch_or_an_nvidia_gpu_there_is_no_occupancy() -> None:
    launched = kernel((8, 1, 1), (64, 1, 1))
    assert kineto_occupancy(device("mi250-gcd"), launched) is None
    assert kineto_occupancy(device("t4"), Kernel("k", 1e-6)) is None
    assert kineto_occupancy(device("t4"), replace(launched, registers=None)) is None
    assert kineto_occupancy(replace(device("t4"), sm_count=None), launched) is None
    assert kineto_warps_per_sm(device("t4"), replace(launched, block=None)) is None


@pytest.mark.skipif(not KINETO.is_dir(), reason="needs ../shared/data/kineto")
@pytest.mark.parametrize(
    ("gpu", "file"),
    [
        ("a100-sxm-40gb", "alexnet_fwd_a100.json.gz"),
        ("a100-sxm-40gb", "triton_kernel_a100.json.gz"),
        ("v100-sxm-16gb", "recsys_v100_16gb_rank1of2.trace_diff_test.json.gz"),
        ("v100-sxm-32gb", "resnet50_ddp_v100_32gb_rank0.ns_resolution.json.gz"),
    ],
)
def test_every_kernel_of_the_real_files_reads_as_kineto_wrote_it(gpu: str, file: str) -> None:
    on = device(gpu)
    with gzip.open(KINETO / file) as stream:
        events = json.load(stream)["traceEvents"]
    seen = 0
    for figures in (event["args"] for event in events if event.get("cat") == "kernel"):
        shared = figures["shared memory"]
        launch = kernel(figures["grid"], figures["block"], figures["registers per thread"], shared)
        assert kineto_occupancy(on, launch) == figures["est. achieved occupancy %"], launch
        assert kineto_blocks_per_sm(on, launch) == pytest.approx(figures["blocks per SM"], rel=1e-4)
        assert kineto_warps_per_sm(on, launch) == pytest.approx(figures["warps per SM"], rel=1e-4)
        seen += 1
    assert seen
