"""What do compiled steps allocate? Records every allocation of one iteration, on this GPU.

    python -m lab.collect.compiled_memory OUT [--seconds 140] [--workers 14] [--only NAME ...]

Needs a GPU, torch with Triton, torchvision and transformers. Memory does not depend on timing, so
several processes share the machine, each with one step. Writes OUT/allocations.jsonl.gz (one line
for each step: the peak, and all allocations in order, each with the line of generated code that
made it) and OUT/code.json.gz (the generated code that calls the kernels).
"""

from __future__ import annotations

import gzip
import json
import linecache
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from lab.collect.gpu_steps import folder_and_seconds

WARM_UP = 4
FIRST = (
    *("blind-squeezenet", "unet-bf16", "blind-unet", "blind-detector", "alexnet-fp32"),
    *("resnet18-fp32", "vgg11-bn-bf16", "vit-hand-fp32", "hf-gpt2-tf32-fused", "blind-roberta"),
    *("blind-resnet34", "hf-vit-tf32", "hand-gpt-graphs", "hf-gpt2-bf16", "vgg16-tf32"),
    *("mobilenet-v3-fp32", "tower-fp32-graphs", "detector-fp32", "resnet18-bf16-last", "dlrm-fp32"),
    *("blind-dlrm", "hand-gpt-bf16", "resnet18-bf16-graphs", "hf-bert-bf16", "unet-fp32-last"),
    *("lstm-fp32", "convnext-tf32", "resnet50-tf32", "blind-mnasnet", "blind-shufflenet"),
)
"""The steps that are recorded, the most telling first."""

Row = dict[str, Any]


def recorded(name: str) -> tuple[Row, dict[str, str]]:
    """The allocations of one warm iteration of a step, and the code that was generated for it."""
    import torch

    from lab.collect.compiled_worker import all_steps
    from lab.steps.compiled import step_named

    torch.set_float32_matmul_precision("highest")
    chosen = step_named(name, all_steps())
    step = chosen.make(chosen.mode)
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    row: Row = {"step": name, "held_bytes": torch.cuda.memory_allocated()}
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    row["peak_bytes"] = torch.cuda.max_memory_allocated()
    row["requested_bytes"] = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    row["pools"] = pools(torch.cuda.memory_snapshot())
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=400_000
    )
    step()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    places = AllocatingLines()
    row["events"] = compact(events, places)
    row["places"] = list(places.numbers)
    return row, places.code()


def pools(segments: list[Row]) -> list[list[Any]]:
    """For each pool of the allocator: its number, the bytes of its segments, and those in use."""
    totals: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for segment in segments:
        pool = str(segment.get("segment_pool_id"))
        totals[pool] += segment["total_size"]
        used[pool] += segment["allocated_size"]
    return [[pool, totals[pool], used[pool]] for pool in totals]


class AllocatingLines:
    """The places in the code that allocate, numbered."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._generated: dict[str, int] = {}

    def of(self, frames: list[Row]) -> int:
        """The number of the place of a stack: its line of generated code, else its innermost."""
        generated = [frame for frame in frames if _is_generated(frame["filename"])]
        if generated:
            frame = generated[0]
            graph = self._generated.setdefault(frame["filename"], len(self._generated))
            text = linecache.getline(frame["filename"], frame["line"]).strip()[:160]
            place = f"graph {graph}: {text}"
        elif frames:
            frame = frames[0]
            place = f"{Path(frame['filename']).name}:{frame['name']}"
        else:
            place = "?"
        return self.numbers.setdefault(place, len(self.numbers))

    def code(self) -> dict[str, str]:
        """The part of each generated file that calls its kernels."""
        texts = {}
        for path, graph in self._generated.items():
            text = Path(path).read_text(encoding="utf-8")
            texts[str(graph)] = text[text.rfind("async_compile.wait") :]
        return texts


def _is_generated(path: str) -> bool:
    return "caches-" in path or "torchinductor" in path


def compact(events: list[Row], places: AllocatingLines) -> list[list[int]]:
    """Allocations as [bytes, place], and releases as [-1, the number of the allocation].

    What was allocated before is released as [-2, bytes].
    """
    rows: list[list[int]] = []
    live: dict[int, int] = {}
    count = 0
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = count
            count += 1
            rows.append([event["size"], places.of(event.get("frames") or [])])
        elif event["action"] == "free_completed":
            number = live.pop(event["addr"], None)
            rows.append([-2, event["size"]] if number is None else [-1, number])
    return rows


def one(name: str, path: Path) -> None:
    """Record one step, and write it to a file; an error is written, too."""
    try:
        row, code = recorded(name)
    except Exception as error:
        row = {"step": name, "failed": repr(error)[:300], "trace": traceback.format_exc()[-800:]}
        code = {}
    text = json.dumps({"row": row, "code": code})
    path.with_suffix(".part").write_text(text, encoding="utf-8")
    path.with_suffix(".part").rename(path)


def collect(out: Path, seconds: float, workers: int, names: list[str]) -> None:
    """Record steps until the time is up."""
    until = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        waiting = list(names)
        running: dict[str, subprocess.Popen[bytes]] = {}
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < workers:
                name = waiting.pop(0)
                running[name] = _started(name, Path(folder))
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
            time.sleep(0.1)
        for process in running.values():
            process.kill()
            process.wait()
        done = [json.loads(p.read_text("utf-8")) for p in sorted(Path(folder).glob("*.json"))]
    with gzip.open(out / "allocations.jsonl.gz", "wt", encoding="utf-8") as file:
        for each in done:
            file.write(json.dumps(each["row"], separators=(",", ":")) + "\n")
    with gzip.open(out / "code.json.gz", "wt", encoding="utf-8") as file:
        json.dump({each["row"]["step"]: each["code"] for each in done}, file)
    for each in done:
        row = each["row"]
        print(row["step"], row.get("peak_bytes"), row.get("failed", ""), row.get("trace", ""))
    print("not done:", [*waiting, *running])


def _started(name: str, folder: Path) -> subprocess.Popen[bytes]:
    own = folder / f"caches-{name}"
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(own),
        "TRITON_CACHE_DIR": str(own / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, str(folder / f"{name}.json"), "--one", name]
    return subprocess.Popen(command, env=environment)


def main() -> None:
    """Record all steps, or one."""
    parser = folder_and_seconds(__doc__, 140.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--only", nargs="*", default=[], help="names of steps")
    parser.add_argument("--one", default="", help="record this step, and write it to OUT")
    given = parser.parse_args()
    if given.one:
        one(given.one, given.out)
    else:
        collect(given.out, given.seconds, given.workers, given.only or list(FIRST))


if __name__ == "__main__":
    main()
