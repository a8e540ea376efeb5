"""Scripts that define kernels of Triton: they run up to where a kernel is launched."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wavecast
from wavecast.errors import CaptureError
from wavecast.traces.script import ScriptRun

UPDATES = "\nwhile True:\n    update()\n"
KERNEL = """
import triton
import triton.language as tl
from triton import cdiv
WARPS = tl.constexpr(4)
@triton.autotune(configs=[triton.Config({"BLOCK": 128}, num_warps=4)], key=["n"])
@triton.jit
def add_one(pointer, n: tl.int32, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
assert cdiv(5, 2) == 3 and triton.next_power_of_2(100) == 128
x = torch.ones(8, device="cuda")
"""
without_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is not None, reason="Triton is installed"
)


@without_triton
def test_a_script_may_define_kernels_where_there_is_no_triton(
    script: Callable[..., Path], run_here: Callable[..., ScriptRun]
) -> None:
    run_here(script(KERNEL + UPDATES))
    assert "triton" not in sys.modules
    from torch.utils import _triton

    assert not _triton.has_triton_package()


@without_triton
def test_a_kernel_is_refused_where_it_is_launched(script: Callable[..., Path]) -> None:
    launch = "add_one[(1,)](x, 8)\n"
    with pytest.raises(CaptureError, match=r"kernel add_one at train\.py:\d+.*register_fake"):
        wavecast.run_script(script(KERNEL + launch + UPDATES))


@without_triton
def test_what_nobody_knows_of_triton_is_refused(script: Callable[..., Path]) -> None:
    body = "from triton.testing import do_bench\ndo_bench(print)\n"
    with pytest.raises(CaptureError, match=r"do_bench is called at .*Triton is not installed"):
        wavecast.run_script(script(body + UPDATES))


def test_kernels_of_an_installed_triton_are_refused_in_the_same_way(
    script: Callable[..., Path],
) -> None:
    runtime = Path("triton", "runtime")
    path = script("from triton.runtime.jit import JITFunction\nJITFunction().run(1)\n" + UPDATES)
    runtime.mkdir(parents=True)
    for folder in (runtime.parent, runtime):
        (folder / "__init__.py").touch()
    (runtime / "jit.py").write_text("class JITFunction:\n    __name__ = 'k'\n    run = None\n")
    with pytest.raises(CaptureError, match="launches the Triton kernel k at "):
        wavecast.run_script(path)
