"""The torch of this machine: its build, the GPUs that it sees, and what was loaded with it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from wavecast.errors import WavecastError

_LIBRARIES = re.compile(
    r"^lib(gomp|iomp5|omp|cudart|cudnn|cublas|cublasLt|nccl|cupti|nvrtc)(-[0-9a-f]+)?\.so"
)
"""Libraries of which two copies in one process disturb each other."""
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class TorchInstallation:
    """What torch says about itself and this machine."""

    version: str
    cuda: str | None
    """The CUDA (or ROCm) version that it was built with. None for a build for the CPU."""
    gpus: tuple[str, ...]
    """The names of the GPUs that it sees."""
    conflicts: tuple[str, ...]
    """Libraries of which two copies are loaded, with their paths."""


def torch_installation() -> TorchInstallation:
    """What the torch of this process is, and what it sees."""
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchInstallation(
        version=torch.__version__.partition("+")[0],
        cuda=torch.version.cuda or getattr(torch.version, "hip", None),
        gpus=tuple(torch.cuda.get_device_name(number) for number in range(seen)),
        conflicts=loaded_twice(_loaded()),
    )


def _loaded() -> list[str]:
    """The paths of the libraries of this process. None are known outside of Linux."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.split(maxsplit=5)[5] for line in lines if line.count("/") and ".so" in line]


def loaded_twice(paths: Iterable[str]) -> tuple[str, ...]:
    """The libraries of which copies at different places are loaded: `libcudart: /a, /b`."""
    places: dict[str, set[str]] = {}
    for path in paths:
        name = Path(path).name
        if match := _LIBRARIES.match(name):
            places.setdefault(match[1], set()).add(path)
    # The three OpenMP libraries are different implementations of the same functions.
    openmp = {path for name in ("gomp", "iomp5", "omp") for path in places.pop(name, ())}
    copies = {f"lib{name}": paths for name, paths in places.items()} | {"OpenMP": openmp}
    return tuple(
        f"{name}: {', '.join(sorted(paths))}"
        for name, paths in sorted(copies.items())
        if len(paths) > 1
    )


def tracing_problem() -> str | None:
    """Why a small training step cannot be traced here. None if it can."""
    from wavecast.frameworks.pytorch.capture import capture

    def make_step() -> object:
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(torch.randn(4, 8, device="cuda")).sum()
            loss.backward()
            optimizer.step()

        return step

    try:
        capture(make_step)  # type: ignore[arg-type]
    except WavecastError as error:
        return str(error)
    return None
