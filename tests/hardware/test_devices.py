"""Devices: their facts are plausible, names resolve, and bad files are refused with a reason."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from over_all import Decorator, over

from wavecast import files
from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware.devices import (
    RATE_UNITS,
    Device,
    Fact,
    device,
    devices,
    known_device,
    read_device,
    words_of,
)

SHIPPED = sorted(files.shipped("devices").glob("*.toml"))

CORES_PER_SM = {
    (3, 7): 192,
    (5, 2): 128,
    (6, 0): 64,
    (6, 1): 128,
    (7, 0): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 7): 128,
    (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128,
    (10, 3): 128,
    (12, 0): 128,
    (12, 1): 128,
}

# FLOP per clock and SM at fp16 with fp32 accumulation, dense.
TENSOR_FLOP_PER_CLOCK = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 7): 2048,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
    (10, 3): 8192,
    (12, 0): 1024,
    (12, 1): 1024,
}


@pytest.fixture(autouse=True)
def _no_devices_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WAVECAST_DEVICES", raising=False)


def shipped() -> list[Device]:
    return [read_device(path) for path in SHIPPED]


def for_each(gpus: list[Device]) -> Decorator:
    return over("gpu", gpus, called=lambda gpu: gpu.id)


every_device = for_each(shipped())
every_nvidia_device = for_each([gpu for gpu in shipped() if gpu.vendor == "NVIDIA"])
# The H20 has no known clock that gives its rates.
clocked = [gpu for gpu in shipped() if gpu.compute_capability and gpu.boost_clock_hz]


@every_device
def test_every_number_has_a_source(gpu: Device) -> None:
    numbers = {
        f.name
        for f in dataclasses.fields(gpu)
        if isinstance(getattr(gpu, f.name), int | float) or f.name == "compute_capability"
    }
    known = {name for name in numbers if getattr(gpu, name) is not None}
    assert known == set(gpu.sources)
    assert all(source.strip() for source in gpu.sources.values())
    assert all(fact.source.strip() for fact in gpu.measured.values())


@every_nvidia_device
def test_every_nvidia_gpu_knows_what_waves_need(gpu: Device) -> None:
    assert gpu.compute_capability in CORES_PER_SM
    assert gpu.shared_bytes_per_sm is not None
    assert gpu.registers_per_sm is not None
    assert gpu.max_threads_per_sm is not None
    assert gpu.max_blocks_per_sm is not None


@for_each(clocked)
def test_fp32_rate_is_two_flop_per_core_and_clock(gpu: Device) -> None:
    assert gpu.compute_capability is not None
    assert gpu.sm_count is not None
    assert gpu.boost_clock_hz is not None
    cores = gpu.sm_count * CORES_PER_SM[gpu.compute_capability]
    assert gpu.fp32_flops == pytest.approx(2 * cores * gpu.boost_clock_hz, rel=0.03)


@for_each([gpu for gpu in clocked if gpu.fp16_tensor_flops])
def test_fp16_tensor_rate_is_the_silicons_full_half_or_throttled_rate(gpu: Device) -> None:
    assert gpu.compute_capability is not None
    assert gpu.sm_count is not None
    assert gpu.boost_clock_hz is not None
    assert gpu.fp16_tensor_flops is not None
    full = gpu.sm_count * gpu.boost_clock_hz * TENSOR_FLOP_PER_CLOCK[gpu.compute_capability]
    share = gpu.fp16_tensor_flops / full
    # Half: GeForce, and the L40 and A10G by their data sheets. Below one: the big chips quote
    # tensor rates at a lower clock than the boost (H100 SXM: 1830 of 1980 MHz).
    assert share == pytest.approx(0.5, rel=0.03) or 0.85 <= share <= 1.01


@every_device
def test_tensor_rates_are_ordered_as_hardware_is(gpu: Device) -> None:
    fp16, bf16 = gpu.fp16_tensor_flops, gpu.bf16_tensor_flops
    if fp16 is None:
        assert bf16 is None
        assert gpu.tf32_tensor_flops is None
        assert gpu.fp8_tensor_flops is None
        assert gpu.int8_tensor_flops is None
        return
    assert fp16 >= gpu.fp32_flops
    if gpu.compute_capability is not None:
        assert (bf16 == fp16) == (gpu.compute_capability >= (8, 0))
        assert (gpu.fp8_tensor_flops is not None) == (gpu.compute_capability >= (8, 9))
    if gpu.tf32_tensor_flops is not None:
        assert gpu.tf32_tensor_flops == pytest.approx(fp16 / 2, rel=0.02)
    if gpu.fp8_tensor_flops is not None:
        assert gpu.fp8_tensor_flops == pytest.approx(2 * fp16, rel=0.02)
    if gpu.int8_tensor_flops is not None:
        assert gpu.int8_tensor_flops == pytest.approx(2 * fp16, rel=0.02)


@every_device
def test_memory_is_plausible(gpu: Device) -> None:
    assert 2 * 2**30 <= gpu.memory_bytes <= 300 * 2**30
    # From a GPU of 2014 to one of 2025, reading all memory once takes 14 ms to 120 ms. A GPU that
    # shares the memory of its host has much of it, and slow.
    shared = "shared with the CPU" in gpu.sources.get("tdp_w", "")
    assert 0.012 < gpu.memory_bytes / gpu.memory_bytes_per_s < (0.55 if shared else 0.13)
    # From the P100 to the L4 and the L40S, fp32 operations per byte.
    assert 5 < gpu.fp32_flops / gpu.memory_bytes_per_s < 200


@every_device
def test_parts_are_not_more_than_the_whole(gpu: Device) -> None:
    if gpu.base_clock_hz is not None and gpu.boost_clock_hz is not None:
        assert gpu.base_clock_hz < gpu.boost_clock_hz
    if gpu.shared_bytes_per_sm is not None and gpu.shared_bytes_per_block_optin is not None:
        assert gpu.shared_bytes_per_block_optin <= gpu.shared_bytes_per_sm
    if gpu.fp64_flops is not None:
        assert gpu.fp64_flops <= gpu.fp32_flops
    if gpu.l2_bytes is not None:
        assert gpu.l2_bytes < gpu.memory_bytes / 100


@every_device
def test_measured_is_not_above_nominal(gpu: Device) -> None:
    for key, fact in gpu.measured.items():
        assert 0.6 * getattr(gpu, key) < fact.value <= getattr(gpu, key)


def test_our_own_measurements_are_kept_apart_from_nominal() -> None:
    h200 = device("h200-sxm")
    assert h200.memory_bytes_per_s == 4.8e12
    assert h200.measured["memory_bytes_per_s"].value == 4.227e12
    assert h200.measured["bf16_tensor_flops"].value == 6.681e14


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("h100-sxm-80gb", "bf16_tensor_flops", 989.4e12),
        ("h100-sxm-80gb", "sm_count", 132),
        ("a100-sxm-80gb", "memory_bytes_per_s", 2.039e12),
        ("a100-sxm-80gb", "memory_bytes", 80 * 2**30),
        ("h200-sxm", "memory_bytes", 143771 * 2**20),
        ("v100-sxm-16gb", "tdp_w", 300.0),
        ("v100-pcie-16gb", "tdp_w", 250.0),
        ("t4", "fp16_tensor_flops", 65e12),
        ("l4", "sm_count", 58),
        ("l40s", "memory_bytes", 48 * 2**30),
        ("mi300x", "bf16_tensor_flops", 1307.4e12),
        ("mi250x-gcd", "memory_bytes", 64 * 2**30),
        ("rtx-3090", "fp16_tensor_flops", pytest.approx(71.2e12, rel=1e-3)),
        ("p100-pcie-16gb", "fp16_flops", pytest.approx(19.06e12, rel=1e-3)),
        ("k80", "compute_capability", (3, 7)),
    ],
)
def test_well_known_facts(name: str, key: str, value: object) -> None:
    assert getattr(device(name), key) == value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # names that nvidia-smi and PyTorch print
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100-PG509-200", "a100-sxm-40gb"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
        ("Tesla V100-SXM3-32GB", "v100-sxm3-32gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("Tesla V100S-PCIE-32GB", "v100s-pcie-32gb"),
        ("Tesla V100-DGXS-16GB", "v100-dgxs-16gb"),
        ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
        ("Tesla P100-SXM2-16GB", "p100-sxm-16gb"),
        ("Quadro P4000", "quadro-p4000"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("TITAN RTX", "titan-rtx"),
        ("NVIDIA TITAN V", "titan-v"),
        ("TITAN X (Pascal)", "titan-x-pascal"),
        ("GeForce GTX TITAN X", "gtx-titan-x-maxwell"),
        ("GeForce GTX 1080 Ti", "gtx-1080-ti"),
        ("NVIDIA GeForce RTX 2070", "rtx-2070"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 3080", "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "rtx-2080-max-q"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        # names that people use
        ("h100_sxm5", "h100-sxm-80gb"),
        ("H100-80G-SXM5", "h100-sxm-80gb"),
        ("A100-80G-PCIe", "a100-pcie-80gb"),
        ("a100 pci-e 40 GB", "a100-pcie-40gb"),
        ("V100SXM2-16GB", "v100-sxm-16gb"),
        ("v100s", "v100s-pcie-32gb"),
        ("geforce 3090", "rtx-3090"),
        ("rtx 3090 24GB", "rtx-3090"),
        ("3090ti", "rtx-3090-ti"),
        ("rx7900xtx", "rx-7900-xtx"),
        ("RTX6000Ada", "rtx-6000-ada"),
        ("vega frontier edition", "vega-frontier-edition"),
        ("TITAN X Maxwell", "gtx-titan-x-maxwell"),
    ],
)
def test_real_world_names_resolve(name: str, expected: str) -> None:
    assert device(name).id == expected


@every_device
def test_every_device_answers_to_its_id_name_and_aliases(gpu: Device) -> None:
    for name in (gpu.id, gpu.name, *gpu.aliases):
        assert device(name) == gpu


@settings(deadline=None)  # the first call reads the files
@given(
    gpu=st.sampled_from(shipped()),
    upper=st.booleans(),
    brand=st.sampled_from(["", "NVIDIA ", "amd  "]),
    joint=st.sampled_from([" ", "-", "_", " / "]),
)
def test_case_punctuation_and_brand_do_not_matter(
    gpu: Device, upper: bool, brand: str, joint: str
) -> None:
    name = brand + joint.join(gpu.id.split("-"))
    assert device(name.upper() if upper else name).id == gpu.id


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("h100", ["h100-pcie-80gb", "h100-sxm-80gb", "h100-nvl-94gb"]),
        ("A100", ["a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm-40gb", "a100-sxm-80gb"]),
        ("a100 80gb", ["a100-pcie-80gb", "a100-sxm-80gb"]),
        ("Tesla V100", ["v100-pcie-16gb", "v100-sxm-32gb"]),
        ("RTX 6000", ["quadro-rtx-6000", "rtx-6000-ada", "rtx-pro-6000-server"]),
        ("TITAN X", ["titan-x-pascal", "gtx-titan-x-maxwell"]),
        ("rtx 4060 ti", ["rtx-4060-ti-8gb", "rtx-4060-ti-16gb"]),
    ],
)
def test_a_name_of_several_devices_lists_them_and_does_not_guess(
    name: str, candidates: list[str]
) -> None:
    with pytest.raises(UnknownName, match="fits several devices") as error:
        device(name)
    assert all(f'"{candidate}"' in str(error.value) for candidate in candidates)


def test_a_very_vague_name_lists_only_some() -> None:
    with pytest.raises(UnknownName, match=r"and \d+ more; say which"):
        device("8gb")


@pytest.mark.parametrize(
    ("name", "near"),
    [("h1000", "h100-sxm-80gb"), ("mi300", "mi300x"), ("rtx-3091", "rtx-3090"), ("l44", "l4")],
)
def test_an_unknown_name_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownName) as error:
        device(name)
    message = str(error.value)
    assert message.startswith(f'unknown device "{name}"; did you mean ')
    assert f'"{near}"' in message
    assert message.endswith('list them with "wavecast devices"')


@pytest.mark.parametrize("name", ["", "   ", "nvidia", "qqqq", "../..", "\0"])
def test_a_name_like_nothing_is_unknown(name: str) -> None:
    with pytest.raises(UnknownName, match="wavecast devices"):
        device(name)


@settings(deadline=None)  # an unknown name is compared with all others
@given(st.text(max_size=30))
def test_any_text_is_a_device_or_an_unknown_name(name: str) -> None:
    try:
        match = device(name)
    except UnknownName:
        match = None
    assert match is None or match in devices()


def test_a_name_that_stands_in_a_file_is_never_a_path(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("nonsense")
    with pytest.raises(UnknownName, match="files cannot name others"):
        known_device(str(own))
    with pytest.raises(InvalidInput, match="not TOML"):
        device(str(own))
    assert known_device("NVIDIA L4") == device("l4")


def test_no_two_devices_share_a_name() -> None:
    owners: dict[frozenset[str], str] = {}
    for gpu in devices():
        for name in (gpu.id, gpu.name, *gpu.aliases):
            words = words_of(name)
            assert owners.setdefault(words, gpu.id) == gpu.id, name


def test_devices_are_listed_by_vendor_then_age_then_name() -> None:
    ids = [gpu.id for gpu in devices()]
    in_order = ["k80", "gtx-1080-ti", "t4", "a2", "a10", "a100-sxm-80gb", "l4", "h100-sxm-80gb"]
    in_order += ["b200-sxm", "mi25", "mi100", "mi300x", "arc-pro-b60"]
    assert [id for id in ids if id in in_order] == in_order


@pytest.mark.parametrize("unit", RATE_UNITS)
def test_rate_is_the_attribute_of_that_unit(unit: str) -> None:
    gpu = device("mi300x")
    assert gpu.rate(unit) == getattr(gpu, f"{unit}_flops")


def test_rate_of_an_unknown_unit_lists_the_units() -> None:
    with pytest.raises(UnknownName, match=r'"int8".*bf16_tensor'):
        device("t4").rate("int8")
    assert device("t4").rate("bf16_tensor") is None


def test_a_device_is_a_value() -> None:
    gpu = device("l4")
    assert copy.deepcopy(gpu) == pickle.loads(pickle.dumps(gpu)) == gpu
    assert str(gpu) == "L4"
    faster = dataclasses.replace(gpu, fp32_flops=2 * gpu.fp32_flops)
    # A cache keyed by device must not confuse them, although they have the same id.
    assert len({gpu, faster, device("NVIDIA L4")}) == 2
    assert dataclasses.replace(gpu, measured={"fp32_flops": Fact(1e13, "me")}) != gpu
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu.sm_count = 1  # type: ignore[misc]


MINIMAL = """
name = "My GPU"
vendor = "Me"
architecture = "Mine"
[nominal]
memory_bytes = 8e9
memory_bytes_per_s = 1e11
fp32_flops = { value = 1e13 }
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_minimal_file_needs_no_sources(tmp_path: Path) -> None:
    gpu = read_device(write(tmp_path / "My_GPU.toml", MINIMAL))
    assert (gpu.id, gpu.name, gpu.vendor, gpu.architecture) == ("my-gpu", "My GPU", "Me", "Mine")
    assert gpu.memory_bytes == 8_000_000_000
    assert isinstance(gpu.memory_bytes, int)
    assert gpu.sm_count is None
    assert gpu.aliases == ()
    assert gpu.sources == {}
    assert gpu.measured == {}


def test_a_full_file_is_read_with_sources_and_measurements(tmp_path: Path) -> None:
    text = MINIMAL + (
        'compute_capability = "12.1"\nsm_count = { value = 48, source = "box" }\n'
        '[measured]\nfp32_flops = { value = 9e12, source = "bench" }\nmemory_bytes_per_s = 9e10\n'
    )
    gpu = read_device(write(tmp_path / "gpu.toml", text))
    assert gpu.compute_capability == (12, 1)
    assert gpu.sm_count == 48
    assert gpu.sources == {"sm_count": "box"}
    assert gpu.measured == {
        "fp32_flops": Fact(9e12, "bench"),
        "memory_bytes_per_s": Fact(9e10, ""),
    }


def with_line(line: str) -> str:
    return MINIMAL + line + "\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "name is missing"),
        ("name = ", "is not TOML"),
        ("[" * 5000, "is not TOML"),
        (MINIMAL.replace('vendor = "Me"', ""), "vendor is missing"),
        (MINIMAL.replace('"Me"', '" "'), "vendor must be a text"),
        (MINIMAL.replace('"Mine"', "3"), "architecture must be a text in quotes, not 3"),
        (MINIMAL.replace("[nominal]", ""), "memory_bytes is not a key"),
        (MINIMAL.split("[")[0], "nominal.memory_bytes is missing"),
        (MINIMAL.split("[")[0] + "nominal = 3", "nominal must be a table"),
        (MINIMAL.replace("fp32_flops", "fp64_flops"), "nominal.fp32_flops is missing"),
        (MINIMAL.replace("name =", "aliases = 'x'\nname ="), "aliases must be a list"),
        (MINIMAL.replace("name =", "aliases = [1]\nname ="), "aliases must be a list"),
        (MINIMAL.replace("name =", "aliases = ['NVIDIA']\nname ="), "aliases must be a list"),
        (with_line("sm_cuont = 3"), 'sm_cuont is not a key of a device; did you mean "sm_count"?'),
        (with_line("colour = 3"), "nominal.colour is not a key of a device; known are"),
        (with_line("sm_count = { source = 'x' }"), "nominal.sm_count has no value"),
        (with_line("boost_clock_hz = 1980"), "outside 1e+08 to 1e+10: the unit is Hz"),
        (with_line("nvlink_bytes_per_s = 450"), "the unit is bytes/s"),
        (with_line("bf16_tensor_flops = 989"), "the unit is FLOP/s"),
        (MINIMAL.replace("8e9", "24"), "the unit is bytes"),
        (with_line("sm_count = 1" + "0" * 400), "nominal.sm_count"),
        (with_line("sm_count = 1" + "0" * 5000), "is not TOML"),
        (with_line("compute_capability = 'sm_90'"), 'must be written like "9.0"'),
        (with_line("[measured]\nsm_count = 3"), "measured.sm_count is not a key"),
        (with_line("[measured]\nfp32_flops = -1"), "measured.fp32_flops must be a positive number"),
    ],
)
def test_a_malformed_file_is_refused_with_place_and_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = write(tmp_path / "bad.toml", text)
    with pytest.raises(InvalidInput) as error:
        read_device(path)
    assert str(error.value).startswith(f"{path}: ")
    assert reason in str(error.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.toml: cannot be read"):
        read_device(tmp_path / "none.toml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_device(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(InvalidInput, match="is not UTF-8"):
        read_device(tmp_path / "latin.toml")
    with pytest.raises(InvalidInput, match="needs a letter or a digit"):
        read_device(write(tmp_path / "--.toml", MINIMAL))


def test_a_shipped_file_without_a_source_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "devices" / "mine.toml", MINIMAL)
    monkeypatch.setattr(files, "_DATA", tmp_path)
    with pytest.raises(InvalidInput, match=r"nominal\.memory_bytes has no source"):
        device("mine")


def test_a_path_to_a_file_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "my-gpu.toml", MINIMAL)
    assert device(str(path)).id == "my-gpu"
    monkeypatch.chdir(tmp_path)
    assert device("my-gpu.toml").id == "my-gpu"
    with pytest.raises(UnknownName, match=r'no device file "other\.toml"'):
        device("other.toml")


def test_files_in_the_configuration_folder_are_known(tmp_path: Path) -> None:
    write(tmp_path / "config/wavecast/devices/my-gpu.toml", MINIMAL)
    assert device("my gpu") in devices()
    assert devices()[-1].id == "my-gpu"


def test_the_home_folder_holds_the_configuration_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    write(tmp_path / ".config/wavecast/devices/my-gpu.toml", MINIMAL)
    assert device("my-gpu").vendor == "Me"


def test_a_user_without_a_home_still_has_the_shipped_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert device("l4").name == "L4"


def test_the_environment_adds_folders_and_files_and_its_first_entry_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "config/wavecast/devices/my-gpu.toml", MINIMAL.replace("My", "Config"))
    second = write(tmp_path / "b" / "my-gpu.toml", MINIMAL.replace("My", "Second"))
    write(tmp_path / "b" / "another.toml", MINIMAL)
    first = write(tmp_path / "a" / "my-gpu.toml", MINIMAL.replace("My", "First"))
    assert device("my-gpu").name == "Config GPU"
    monkeypatch.setenv("WAVECAST_DEVICES", os.pathsep.join([str(first), "", str(second.parent)]))
    assert device("my-gpu").name == "First GPU"
    assert device("another").name == "My GPU"
    monkeypatch.delenv("WAVECAST_DEVICES")
    assert device("my-gpu").name == "Config GPU"


def test_your_file_replaces_the_shipped_device_of_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "T4.toml", MINIMAL)
    monkeypatch.setenv("WAVECAST_DEVICES", str(tmp_path))
    assert device("t4").name == "My GPU"
    assert len(devices()) == len(SHIPPED)


def test_a_missing_path_in_the_environment_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAVECAST_DEVICES", str(tmp_path / "gone"))
    with pytest.raises(InvalidInput, match=r"WAVECAST_DEVICES names .*gone, which does not exist"):
        devices()


# Devices as attributes.


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("P100", "p100-pcie-16gb"),
        ("V100", "v100-sxm-16gb"),
        ("RTX2070", "rtx-2070"),
        ("RTX2080Ti", "rtx-2080-ti"),
        ("T4", "t4"),
        ("H100_SXM_80GB", "h100-sxm-80gb"),
    ],
)
def test_habitats_gpus_and_others_are_attributes(name: str, id: str) -> None:
    assert getattr(Device, name).id == id


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("Z9000", 'unknown device "Z9000"', id="unknown"),
        pytest.param("H100", "fits several devices", id="several"),
        pytest.param("from_nothing", "no attribute 'from_nothing'", id="a function"),
        pytest.param("_private", "no attribute '_private'", id="private"),
        pytest.param("__wrapped__", "no attribute '__wrapped__'", id="special"),
        pytest.param("", "no attribute ''", id="nothing"),
    ],
)
def test_an_attribute_that_is_no_device_is_an_attribute_error(name: str, reason: str) -> None:
    with pytest.raises(AttributeError, match=reason):
        getattr(Device, name)
    assert not hasattr(Device, name)


def test_devices_as_attributes_do_not_change_what_a_device_is() -> None:
    t4 = Device.T4
    assert copy.deepcopy(t4) == pickle.loads(pickle.dumps(t4)) == dataclasses.replace(t4) == t4
    assert list(inspect.signature(Device).parameters)[:2] == ["id", "name"]
    assert dict(inspect.getmembers(Device, inspect.isfunction))["rate"] is Device.rate
    assert typing.get_type_hints(Device)["sm_count"] == int | None
    assert inspect.unwrap(Device) is Device


def test_your_device_is_an_attribute_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "own-board.toml", MINIMAL)
    monkeypatch.setenv("WAVECAST_DEVICES", str(tmp_path))
    assert Device.Own_Board.name == "My GPU"


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_unknown(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown device"):
        device(name)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_device_file_that_cannot_be_is_unknown(name: str) -> None:
    with pytest.raises(UnknownName, match="no device file"):
        device(f"{name}.toml")


def test_a_very_long_name_is_compared_with_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: object) -> typing.NoReturn:
        raise AssertionError("a comparison takes seconds")

    monkeypatch.setattr("difflib.SequenceMatcher", compare)
    with pytest.raises(UnknownName, match="unknown device"):
        device(" ".join(f"x{n}" for n in range(5000)))
