"""One rank of a fake group of eight on a real GPU: the peak of its memory, and its kernels.

    python -m lab collect fake_ranks run OUT.json        on a machine with a GPU
    python -m lab collect fake_ranks compare OUT.json    anywhere: against traces of the same steps

Collectives of torch's `fake` backend do nothing, so that one GPU runs all other kernels of a rank.
Torch's own reducer of DistributedDataParallel does not run there; ours takes its place.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lab import needs

FIRST_STEPS = 3
"""Steps before the measured one: states are made, and buckets are rebuilt."""


def run(out: Path, names: list[str]) -> None:
    """Run each step on the GPU and write what it needed."""
    import torch
    from torch import distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from lab.steps.own_parallel import RANKS, STEPS

    rows = []
    for name in names or list(STEPS):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
        try:
            with _reducer_of_ours():
                row = _measured(STEPS[name])
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"[:500]}
        finally:
            dist.destroy_process_group()
        gc.collect()
        torch.cuda.empty_cache()
        rows.append({"step": name, **row})
        device = torch.cuda.get_device_name()
        text = json.dumps({"torch": torch.__version__, "device": device, "steps": rows}, indent=1)
        out.write_text(text, encoding="utf-8")


def _measured(make_step: Any) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = make_step()
    for _ in range(FIRST_STEPS):
        step()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as watched:
        step()
        torch.cuda.synchronize()
    kernels = [e for e in watched.events() if str(e.device_type).endswith("CUDA")]
    return {
        "held_bytes": held,
        "peak_bytes": peak,
        "reserved_bytes": reserved,
        "kernels": len(kernels),
    }


@contextmanager
def _reducer_of_ours() -> Any:
    """Let DistributedDataParallel use our reducer, on real tensors."""
    from torch import distributed as dist

    from wavecast.frameworks.pytorch.capture import collectives as collectives
    from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
    from wavecast.frameworks.pytorch.recording.structure import Structure

    class RealReducer(collectives.TracedReducer):
        def _reduce(self, bucket: Any) -> None:
            dist.all_reduce(bucket.buffer(), group=self.group)
            bucket.future = _Done(bucket.buffer())

    recorder = OpRecorder(Structure())  # which is not asked for anything
    replaced = {
        "Reducer": partial(RealReducer, recorder),
        "Logger": collectives.TracedLogger,
        "_broadcast_coalesced": collectives.broadcast_coalesced,
        "_verify_params_across_processes": lambda *_, **__: None,
    }
    before = {name: getattr(dist, name) for name in replaced}
    for name, value in replaced.items():
        setattr(dist, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(dist, name, value)


class _Done:
    """A future whose value is there."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value


def compare(file: Path) -> list[str]:
    """A line for each measured step: the peak of a real rank, and that of a traced one."""
    import wavecast
    from lab.steps.own_parallel import RANKS, STEPS

    lines = []
    for row in json.loads(file.read_text(encoding="utf-8"))["steps"]:
        name = row["step"]
        if "error" in row:
            lines.append(f"{name:16} {row['error']}")
            continue
        trace = wavecast.trace(_started(STEPS[name]), gpu="h200-sxm-141gb", ranks=RANKS)
        traced, real = wavecast.memory(trace, "h200-sxm-141gb").peak_bytes, row["peak_bytes"]
        lines.append(
            f"{name:16} real {real / 2**20:9.1f} MiB   traced {traced / 2**20:9.1f} MiB   "
            f"{traced / real - 1:+7.2%}"
        )
    return lines


def _started(make_step: Any) -> Any:
    def make() -> Any:
        from torch import distributed as dist

        dist.init_process_group("nccl")
        return make_step()

    return make


def main(given: Sequence[str] = ()) -> None:
    """Run or compare, as the arguments say."""
    parser = needs.parser(__doc__)
    parser.add_argument("action", choices=["run", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("steps", nargs="*")
    args = parser.parse_args(given)
    if args.action == "run":
        run(args.file, args.steps)
    else:
        print("\n".join(compare(args.file)))
