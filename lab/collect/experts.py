"""How long do the products of mixtures of experts take? Times them on this machine's GPU.

    python -m lab.collect.experts OUT [--seconds 35]

Needs a GPU and only torch. Takes the experts of real models with 1k to 16k tokens and times the
products of a training step as autograd calls them: forward, gradient of the data, gradient of the
weights. Writes OUT/grouped.json, which becomes measurements/h200/grouped.json
(`lab.measured.experts` reads it).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.collect.gpu_steps import folder_and_seconds
from lab.measured.experts import ExpertRow, Tensor

TOKENS = (1024, 4096, 16384, 2048, 8192)
ROUTINGS = ("even", "uneven")
REPEATS = 7
FLUSHED_BYTES = 2**28
"""The size of the buffer that is written to empty the L2 cache: larger than any L2 cache."""
ASLEEP_CYCLES = 2_000_000
"""The GPU sleeps about a millisecond, so that the host issues all repeats before they run."""


@dataclass(frozen=True)
class Experts:
    """The experts of a model, by its configuration."""

    model: str
    count: int
    per_token: int
    """The number of experts that each token is routed to."""
    hidden: int
    inner: int
    turned: bool = False
    """Whether weights are stored as (in, out)."""

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The (in, out) sizes of each product: gate and up as one matrix, and down."""
        return {"up": (self.hidden, 2 * self.inner), "down": (self.inner, self.hidden)}


MODELS = (
    Experts("Mixtral-8x7B", 8, 2, 4096, 14336),
    Experts("Qwen3-30B-A3B", 128, 8, 2048, 768),
    Experts("DeepSeek-V2-Lite", 64, 6, 2048, 1408),
    Experts("gpt-oss-20b", 32, 4, 2880, 2880, turned=True),
    Experts("Phi-3.5-MoE", 16, 2, 4096, 6400),
    Experts("OLMoE-1B-7B", 64, 8, 2048, 1024),
    Experts("Qwen3-235B-A22B", 128, 8, 4096, 1536),
    Experts("granite-3.1-3b-a800m", 40, 8, 1536, 512),
    Experts("Qwen1.5-MoE-A2.7B", 60, 4, 2048, 1408),
    Experts("gpt-oss-120b", 128, 4, 2880, 2880, turned=True),
)


@dataclass(frozen=True)
class Product:
    """A product to time."""

    name: str
    turn: str
    operands: tuple[Any, ...]
    run: Callable[[], Any]


def shares(count: int, routing: str) -> list[float]:
    """The share of the tokens of each expert: equal, or as an unbalanced router would give them."""
    import torch

    if routing == "even":
        return [1 / count] * count
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    weights = (0.7 * drawn).exp()
    return (weights / weights.sum()).tolist()  # type: ignore[no-any-return]


def ends(rows: int, count: int, routing: str) -> list[int]:
    """Where the rows of each expert end."""
    offsets, reached = [], 0.0
    for share in shares(count, routing):
        reached += share
        offsets.append(round(rows * reached))
    return offsets


def fullest(offsets: Sequence[int]) -> float:
    """The rows of the expert with the most rows, over the mean."""
    sizes = [end - begin for begin, end in zip((0, *offsets), offsets, strict=False)]
    return max(sizes) * len(sizes) / max(sum(sizes), 1)


def asked_for(run: Callable[[], Any]) -> list[Product]:
    """The grouped products within a call, with the operands that autograd passes."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    products: list[Product] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten._grouped_mm.default:
                turn = "forward" if not products else "data" if args[1].dim() == 3 else "weights"
                products.append(
                    Product("_grouped_mm", turn, args, partial(func, *args, **(kwargs or {})))
                )
            return func(*args, **(kwargs or {}))

    with Listening():
        run()
    return products


def trained(rows: Any, weight: Any, offsets: Any) -> list[Product]:
    """The products of a training step for one matrix of the experts."""
    import torch
    import torch.nn.functional as F

    def run() -> None:
        out = F.grouped_mm(rows, weight, offs=offsets)
        out.backward(torch.randn_like(out))

    return asked_for(run)


def batched(products: Sequence[Product], count: int) -> Iterator[Product]:
    """The same products as plain batched products, for groups of equal size."""
    import torch

    for product in products:
        a, b = product.operands[:2]
        if b.dim() == 2:
            a, b = a.unflatten(1, (count, -1)).transpose(0, 1), b.unflatten(0, (count, -1))
        else:
            a = a.unflatten(0, (count, -1))
        yield Product("bmm", product.turn, (a, b), partial(torch.bmm, a, b))


def in_fp8(rows: Any, weight: Any, offsets: Any) -> Product:
    """The forward product in fp8, with a scale for each row and each column of weights."""
    import torch

    a = rows.detach().to(torch.float8_e4m3fn)
    stored = weight.detach().transpose(-2, -1).contiguous().to(torch.float8_e4m3fn)
    b = stored.transpose(-2, -1)
    ones = partial(torch.ones, device=rows.device, dtype=torch.float32)
    operands = (a, b, ones(a.shape[0]), ones((b.shape[0], b.shape[2])), offsets)
    run = partial(
        torch.ops.aten._scaled_grouped_mm.default,
        *operands,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return Product("_scaled_grouped_mm", "forward", operands, run)


def by_events(run: Callable[[], Any], flushed: Any) -> float:
    """The median seconds of calls with a cold L2 cache, issued while the GPU sleeps."""
    import torch

    for _ in range(2):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    torch.cuda._sleep(ASLEEP_CYCLES)
    for begin, end in events:
        flushed.zero_()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return _short(1e-3 * statistics.median(begin.elapsed_time(end) for begin, end in events))


def by_kernels(run: Callable[[], Any], flushed: Any) -> tuple[float, tuple[str, ...]]:
    """The busy seconds and the kernels of one call.

    Used where torch loops over groups: the loop waits for the host, but kernel times do not.
    """
    import torch

    from wavecast.frameworks.pytorch.measurement.profiling import gpu_activity

    run()
    flushed.zero_()
    torch.cuda.synchronize()
    seen = gpu_activity(run, 1)
    return _short(seen.busy_s), tuple(f"{n} x {name[:60]}" for name, n in seen.names.items())


def _short(seconds: float) -> float:
    """Rounded to the digits that the clock has."""
    return float(f"{seconds:.6g}")


def products_of(experts: Experts, weight: Any, tokens: int, routing: str) -> Iterator[Product]:
    """The products to time for a matrix: grouped, and for equal groups also batched and in fp8."""
    import torch

    inwards = weight.shape[1]
    count, rows = experts.count, tokens * experts.per_token
    offsets = torch.tensor(ends(rows, count, routing), dtype=torch.int32, device=weight.device)
    data = torch.randn(rows, inwards, dtype=weight.dtype, device=weight.device, requires_grad=True)
    products = trained(data, weight, offsets)
    yield from products
    if weight.dtype == torch.bfloat16 and routing == "even" and rows % count == 0:
        yield from batched(products, count)
        if not experts.turned:
            yield in_fp8(data, weight, offsets)


def measured(
    experts: Experts, matrix: str, weight: Any, tokens: int, routing: str, flushed: Any
) -> Iterator[ExpertRow]:
    """The rows of one matrix at one number of tokens."""
    import torch

    most = fullest(ends(tokens * experts.per_token, experts.count, routing))
    looped = weight.dtype != torch.bfloat16  # torch has a grouped kernel for bf16 only
    profiled = looped or (tokens, routing, matrix) == (TOKENS[0], "even", "up")
    for product in products_of(experts, weight, tokens, routing):
        with torch.no_grad():
            kernels_s, names = by_kernels(product.run, flushed) if profiled else (None, ())
            seconds = None if looped else by_events(product.run, flushed)
        tensors = tuple(
            Tensor(tuple(t.shape), t.stride(), str(t.dtype).removeprefix("torch."))
            for t in product.operands
        )
        place = (experts.model, matrix, product.turn, tokens, routing, round(most, 3))
        yield ExpertRow(*place, f"aten.{product.name}", tensors, seconds, kernels_s, names)


def all_rows(seconds: float, device: str = "cuda") -> Iterator[ExpertRow]:
    """The rows of all models in turn, until the time is up."""
    import torch

    until = time.monotonic() + seconds
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)
    plans = [
        *(("bfloat16", model, TOKENS, ROUTINGS) for model in MODELS),
        *(("float16", model, TOKENS[:2], ROUTINGS[:1]) for model in MODELS[:4]),
        *(("float32", model, TOKENS[:1], ROUTINGS[:1]) for model in MODELS[:4]),
    ]
    for dtype, experts, counts, routings in plans:
        for matrix, (inwards, out) in experts.matrices.items():
            shape = (inwards, out) if experts.turned else (out, inwards)
            make = partial(torch.randn, dtype=getattr(torch, dtype), device=device)
            stored = make(experts.count, *shape)
            weight = stored if experts.turned else stored.transpose(-2, -1)
            weight.requires_grad_()
            for tokens in counts:
                for routing in routings:
                    if time.monotonic() > until:
                        return
                    weight.grad = None
                    try:
                        yield from measured(experts, matrix, weight, tokens, routing, flushed)
                    except RuntimeError as error:  # this GPU or torch does not support the product
                        print(f"{experts.model} {matrix} {dtype}: {str(error)[:200]}", flush=True)


def measure(folder: Path, seconds: float) -> None:
    """Write the measured times of the products, and print a short table."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    begin, rows = time.monotonic(), list[ExpertRow]()
    try:
        rows.extend(all_rows(seconds))
    finally:  # keep what was measured, also after an error
        gpu = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        head = json.dumps({**gpu, "columns": ExpertRow._fields})
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        text = f'{{"head": {head},\n"rows": [\n{lines}\n]}}\n'
        (folder / "grouped.json").write_text(text, encoding="utf-8")
    for experts in MODELS:
        mine = [row for row in rows if row.model == experts.model]
        total_s = sum(row.events_s or row.kernels_s or 0.0 for row in mine)
        print(f"{experts.model}: {len(mine)} products, {total_s:.4f} s")
    print(f"{len(rows)} rows in {time.monotonic() - begin:.1f} s")


def main() -> None:
    """Measure into a folder."""
    given = folder_and_seconds(__doc__, 35.0).parse_args()
    measure(given.out, given.seconds)


if __name__ == "__main__":
    main()
