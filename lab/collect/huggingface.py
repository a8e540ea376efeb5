"""Measure `hf:` targets on this machine's GPU: time, kernels and memory, beside what is predicted.

Adapters, 4-bit layers and 8-bit layers are among them, which no other campaign has. Large models
are measured with fewer layers than they have.

    python -m lab.collect.huggingface OUT          # writes OUT/huggingface.csv and OUT/*.json.gz
    python -m lab.collect.huggingface OUT --step NAME    # prints the seconds of one step

Each step is timed in a process of its own, because every launch takes longer in a process in which
a profiler has run. It needs torch, transformers, diffusers, peft and bitsandbytes.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import wavecast
from lab.collect.gpu_steps import steady_s
from wavecast.frameworks.pytorch.huggingface.configs import config_of
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.frameworks.pytorch.measurement.memory import measure_memory
from wavecast.frameworks.targets import resolve
from wavecast.steps.profiling import profile_measured

Step = Callable[[], Any]
COLUMNS = (
    *("step", "measured_s", "kernel_s", "predicted_s", "predicted_gpu_s", "predicted_low_s"),
    *("predicted_high_s", "measured_peak_bytes", "predicted_peak_bytes", "error"),
)


@dataclass(frozen=True)
class ModelCase:
    """A step of a model."""

    name: str
    model: str
    batch: int
    precision: str | None
    options: ModelOptions
    layers: int | None = None
    """The number of layers, if fewer than the model has."""


_LORA = "r=16,alpha=32,dropout=0.05"
CASES = (
    ModelCase(
        "llama-lora", "llama-3.1-8b", 1, None, ModelOptions(seq=2048, weights="bf16", lora=_LORA), 6
    ),
    ModelCase(
        "llama-qlora", "llama-3.1-8b", 1, None, ModelOptions(seq=2048, qlora=True, lora=_LORA), 6
    ),
    ModelCase(
        "llama-qlora-checkpointing",
        *("llama-3.1-8b", 4, None),
        ModelOptions(seq=512, qlora=True, lora=_LORA, targets="all-linear", checkpointing=True),
        6,
    ),
    ModelCase("llama-bf16", "llama-3.1-8b", 1, None, ModelOptions(seq=2048, weights="bf16"), 6),
    ModelCase("llama-3.2-1b", "llama-3.2-1b", 2, "bf16", ModelOptions(seq=1024)),
    ModelCase("qwen2.5-0.5b", "qwen2.5-0.5b", 4, "bf16", ModelOptions(seq=512)),
    ModelCase("gemma-2-2b", "gemma-2-2b", 1, "bf16", ModelOptions(seq=1024), 8),
    ModelCase("bert-large", "bert-large-uncased", 16, "bf16", ModelOptions(seq=256)),
    ModelCase("vit-base", "vit-base-patch16-224", 64, "bf16", ModelOptions()),
    ModelCase("whisper-small", "whisper-small", 8, "bf16", ModelOptions()),
    ModelCase("sd-1.5-unet", "sd-1.5-unet", 4, "bf16", ModelOptions()),
)


def _make_step(case: ModelCase, folder: Path) -> Callable[[], Step]:
    config = dict(config_of(case.model).values)
    if case.layers is not None:
        config["num_hidden_layers"] = case.layers
        config.pop("layer_types", None)
    path = folder / case.name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    target = resolve(f"hf:{path}", case.batch, case.precision, case.options)
    assert target.make_step is not None
    return target.make_step


def _eight_bit() -> Step:
    """Linear layers that multiply in int8, and an optimizer with 8-bit state."""
    import bitsandbytes

    model = torch.nn.Sequential(
        *(bitsandbytes.nn.Linear8bitLt(4096, 4096, has_fp16_weights=False) for _ in range(8)),
        torch.nn.Linear(4096, 4096, dtype=torch.float16),
    ).cuda()
    weights = [p for p in model.parameters() if p.requires_grad and p.is_floating_point()]
    optimizer = bitsandbytes.optim.AdamW8bit(weights, lr=1e-4)
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16, requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def measure(name: str, make_step: Callable[[], Step], gpu: Any, out: Path) -> dict[str, Any]:
    """The row of one step."""
    traced = wavecast.trace(make_step, gpu=gpu)
    prediction = wavecast.predict(traced, gpu)
    step = make_step()
    measured = wavecast.measure(step, warm_up=3, repeats=3)
    measured.save(out / f"{name}.json.gz")
    del step
    gc.collect()
    torch.cuda.empty_cache()
    memory = measure_memory(make_step)
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "step": name,
        "measured_s": _timed_alone(name, out),
        "kernel_s": profile_measured(name, measured, gpu).gpu_s,
        "predicted_s": prediction.seconds,
        "predicted_gpu_s": prediction.gpu_s,
        "predicted_low_s": prediction.low_s,
        "predicted_high_s": prediction.high_s,
        "measured_peak_bytes": memory.peak_bytes,
        "predicted_peak_bytes": wavecast.memory(traced, gpu).peak_bytes,
    }


def _seconds(make_step: Callable[[], Step]) -> float:
    step = make_step()
    for _ in range(3):
        step()
    return min(steady_s(step, 8) for _ in range(3))


def _timed_alone(name: str, out: Path) -> float:
    command = [sys.executable, "-m", "lab.collect.huggingface", str(out), "--step", name]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ended.stdout.split()[-1])


def main() -> None:
    """Measure all steps; one that fails leaves its error in its row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--step", help="time only this step, and print its seconds")
    given = parser.parse_args()
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    steps = {case.name: _make_step(case, out) for case in CASES} | {"eight-bit": _eight_bit}
    if given.step is not None:
        print(_seconds(steps[given.step]))
        return
    gpu = wavecast.device(torch.cuda.get_device_name())
    with (out / "huggingface.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for name, make_step in steps.items():
            begin = time.perf_counter()
            try:
                row = measure(name, make_step, gpu, out)
            except Exception as error:
                row = {"step": name, "error": f"{type(error).__name__}: {error}".split("\n")[0]}
            writer.writerow(row)
            file.flush()
            print({k: v for k, v in row.items() if k != "step"}, name, time.perf_counter() - begin)


if __name__ == "__main__":
    main()
