"""What the habits of eager frameworks of several GPUs cost one rank, in time and kernels.

    python -m lab collect framework_decoders OUT.json [--seconds 60] [--sustained OUT.json]

Needs a GPU.

Each case is one micro-batch (forward and backward pass) of one rank of a fake group, whose
collectives do nothing, with some of the habits of `lab/steps/framework_decoder.py`: short
sequences, where the host sets the pace, and long ones, where the GPU does. Steps are timed before a
profiler runs, which then gives the GPU's time and the number of kernels. Writes after each case.
First, a matmul and a whole micro-batch run for some seconds without a pause: each window of half a
second is kept with the clock and the power that nvidia-smi shows, and the matmul is also timed in
short bursts between pauses, as single ops are.
"""

from __future__ import annotations

import gc
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab import needs
from lab.steps.framework_cases import HABITS, decoder_step

CASES = [
    (habits, size, ranks, seq)
    for seq, shapes in ((256, (("1B", 1), ("1B", 8), ("8B", 8))), (4096, (("1B", 1), ("8B", 8))))
    for size, ranks in shapes
    for habits in HABITS
]
"""DecoderHabits, model, tensor ranks and positions."""


SUSTAINED_S = 12.0
"""How long the matmul and the micro-batch run without a pause."""


def sustained(out: Path) -> None:
    """Time a matmul in bursts, and then a matmul and a micro-batch without pauses."""
    import torch
    from torch import distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    given = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    found: dict[str, Any] = {"flops": 2 * 8192**3, "bursts_s": [], "device": _power()}
    for _ in range(20):
        time.sleep(0.1)
        found["bursts_s"].append(_per_turn(lambda: given[0] @ given[1], 10))
    found["matmul"] = _windows(lambda: given[0] @ given[1])
    out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    step = decoder_step(HABITS["all"], "1B", 1, 4096)()
    found["step_bursts_s"] = []
    for _ in range(6):
        time.sleep(0.5)
        found["step_bursts_s"].append(_per_turn(step, 2))
    found["step"] = _windows(step)
    dist.destroy_process_group()
    out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(found["bursts_s"][-3:], found["matmul"][-2:], found["step_bursts_s"], found["step"][-2:])


def _per_turn(turn: Callable[[], Any], count: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    turn()
    begin.record()
    for _ in range(count):
        turn()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / count


def _windows(turn: Callable[[], Any]) -> list[tuple[float, str]]:
    """The time of a turn in each half second, and the clock and the power in it."""
    each = max(int(0.5 / _per_turn(turn, 3)), 1)
    found, begun = [], time.monotonic()
    while time.monotonic() - begun < SUSTAINED_S:
        with subprocess.Popen(_QUERY, stdout=subprocess.PIPE, text=True) as asked:
            seconds = _per_turn(turn, each)
            found.append((seconds, asked.communicate()[0].strip()))
    return found


_QUERY = (
    "nvidia-smi",
    "--query-gpu=clocks.sm,power.draw.instant,temperature.gpu,power.limit",
    "--format=csv,noheader",
)


def _power() -> str:
    return subprocess.run(_QUERY, capture_output=True, text=True, check=False).stdout.strip()


def run(out: Path, limit_s: float) -> None:
    """Time each case, and write all results after each."""
    import torch
    from torch import distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    for habits, size, ranks, seq in CASES:
        if time.monotonic() - begun > limit_s:
            break
        row: dict[str, Any] = {"habits": habits, "model": size, "tensor": ranks, "seq": seq}
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        try:
            row |= _timed(decoder_step(HABITS[habits], size, ranks, seq)())
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:500]
        finally:
            dist.destroy_process_group()
        gc.collect()
        torch.cuda.empty_cache()
        rows.append(row)
        found = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "cases": rows}
        out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(*row.values(), flush=True)


def _timed(step: Callable[[], None]) -> dict[str, Any]:
    """The time of a step among many, that of issuing it to an idle GPU, and its kernels."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    turns_s, issued_s = [], []
    for _ in range(3):
        begun = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        turns_s.append((time.perf_counter() - begun) / 5)
    for _ in range(5):
        begun = time.perf_counter()
        step()
        issued_s.append(time.perf_counter() - begun)
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        step()
        torch.cuda.synchronize()
    kernels = [e for e in watched.events() if str(e.device_type).endswith("CUDA")]
    gpu_s = sum(e.device_time for e in kernels) / 1e6
    return {
        "seconds": sorted(turns_s)[1],
        "issue_s": sorted(issued_s)[2],
        "gpu_s": gpu_s,
        "kernels": len(kernels),
    }


def main(given: Sequence[str] = ()) -> None:
    """Run the cases."""
    parser = needs.parser(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no case later than that")
    parser.add_argument("--sustained", type=Path, help="first run without pauses, into this file")
    args = parser.parse_args(given)
    if args.sustained is not None:
        sustained(args.sustained)
    run(args.file, args.seconds)
