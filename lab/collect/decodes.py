"""How long do prompts and single tokens take with language models? On this machine's GPU.

    python -m lab collect decodes OUT [--seconds 200] [--task NAME...]

It needs torch, numpy and transformers only. Models have random weights in bf16. Each step is that
which `wavecast predict hf:NAME --task prefill|decode` traces: eager with a growing cache; with a
static cache, captured as one CUDA graph; and, for the smallest models, compiled with a static
cache. Each model is built in a process of its own and measured when it has the machine to itself
(`lab.collect.turns`). OUT/decodes.json has each step's median time in seconds and its quartiles,
how long the host takes to issue it, and the peak of allocated memory. It is written after each
model. `--task` measures some models only, or some compiled steps by their keys.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.collect.turns import Turn, Turns, in_new_process

MODELS = (
    *("llama-3.2-1b", "gpt2", "pythia-1.4b", "opt-1.3b", "qwen2.5-0.5b", "gemma-2-2b"),
    *("phi-3-mini", "gpt2-xl", "mistral-7b", "qwen2.5-7b", "llama-3.1-8b", "qwen3-8b"),
)
SHORT = {"gpt2": 1024, "gpt2-xl": 1024, "opt-1.3b": 2048, "pythia-1.4b": 2048, "phi-3-mini": 2048}
"""The most tokens of a sequence, where it is below 4,096."""
COMPILED = (("llama-3.2-1b", 1), ("gpt2", 1), ("llama-3.2-1b", 32), ("pythia-1.4b", 1))
"""The models that are compiled, at a batch."""
SECONDS = 0.3
"""How long each step is timed."""
LONG_S = 0.05
"""A step that takes longer is timed alone; five shorter ones are timed together."""
WORKERS = 4
"""How many models get ready at once; the largest four fit together, beside a full cache of one."""


@dataclass(frozen=True)
class InferenceCase:
    """One step of a model."""

    model: str
    task: str
    batch: int
    seq: int
    """The tokens of the prompt, or in the cache."""
    cache: str = "dynamic"
    way: str = "eager"
    """How it runs: "eager", "graph" (one CUDA graph), "compiled", or "reduce-overhead" (compiled,
    with CUDA graphs)."""

    @property
    def key(self) -> str:
        """The step in one word."""
        return f"{self.model}-{self.task}-b{self.batch}-s{self.seq}-{self.cache}-{self.way}"


def cases(model: str) -> list[InferenceCase]:
    """The steps of a model: of a short prompt, of one that fills the GPU, and of single tokens."""
    most = SHORT.get(model, 4096)
    many, short = (16 if model == "phi-3-mini" else 64), min(1024, most) - 1
    eager = (
        *(("prefill", 1, min(1024, most)), ("prefill", 8, min(2048, most))),
        *(("decode", 1, short), ("decode", 32, short), ("decode", many, most - 1)),
    )
    graphs = () if model == "opt-1.3b" else (eager[2], eager[4])  # OPT reads its mask from the GPU
    return [
        *(InferenceCase(model, *size) for size in eager),
        *(InferenceCase(model, *size, cache="static", way="graph") for size in graphs),
    ]


def compiled_cases() -> list[InferenceCase]:
    """The steps that are compiled, the most important first."""
    ways = [
        InferenceCase(*size[:1], "decode", size[1], 1023, "static", "compiled") for size in COMPILED
    ]
    return [ways[0], replace(ways[0], way="reduce-overhead"), *ways[1:]]


def recipe(case: InferenceCase) -> Any:
    """The recipe of a case's step."""
    from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
    from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of

    cache = "static" if case.cache == "static" else None
    options = ModelOptions(task=case.task, seq=case.seq, cache=cache)
    return recipe_of(case.model, case.batch, None, options)


class BuiltModel:
    """The model that was built last: its weights serve all of its steps."""

    def __init__(self) -> None:
        self.name, self.model = "", None

    def started(self, case: InferenceCase) -> Callable[[], Any]:
        """The step of a case, warm: its kernels are loaded, its graph is captured."""
        import torch

        from wavecast.frameworks.pytorch.huggingface.inference import make_step, step_of

        torch._dynamo.reset()
        if self.name != case.model or case.way in ("compiled", "reduce-overhead"):
            self.model = None
            torch.cuda.empty_cache()
            self.name, self.model = case.model, make_step(recipe(case)).model
        step = step_of(self.model, recipe(case))
        if case.way in ("compiled", "reduce-overhead"):
            mode = None if case.way == "compiled" else case.way
            step.model.forward = torch.compile(step.model.forward, mode=mode)
            self.name = ""
        for _ in range(4):
            step()
        torch.cuda.synchronize()
        return _captured(step) if case.way == "graph" else step


def _captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as one CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()

    def replay() -> Callable[[], Any]:
        graph.replay()
        return step  # which holds the tensors that the graph reads

    return replay


def op_s() -> float:
    """Seconds that the host takes to issue one small op now: the machine's speed drifts."""
    import torch

    x = torch.zeros(1, device="cuda")
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(400):
            x.add_(1.0)
        times.append((time.perf_counter() - begin) / 400)
        torch.cuda.synchronize()
    return min(times)


def timed(steps: BuiltModel, case: InferenceCase) -> dict[str, Any]:
    """Time, issue time and memory of one step."""
    import torch

    step = steps.started(case)
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step()
    issued_s = time.perf_counter() - begin
    torch.cuda.synchronize()
    together = 1 if time.perf_counter() - begin > LONG_S else 5
    times: list[float] = []
    most = min(200, case.seq // 6) if case.cache == "static" else 200  # places left in the cache
    while (together * sum(times) < SECONDS or len(times) < 5) and together * len(times) < 5 * most:
        begin = time.perf_counter()
        for _ in range(together):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / together)
    low, middle, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return {
        **{"seconds": middle, "quartiles": [low, high], "runs": together * len(times)},
        **{"issued_s": issued_s, "peak_bytes": torch.cuda.max_memory_allocated(), "op_s": op_s()},
    }


def tasks() -> dict[str, list[InferenceCase]]:
    """What each process measures: all plain steps of a model, or one compiled step."""
    return {
        **{model: cases(model) for model in MODELS},
        **{case.key: [case] for case in compiled_cases()},
    }


def measure(named: Sequence[InferenceCase], ready: Callable[[], None]) -> list[dict[str, Any]]:
    """The rows of steps of one model, once they may be measured."""
    import torch

    steps, rows = BuiltModel(), list[dict[str, Any]]()
    for case in named:
        row = asdict(case)
        try:
            if not rows:
                steps.started(case)  # builds the model, before its turn comes
                ready()
            row.update(timed(steps, case))
        except Exception as error:  # a step that fails costs no other one
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def main(given: Sequence[str] = ()) -> None:
    """Measure all models."""
    import torch
    import transformers

    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--task", action="append", choices=tasks(), metavar="NAME")
    args = parser.parse_args(given)
    wanted: list[str] = args.task or list(tasks())
    args.out.mkdir(parents=True, exist_ok=True)
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def write(**more: Any) -> None:
            """Keep what is measured so far, so that a run that is killed leaves it."""
            found = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
            steps = [row for task in wanted for row in found.get(task, ())]
            told = json.dumps(machine | more | {"steps": steps}, indent=1)
            (args.out / "decodes.json").write_text(told, encoding="utf-8")

        turns = Turns(
            in_new_process("-m", "lab.collect.decodes", name),
            folder,
            deque(wanted),
            WORKERS,
            time.monotonic() + args.seconds,
            write,
        )
        unfinished = turns.run()
        write(failures=turns.failures, unfinished=unfinished)


def work() -> None:
    """Measure the steps of one task when it is told to: FOLDER TASK DESCRIPTOR."""
    folder, task = Path(sys.argv[1]), sys.argv[2]
    turn = Turn(task, int(sys.argv[3]))
    rows = measure(tasks()[task], turn.wait)
    (folder / f"{task}.json").write_text(json.dumps(rows), encoding="utf-8")
    turn.say(done=" ".join(f"{1e3 * row['seconds']:.2f}" for row in rows if "seconds" in row))


if __name__ == "__main__":
    work()
