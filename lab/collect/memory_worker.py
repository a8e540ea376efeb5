"""A worker process of `memory_reality`: measures the memory of one step for the parent process."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

FIRST_STEPS = 12
"""Steps before the measurement. In float16 the first ones overflow and skip the update."""
TRACES = Path(tempfile.gettempdir()) / "wavecast-memory-traces"
"""The folder of traces before they are packed into one file."""
GIB, MIB = 1 << 30, 1 << 20


class Asking:
    """Holds the pipe to the parent process."""

    pipe: Any = None


def ask(*words: Any) -> Any:
    """Send a request to the parent process and return its answer."""
    Asking.pipe.send(words)
    return Asking.pipe.recv()


@contextmanager
def room(gib: float) -> Iterator[None]:
    """Reserve GPU memory with the parent process."""
    ask("need", gib)
    try:
        yield
    finally:
        ask("give")


class GpuMemory:
    """Measures memory on a real GPU."""

    def create(self) -> None:
        """Create the CUDA context, alone, so that the parent can identify this process."""
        import torch

        ask("create")
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        ask("created")

    def state(self) -> dict[str, int]:
        """The bytes that the allocator, the device and nvidia-smi report."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "reserved_now_bytes": torch.cuda.memory_reserved(),
            "device_used_bytes": total - free,
            "process_bytes": ask("used"),
        }

    def measure(self, make: Callable[[], Any], folder: Path, name: str) -> dict[str, Any]:
        """The memory of a step: the peak of the first steps, of a later step, and op by op."""
        import torch

        step = make()
        built = torch.cuda.memory_allocated()
        for _ in range(FIRST_STEPS):
            step()
        whole = self.state()
        torch.cuda.reset_peak_memory_stats()
        step()
        later = self.state()
        self._look(step, folder, name)
        return {
            "built_bytes": built,
            **whole,
            "later_allocated_bytes": later["allocated_bytes"],
            "later_reserved_bytes": later["reserved_bytes"],
        }

    def _look(self, step: Any, folder: Path, name: str) -> None:
        from wavecast.frameworks.pytorch.measurement.memory import traced_memory

        traced_memory(step).save(folder / f"{name}.measured.json.gz")

    def trace(self, make: Callable[[], Any], folder: Path, name: str) -> None:
        """Trace the same step without using the GPU."""
        import wavecast

        wavecast.trace(make, capability=(9, 0)).save(folder / f"{name}.traced.json.gz")

    def fits(self, make: Callable[[], Any], gib: float) -> dict[str, Any]:
        """Whether two iterations run within this much memory."""
        import torch

        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(gib * GIB / total)
        try:
            step = make()
            for _ in range(2):
                step()
            torch.cuda.synchronize()
            fits = True
        except torch.OutOfMemoryError:
            fits = False
        return {
            "fits": fits,
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }


class Pretended(GpuMemory):
    """A stand-in without a GPU, to try out everything else."""

    def create(self) -> None:
        """Tell the parent of a context that is not created."""
        ask("create")
        ask("created")

    def state(self) -> dict[str, int]:
        """Made-up bytes."""
        return {"allocated_bytes": 1, "reserved_bytes": 2, "process_bytes": ask("used")}

    def measure(self, make: Callable[[], Any], folder: Path, name: str) -> dict[str, Any]:
        """Write an empty trace and return made-up bytes."""
        (folder / f"{name}.measured.json.gz").write_bytes(b"")
        return self.state()

    def trace(self, make: Callable[[], Any], folder: Path, name: str) -> None:
        """Do nothing."""

    def fits(self, make: Callable[[], Any], gib: float) -> dict[str, Any]:
        """Pretend that a step takes 2 GB and 70 MB for each sample."""
        time.sleep(0.05)
        batch = make.args[0]  # type: ignore[attr-defined]
        return {"fits": 2e9 + 70e6 * batch <= gib * GIB}


def work(pipe: Any, kind: str, name: str, options: argparse.Namespace) -> None:
    """Run one task in this process."""
    Asking.pipe = pipe
    gpu = Pretended() if options.pretend else GpuMemory()
    try:
        if kind == "context":
            row = _context(gpu, options.pretend)
        elif kind == "alone":
            row = _run_alone(gpu, name, options)
        elif kind == "step":
            row = _step(gpu, name, TRACES)
        else:
            row = _try(gpu, name)
        ask("row", {"name": name, "status": "ok", **row})
    except Exception as error:
        ask("row", {"name": name, "status": f"{type(error).__name__}: {str(error)[:300]}"})


def _step(gpu: GpuMemory, name: str, folder: Path) -> dict[str, Any]:
    from lab.steps.memory import STEPS

    chosen = STEPS[name]
    file = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    with room(chosen.gib + 1):
        gpu.create()
        row = gpu.measure(chosen.make, folder, file)
    with suppress(Exception):
        gpu.trace(chosen.make, folder, file)
    return row


def _run_alone(gpu: GpuMemory, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The memory of the whole process: the GPU memory in use with it, less that without it."""
    from lab.steps.memory import STEPS

    ask("need", options.gib * 0.69)  # nearly all memory of large processes, so that only one runs
    before = ask("device")
    step = None if options.pretend else STEPS[name].make()
    for _ in range(FIRST_STEPS):
        if step is not None:
            step()
    state = gpu.state()
    return {**state, "process_bytes": ask("device") - before}


def _context(gpu: GpuMemory, pretend: bool) -> dict[str, Any]:
    """The memory of a process after its first use of each library."""
    stages: dict[str, Any] = {}
    before = processes()
    gpu.create()
    stages["context"] = gpu.state()
    if not pretend:
        import torch
        import torch.nn.functional as F

        def later(name: str) -> None:
            torch.cuda.empty_cache()
            stages[name] = gpu.state()

        square = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        (square * 2 + 1).relu().sum().backward()
        later("elementwise kernels")
        (square @ square).sum().backward()
        later("cuBLAS float32")
        (square.bfloat16() @ square.bfloat16()).sum().backward()
        later("cuBLAS bfloat16")
        F.linear(square, square, square[0]).sum().backward()
        later("cuBLASLt")
        for dtype in (torch.float32, torch.bfloat16):
            images = torch.randn(8, 16, 32, 32, device="cuda", dtype=dtype, requires_grad=True)
            kernel = torch.randn(16, 16, 3, 3, device="cuda", dtype=dtype, requires_grad=True)
            F.batch_norm(F.conv2d(images, kernel), None, None, training=True).sum().backward()
            later(f"cuDNN convolution {dtype}")
        heads = torch.randn(2, 8, 128, 64, device="cuda", dtype=dtype, requires_grad=True)
        F.scaled_dot_product_attention(heads, heads, heads).sum().backward()
        later("attention")
        lstm = torch.nn.LSTM(64, 64).cuda()
        lstm(torch.randn(16, 8, 64, device="cuda"))[0].sum().backward()
        later("cuDNN LSTM")
        optimizer = torch.optim.AdamW([square], fused=True)
        optimizer.step()
        later("fused AdamW")
        properties = torch.cuda.get_device_properties(0)
        stages["gpu"] = {"name": properties.name, "total_bytes": properties.total_memory}
    return {"before": before, "stages": stages}


def _try(gpu: GpuMemory, name: str) -> dict[str, Any]:
    """Whether one batch of one model fits into one memory limit."""
    from lab.steps.memory import GROWING

    model, gib, batch = name.rsplit(" ", 2)
    _skip_initial_values()
    with room(float(gib) + 1):
        return {"batch": int(batch), **gpu.fits(partial(GROWING[model], int(batch)), float(gib))}


def _skip_initial_values() -> None:
    """Skip the initialisation of weights, which is slow and does not change memory."""
    import torch

    for name in ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_", "trunc_normal_"):
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


def processes() -> dict[int, int]:
    """The bytes of GPU memory of each process by its id, from nvidia-smi."""
    command = [
        "nvidia-smi",
        "--query-compute-apps=pid,used_memory",
        "--format=csv,noheader,nounits",
    ]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        text = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        rows = (line.split(",") for line in text.splitlines() if "," in line)
        return {int(pid): int(mib) * MIB for pid, mib in rows if mib.strip().isdigit()}
    return {}
