"""What the host needs to issue a collective of torch.distributed, and which processor it is.

    python -m lab.collect.collective_issue OUT

Needs a GPU; takes 10 s. Writes measurements/h200/collective_issue.json: microseconds of a call, the
median of 12 times 100 calls, in three rounds. The group has one rank, so NCCL launches a copy or
nothing: this is the way through Python, c10d and the process group.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROUNDS, TIMES, CALLS = 3, 12, 100
_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "cpu MHz", "cache size")
_FEATURES = ("amx_tile", "amx_fp16", "avx512_fp16", "avx512f", "avx_vnni")


def processor(text: str) -> dict[str, Any]:
    """What the text of /proc/cpuinfo tells about the first core."""
    lines = text.partition("\n\n")[0].splitlines()
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    known: dict[str, Any] = {name: facts[name] for name in _FACTS if name in facts}
    return known | {"has": [name for name in _FEATURES if name in flags]}


def cases() -> dict[str, Callable[[], object]]:
    """The calls by name."""
    import torch
    import torch.distributed as dist

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    class Reduce(Same):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(tensor)
            return tensor

    x = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
    y, w = torch.empty_like(x), torch.ones(64, 64, device="cuda")
    z = torch.ones(4096, device="cuda", requires_grad=True)
    return {
        "add": lambda: torch.add(x, 1),
        "mm": lambda: torch.mm(w, w),
        "view": lambda: x.view(64, 64),
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce async": lambda: dist.all_reduce(x, async_op=True).wait(),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(y, x),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(y, x),
        "all_gather async, not waited for": lambda: dist.all_gather_into_tensor(
            y, x, async_op=True
        ),
        "function": lambda: Same.apply(z),
        "function with all_reduce": lambda: Reduce.apply(z * 1),
        "mul with autograd": lambda: z * 1,
    }


def seconds_of(call: Callable[[], object]) -> float:
    """The host's time for one call, issued to an idle GPU."""
    import torch

    times = []
    for _ in range(TIMES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS)
    return statistics.median(times)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and write the file."""
    import torch
    import torch.distributed as dist

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the file to write")
    out = parser.parse_args(given).out
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl", rank=0, world_size=1)
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, call in cases().items():
            found.setdefault(name, []).append(seconds_of(call) * 1e6)
    record = {
        "cpu": processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "us": found,
        "gpu": torch.cuda.get_device_name(),
    }
    out.write_text(json.dumps(record), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
