"""Compilations of a lowered step by XLA, each in a process of its own.

The user's process, and its jax, stay as they are: the environment that the compiler needs is set
for the other process only.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from wavecast.errors import CaptureError, MissingExtra
from wavecast.frameworks.jax.compile_worker import ANSWER, HLO, JOB, MODULE
from wavecast.frameworks.jax.releases import PLUGINS, takes_versions, version_of
from wavecast.frameworks.jax.stand_ins import make_stand_ins
from wavecast.frameworks.jax.target_config import in_old_form, target_config
from wavecast.hardware.device import Device

OPTIONS: Mapping[str, int | bool] = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_gpu_mock_custom_calls": True,
}
"""Nothing can be tried without a GPU. By default every matmul would then be a Triton kernel with
tiles that nobody chose, so matmuls stay with cuBLAS. The code of kernels is not used, so it is not
optimized; the scheduled HLO stays the same."""
CUDA_FOLDER = "WAVECAST_CUDA"
"""The environment variable that names a CUDA installation to use instead of stand-ins."""
_MOST_PROCESSES = 4
_LIMIT_S = 900.0


@dataclass(frozen=True)
class CompiledModule:
    """What XLA made of a step for one GPU."""

    text: str
    """The scheduled HLO."""
    sizes: Mapping[str, int]
    """The bytes of its buffers: "argument", "output", "alias" and "temp"."""


def compiled_for(
    module: bytes,
    gpus: Sequence[Device],
    devices: int = 1,
    done: Callable[[int], None] | None = None,
) -> list[CompiledModule]:
    """The module compiled for each GPU, several at a time.

    Args:
        module: the lowered step (`releases.bytecode`).
        gpus: the GPUs.
        devices: over how many GPUs the step is spread.
        done: called with the number of GPUs that are done.

    Raises:
        MissingExtra: XLA's compiler for CUDA is not installed, or not for this system.
        CaptureError: XLA refuses the module; the message is its own.
    """
    check_installed()
    finished = 0

    def compile_one(gpu: Device) -> CompiledModule:
        nonlocal finished
        made = _compiled(module, gpu, devices)
        finished += 1
        if done is not None:
            done(finished)
        return made

    processes = max(min(len(gpus), os.cpu_count() or 1, _MOST_PROCESSES), 1)
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(compile_one, gpus))


def check_installed() -> None:
    """Refuse where XLA's compiler for CUDA is missing."""
    if platform.system() != "Linux":
        raise MissingExtra(
            "JAX steps are compiled by XLA's CUDA compiler, which exists for Linux only (also in "
            f"WSL and in containers), not for {platform.system()}; trace there, save the trace "
            "(wavecast trace), and use it here"
        )
    if version_of("jax") is None or not any(map(version_of, PLUGINS)):
        raise MissingExtra(
            "tracing a JAX step needs jax and XLA's compiler: pip install 'wavecast[jax]'"
        )


def _compiled(module: bytes, gpu: Device, devices: int) -> CompiledModule:
    config = target_config(gpu)
    if not takes_versions():
        config = in_old_form(config)
    with tempfile.TemporaryDirectory(prefix="wavecast-xla-") as name:
        folder = Path(name)
        (folder / MODULE).write_bytes(module)
        job = {"config": config, "devices": devices, "options": dict(OPTIONS)}
        (folder / JOB).write_text(json.dumps(job), encoding="utf-8")
        run = _run(folder)
        if run.returncode or not (folder / ANSWER).exists():
            raise CaptureError(f"XLA did not compile the step for {gpu.name}: {_reason(run)}")
        sizes = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        return CompiledModule((folder / HLO).read_text(encoding="utf-8"), sizes)


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    cuda = os.environ.get(CUDA_FOLDER) or str(make_stand_ins(folder / "cuda"))
    paths = [os.path.abspath(path) for path in sys.path if path]  # noqa: PTH100
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))},
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={cuda}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PATH": os.pathsep.join([f"{cuda}/bin", os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, "-m", "wavecast.frameworks.jax.compile_worker", str(folder)]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CaptureError(
            f"XLA compiled for more than {_LIMIT_S:.0f} s; scan over layers (jax.lax.scan) makes "
            "modules smaller"
        ) from None


def _reason(run: subprocess.CompletedProcess[str]) -> str:
    """The last line of an error that says something."""
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line or "error" in line]
    return (said or lines or [f"exit status {run.returncode}"])[-1]
