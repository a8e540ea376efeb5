"""Scripts that call nvidia-smi hear of the GPU that is asked about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wavecast
from wavecast.frameworks.pytorch.capture.pretended.cuda_answers import properties_of
from wavecast.frameworks.pytorch.scripts.nvidia_smi import facts_of, main
from wavecast.hardware.devices import device

UPDATES = "\nwhile True:\n    update()\n"


def test_a_script_and_its_shells_hear_of_the_gpu_that_is_asked_about(
    script: Callable[..., Path],
) -> None:
    body = """
import os, shutil, subprocess
QUERY = "nvidia-smi --query-gpu=name,memory.total,memory.used --format=csv,noheader,nounits"
name, total, used = subprocess.check_output(QUERY, shell=True, text=True).strip().split(", ")
assert (name, int(total), int(used)) == ("NVIDIA L4", 24 << 10, 0), (name, total, used)
properties = torch.cuda.get_device_properties(0)
assert (properties.name, properties.total_memory >> 20) == (name, int(total))
assert torch.cuda.get_device_capability() == (8, 9)
table = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout
assert "NVIDIA L4" in table and f"CUDA Version: {torch.version.cuda}" in table
assert os.popen("nvidia-smi -L | grep -c GPU").read() == "1\\n"
assert shutil.which("nvidia-smi")
"""
    wavecast.run_script(script(body + UPDATES), gpu="l4")


def _said(capsys: Any, *arguments: str, count: int = 2) -> list[str]:
    gpu = device("l4")
    main(arguments, facts_of(properties_of(gpu, (8, 0), {}), gpu.tdp_w, "12.8"), count)
    return str(capsys.readouterr().out).splitlines()


def test_queries_have_the_form_of_the_real_ones(capsys: Any) -> None:
    query = "--query-gpu=index, name,memory.total,power.limit,temperature.gpu"
    assert _said(capsys, query, "--format=csv") == [
        "index, name, memory.total [MiB], power.limit [W], temperature.gpu",
        "0, NVIDIA L4, 24576 MiB, 72.00 W, [N/A]",
        "1, NVIDIA L4, 24576 MiB, 72.00 W, [N/A]",
    ]
    plain = "--format=csv,noheader,nounits"
    assert _said(capsys, "--query-gpu=index,memory.free", plain, "-i", "1") == ["1, 24576"]
    assert _said(capsys, "--query-gpu=count", plain, "--id=0") == ["2"]
    assert _said(capsys, "--query-compute-apps=pid", plain) == []
    assert [line[:16] for line in _said(capsys, "-L")] == ["GPU 0: NVIDIA L4", "GPU 1: NVIDIA L4"]
    assert any("24576 MiB" in line for line in _said(capsys, "-q", "-d", "MEMORY"))


def test_the_table_is_a_table(capsys: Any) -> None:
    lines = _said(capsys)
    assert {len(line) for line in lines} == {91}
    assert sum("0MiB /  24576MiB" in line for line in lines) == 2


def test_what_has_no_answer_fails(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        _said(capsys, "topo", "-m")
    with pytest.raises(SystemExit):
        _said(capsys, "-q", "-x")
