"""Real data parallel training on this machine's processor, with gloo: 1, 2 and 4 processes.

    python -m lab.collect.gloo_ranks OUT.json [--rounds 5]

Each process has one thread. Before and after its steps it measures what a prediction needs, while
the other processes do the same: products, copies, all-reduces, and how much slower products are
beside an all-reduce. With more processes than cores they share the cores, and what is measured is
the share of one. Then it runs steps of DistributedDataParallel, and records when torch's reducer
sends which bucket. Needs torch only; takes three minutes. The file also has the load of the
machine, since other work disturbs the times.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lab.steps.wide_layers import BATCH, LAYERS, WIDTH, training_step, wide_layers

PROCESSES = (1, 2, 4)
SIZES = (1 << 20, 9 << 20, 28 << 20)
"""The bytes of the all-reduces that are measured alone."""
STEPS = 6
"""The steps that are measured, after two others."""


def seconds_of(work: Callable[[], Any], repeats: int = 5) -> float:
    """The median time of some work, after one run of it."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def calibrated() -> dict[str, Any]:
    """What this process attains at the moment: FLOP/s, bytes/s, times of all-reduces."""
    import torch
    from torch import distributed as dist

    x, gradient = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    # As many weights as the network has, so that they are not in a cache.
    weights, others = ([torch.randn(WIDTH, WIDTH) for _ in range(LAYERS)] for _ in range(2))
    # The three products of a layer: output, gradient of the input, gradient of the weight. The
    # results are kept until the end, as the gradients of a step are.
    products_s = seconds_of(lambda: [(x @ w.t(), gradient @ w, gradient.t() @ x) for w in weights])
    update_s = seconds_of(
        lambda: [w.add_(o, alpha=1e-3) for w, o in zip(weights, others, strict=True)]
    )
    weight_bytes = LAYERS * weights[0].nbytes
    found: dict[str, Any] = {
        "flops": 3 * LAYERS * 2 * BATCH * WIDTH * WIDTH / products_s,
        "memory_bytes_per_s": 3 * weight_bytes / update_s,
    }
    if dist.get_world_size() > 1:
        buffers = {size: torch.zeros(size // 4) for size in SIZES}

        def reduce(buffer: Any) -> None:
            dist.barrier()
            dist.all_reduce(buffer)

        found["all_reduce_s"] = {
            str(size): seconds_of(partial(reduce, buffer)) for size, buffer in buffers.items()
        }
        found["barrier_s"] = seconds_of(dist.barrier)
        found["beside"] = _beside(buffers[SIZES[-1]], lambda: gradient.t() @ x)
    return found


def _beside(buffer: Any, product: Callable[[], Any]) -> dict[str, float]:
    """Times of some products alone, of an all-reduce alone, and of both at once."""
    from torch import distributed as dist

    def products() -> None:
        for _ in range(count):
            product()

    def both() -> None:
        work = dist.all_reduce(buffer, async_op=True)
        products()
        work.wait()

    count = 1
    reduction_s = seconds_of(lambda: (dist.barrier(), dist.all_reduce(buffer)))
    count = max(1, round(2 * reduction_s / seconds_of(products)))
    shared = [count]
    dist.broadcast_object_list(shared)
    count = shared[0]
    alone_s = seconds_of(products)
    dist.barrier()
    return {"alone_s": alone_s, "reduction_s": reduction_s, "both_s": seconds_of(both)}


def observed_buckets(model: Any, x: Any) -> list[dict[str, Any]]:
    """When torch's reducer sends which bucket: seconds from the beginning of the backward pass.

    The parameters of a bucket are named by their position in the model.
    """
    from torch import distributed as dist

    positions = {id(p): index for index, p in enumerate(model.module.parameters())}
    seen: list[dict[str, Any]] = []
    begin = [0.0]

    def hook(_: Any, bucket: Any) -> Any:
        entry = {
            "index": bucket.index(),
            "bytes": bucket.buffer().nbytes,
            "parameters": [positions[id(p)] for p in bucket.parameters()],
            "sent_s": time.perf_counter() - begin[0],
        }
        seen.append(entry)
        tensor = bucket.buffer().div_(dist.get_world_size())
        future = dist.all_reduce(tensor, async_op=True).get_future()

        def ended(result: Any) -> Any:
            entry["ended_s"] = time.perf_counter() - begin[0]
            return result.value()[0]

        return future.then(ended)

    hook.__annotations__.clear()  # torch refuses any but its own types
    model.register_comm_hook(None, hook)
    for _ in range(3):
        seen.clear()
        loss = model(x).square().mean()
        dist.barrier()
        begin[0] = time.perf_counter()
        loss.backward()
        whole_s = time.perf_counter() - begin[0]
    return [{**entry, "backward_s": whole_s} for entry in seen]


def rank(number: int, processes: int, port: int, out: str) -> None:
    """What one process does. The first one writes the file."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, rank=number, world_size=processes)
    torch.manual_seed(0)
    plain, x = wide_layers("cpu")
    model = DistributedDataParallel(plain) if processes > 1 else plain
    step = training_step(model, x)
    before = calibrated()
    times = []
    for index in range(STEPS + 2):
        dist.barrier()
        begin = time.perf_counter()
        step()
        if index >= 2:
            times.append(time.perf_counter() - begin)
    row = {"processes": processes, "steps_s": times, "before": before, "after": calibrated()}
    if processes > 1:
        fresh = DistributedDataParallel(wide_layers("cpu")[0])
        row["buckets"] = observed_buckets(fresh, x)
    rows: list[Any] = [None] * processes
    dist.all_gather_object(rows, row)
    if number == 0:
        Path(out).write_text(json.dumps({"load": os.getloadavg()[0], "ranks": rows}))
    dist.destroy_process_group()


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(given: list[str] | None = None) -> None:
    """Run all numbers of processes in turn, several times, and write what was measured."""
    import torch
    from torch import multiprocessing

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(given)
    runs = []
    for number in range(args.rounds):
        for processes in PROCESSES:
            part = args.out.with_suffix(".part")
            where = (processes, free_port(), str(part))
            multiprocessing.spawn(rank, where, nprocs=processes)
            runs.append({"round": number, **json.loads(part.read_text())})
            part.unlink()
            sizes = {"layers": LAYERS, "width": WIDTH, "batch": BATCH}
            facts = {"torch": torch.__version__, "cores": os.cpu_count(), **sizes}
            args.out.write_text(json.dumps({**facts, "runs": runs}, indent=1))
            first = runs[-1]["ranks"][0]["steps_s"]
            print(f"{processes} processes: {statistics.median(first):.3f} s a step", flush=True)


if __name__ == "__main__":
    main()
