"""Traced steps whose fields the structure-aware fuzzer bends, kept as files.

They are kept because tracing takes seconds, and because an input must be the same with each version
of torch. `python -m tests.fuzz --trace-steps` traces them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import wavecast
from wavecast.traces.step import Call, Kernel, Measurement, Trace

STEPS = Path(__file__).parents[1] / "samples" / "steps"
SCHEDULE = Path(__file__).parents[1] / "frameworks" / "jax" / "step.hlo"
CORPUS = Path(__file__).parent / "corpus"
"""Bent steps that broke something once."""


@cache
def traced_steps() -> dict[str, Trace]:
    """The steps by their names."""
    return {
        path.name.removesuffix(".json.gz"): wavecast.load_trace(path)
        for path in sorted(STEPS.glob("*.json.gz"))
    }


def write_steps() -> None:
    """Trace the steps again."""
    STEPS.mkdir(exist_ok=True)
    for name, make in _makers().items():
        made = make()
        made.save(STEPS / f"{name}.json.gz")
        print(f"{name}: {len(made)} calls, {len(made.values)} values")


def _makers() -> dict[str, Callable[[], Trace]]:
    """Steps of each kind: decoders, images, recurrent, experts, graphs, ranks, JAX, measured."""
    import networks
    import parallel_code
    import torch
    from small_models import SMALL

    from wavecast.suite import benchmark
    from wavecast.suite.decoders import mixtral

    def of_suite(name: str, precision: str = "fp32") -> Trace:
        sizes = SMALL[name]
        make = partial(benchmark(name).make_step, 2, precision, device="cuda", **sizes)
        return wavecast.trace(make, samples=2)

    narrow = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 16, "seq": 8}
    experts = {"vocab": 40, "experts": 4, "top_k": 2, "weights": "bf16"}
    small = networks.training(networks.mlp, (4, 8), torch.optim.AdamW)

    def on_ranks() -> Callable[[], object]:
        torch.distributed.init_process_group("nccl")
        return parallel_code.ddp_step("gpt2")

    return {
        "decoder": lambda: of_suite("gpt2"),
        "grouped-heads": lambda: of_suite("llama-1b", "bf16"),
        "images": lambda: of_suite("resnet50"),
        "recurrent": lambda: of_suite("gnmt"),
        "experts": lambda: wavecast.trace(partial(mixtral, 2, "bf16", **narrow, **experts)),
        "compiled": lambda: wavecast.trace(small, samples=4, compiled=True),
        "ranks": lambda: wavecast.trace(on_ranks, samples=2, ranks=parallel_code.RANKS),
        "measured": lambda: measured(wavecast.trace(small, samples=4)),
        "jax": _of_jax,
        "sparse": lambda: wavecast.trace(_sparse_step, samples=30),
    }


def _of_jax() -> Trace:
    """A step that XLA scheduled: fused kernels, loops that are written out, a call of a library."""
    from wavecast.frameworks.jax.driver import CompiledModule
    from wavecast.frameworks.jax.tracing import trace_of

    text = SCHEDULE.read_text(encoding="utf-8")
    sizes = {"argument": 425_984, "output": 33_024, "alias": 32_768, "temp": 300_000}
    gpu = wavecast.device("h100-sxm-80gb")
    return replace(trace_of(CompiledModule(text, sizes), gpu), samples=256)


def _sparse_step() -> Callable[[], object]:
    """A graph network of one layer, whose neighbours are a sparse matrix with learned weights."""
    import torch

    edges = torch.arange(200, device="cuda").reshape(2, 100) % 30
    weights = torch.nn.Parameter(torch.ones(100, device="cuda"))
    layer = torch.nn.Linear(8, 8).cuda()
    features = torch.randn(30, 8, device="cuda")
    optimizer = torch.optim.SGD([weights, *layer.parameters()], lr=0.1)

    def step() -> None:
        neighbours = torch.sparse_coo_tensor(edges, weights, (30, 30))
        torch.sparse.mm(neighbours, layer(features)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measured(trace: Trace) -> Trace:
    """A traced step as if it had been measured on a T4: each call ran for some microseconds."""
    calls: list[Call] = []
    begin_s = 0.0
    for number, call in enumerate(trace):
        duration_s = 5e-6 + 1e-6 * (number % 7)
        name = "volta_sgemm_128x64_nn" if "mm" in call.op.name else "elementwise_kernel"
        kernel = Kernel(
            name,
            duration_s,
            grid=(32, 1, 1),
            block=(256, 1, 1),
            registers=32,
            shared_bytes=0,
            stream=7,
            start_s=begin_s,
        )
        calls.append(replace(call, kernels=(kernel,), host_s=4e-6))
        begin_s += duration_s + 2e-6 * (number % 3)
    whole = Measurement(
        "Tesla T4", begin_s, gpu_s=0.8 * begin_s, host_s=4e-6 * len(calls), recorded_s=1.2 * begin_s
    )
    return replace(trace, calls=tuple(calls), measurement=whole)
