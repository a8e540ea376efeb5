"""A step of the suite on several GPUs at once, each with its own batch, started by torchrun.

Each rank is a process that builds the step, and DistributedDataParallel reduces its gradients. On
a machine without GPUs the ranks are processes on its CPU, which communicate by gloo. Rank 0 writes
the times of its iterations into a file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from wavecast import suite
from wavecast.errors import WavecastError
from wavecast.frameworks.pytorch.measurement.whole_runs import between_s, mark, wait

_BETWEEN_CHECKS = 10
"""After this many iterations the ranks agree whether to go on."""

_ERROR = r"(wavecast\.errors\.\w+|[\w.]*(Error|Exception))\b"
"""How the last line of a traceback begins."""


@dataclass(frozen=True)
class Machines:
    """The machines of a measurement, and which of them this is."""

    gpus: int
    """How many GPUs there are in all machines together."""
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""
    """HOST:PORT of the first machine, where all meet; needed for several machines."""


@dataclass(frozen=True)
class SpreadSample:
    """The measured iterations of a step on several GPUs, as rank 0 saw them."""

    seconds: tuple[float, ...]
    peak_bytes: int
    reserved_bytes: int
    software: str


@dataclass(frozen=True)
class _Task:
    """What each rank is told."""

    model: str
    batch: int
    precision: str
    device: str
    limit_s: float
    least: int
    """The fewest iterations."""
    most: int
    out: str


def sample_spread(
    model: str,
    batch: int,
    precision: str,
    machines: Machines,
    *,
    device: str = "cuda",
    limit_s: float = 20.0,
    least: int = 0,
    most: int = 1000,
) -> SpreadSample | None:
    """Run a step on several GPUs by torchrun, and return its times.

    Args:
        machines: where it runs. The same call must run on each of several machines.
        device: "cuda", or "cpu" for ranks that share this CPU.
        limit_s: run for this many seconds.
        least: run at least this many iterations, however long they take.
        most: run no more iterations than this, unless `least` asks for more.

    Returns:
        The times; None on all machines but the first.

    Raises:
        WavecastError: a rank failed; the message has the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        limits = (limit_s, least, max(most, least))
        task = _Task(model, batch, precision, device, *limits, str(out))
        done = subprocess.run(
            [*_torchrun(machines), "-m", __name__, json.dumps(asdict(task))],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
        if done.returncode:
            raise WavecastError(
                f"{model} on {machines.gpus} GPUs failed: {_why(done.stderr or done.stdout)}"
            )
        if machines.node_rank:
            return None
        times = json.loads(out.read_text(encoding="utf-8"))
    return SpreadSample(**{**times, "seconds": tuple(times["seconds"])})


def _torchrun(machines: Machines) -> list[str]:
    ranks = machines.gpus // machines.nodes
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    if machines.nodes == 1:
        return [*command, "--standalone"]
    host, _, port = machines.rendezvous.rpartition(":")
    command += ["--nnodes", str(machines.nodes), "--node-rank", str(machines.node_rank)]
    return [*command, "--master-addr", host, "--master-port", port]


def _why(printed: str) -> str:
    """The line of an error, out of what torchrun prints about a rank that failed."""
    lines = [line.rpartition("]: ")[2].strip() for line in printed.splitlines()]
    errors = [line for line in lines if re.match(_ERROR, line)]
    named = [line for line in errors if "ChildFailedError" not in line]
    codes = [line for line in lines if line.startswith("exitcode")]
    return (named or codes or ["no reason was given"])[-1]


def _run_rank(task: _Task) -> None:
    """Run the step as one rank; rank 0 writes its times."""
    from torch.distributed._composable import replicate

    cuda = task.device == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    step = suite.benchmark(task.model).make_step(task.batch, task.precision, device=task.device)
    for part in step.model.values() if isinstance(step.model, nn.ModuleDict) else [step.model]:
        replicate(part)  # in place: the step calls the module itself, so it cannot be wrapped
    marks, until = [mark(cuda)], time.perf_counter() + task.limit_s
    going = torch.ones(1, device=task.device)
    while going.item():
        for _ in range(_BETWEEN_CHECKS):
            step()
            marks.append(mark(cuda))
        wait(cuda)
        late = time.perf_counter() > until and len(marks) > task.least
        going.fill_(not (late or len(marks) > task.most))
        dist.broadcast(going, 0)
    if dist.get_rank() == 0:
        seconds = tuple(between_s(a, b) for a, b in pairwise(marks))
        peak, reserved = (
            (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
            if cuda
            else (0, 0)
        )
        name = f"torch {torch.__version__}, DistributedDataParallel, {dist.get_backend()}"
        sample = SpreadSample(seconds, peak, reserved, name)
        Path(task.out).write_text(json.dumps(asdict(sample)), encoding="utf-8")
    dist.barrier()  # gloo aborts a rank whose peer has closed its connections before it did
    dist.destroy_process_group()


if __name__ == "__main__":
    _run_rank(_Task(**json.loads(sys.argv[1])))
