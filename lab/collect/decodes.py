"""How long do prompts and single tokens take with language models? On this machine's GPU.

    python -m lab collect decodes OUT

It needs torch, numpy and transformers only. Models have random weights in bf16. Each step is that
which `wavecast predict hf:NAME --task prefill|decode` traces, run eagerly. OUT/decodes.json has the
median time of each in seconds, and the peak of allocated memory.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import needs

MODELS = (
    *("gpt2", "qwen2.5-0.5b", "llama-3.2-1b", "llama-3.2-3b", "gemma-2-2b"),
    *("qwen2.5-7b", "mistral-7b", "llama-3.1-8b", "qwen3-8b", "gemma-2-9b"),
)
CASES = (("prefill", 1, 1024), ("prefill", 4, 1024), ("decode", 1, 1023), ("decode", 32, 1023))
"""Task, batch, and tokens of the prompt or in the cache."""
SECONDS = 1.0
"""How long each step is timed."""


def measure(name: str, task: str, batch: int, seq: int) -> dict[str, Any]:
    """The time and the memory of one step."""
    import torch

    from wavecast.frameworks.pytorch.huggingface.inference import make_step
    from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
    from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of

    step = make_step(recipe_of(name, batch, None, ModelOptions(task=task, seq=seq)))
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 5:
        begin = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / 5)
    return {
        **{"model": name, "task": task, "batch": batch, "seq": seq},
        **{"seconds": statistics.median(times), "runs": 5 * len(times)},
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def main(given: Sequence[str] = ()) -> None:
    """Measure all models, and write what was measured so far after each."""
    import torch

    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args(given).out
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        for case in CASES:
            try:
                rows.append(measure(name, *case))
            except (RuntimeError, ValueError, TypeError, AttributeError) as error:
                rows.append({"model": name, "task": case[0], "error": f"{error}"[:300]})
            torch.cuda.empty_cache()
        told = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": rows}
        (out / "decodes.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
        print(name, len(rows), flush=True)
