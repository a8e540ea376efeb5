"""Groups of ops that run as one kernel, found by the values that connect them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from parallel_steps import small_gpt2_step
from torch import Tensor, nn

import wavecast
from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.parallel.fused_kernels import EXPERTS, GATES, ROTARY, FusionRule, with_fused
from wavecast.parallel.habits import with_sequence_first
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.suite.decoders import gpt, llama, mixtral
from wavecast.traces.step import Call, Phase, Trace

SMALL: dict[str, Any] = {"hidden": 32, "heads": 4, "seq": 16, "vocab": 64, "layers": 2}
LLAMA = partial(llama, 2, "bf16", weights="bf16", kv_heads=2, ffn=48, **SMALL)
MIXTRAL = partial(mixtral, 2, "bf16", weights="bf16", kv_heads=2, ffn=48, experts=4, **SMALL)
UNFUSED = partial(gpt, 2, "fp16", weights="fp16", fused_attention=False, recompute="full", **SMALL)


def _of(trace: Trace, module: str) -> list[Call]:
    return [c for c in trace if c.module.endswith(module) and ops.launches(c.op)]


@pytest.mark.parametrize(
    ("make", "kernel", "module", "shapes"),
    [
        (LLAMA, ROTARY, "blocks.1.attention.key_rotary", [(2, 2, 16, 8)]),
        (LLAMA, GATES, "blocks.1.feed_forward.activation", [(2, 16, 48)]),
        (MIXTRAL, GATES, "blocks.1.feed_forward.experts.activation", [(64, 48)]),
        (MIXTRAL, EXPERTS, "blocks.1.feed_forward.combine", [(32, 32)]),
    ],
)
def test_a_group_is_one_kernel_forward_and_one_backward(
    make: Any, kernel: FusionRule, module: str, shapes: list[tuple[int, ...]]
) -> None:
    trace = wavecast.trace(make)
    calls = _of(with_fused(trace, kernel), module)
    assert [c.phase for c in calls] == [Phase.FORWARD, Phase.BACKWARD]
    assert [tensor.shape for tensor in calls[0].op.outputs] == shapes


def test_results_of_experts_on_other_ranks_are_added_up_in_one_kernel() -> None:
    strategy = Parallel(data=4, expert=4, fused_experts=True)
    (part,) = spread(wavecast.trace(MIXTRAL), strategy).groups[0].parts
    calls = _of(part.plain, "blocks.1.feed_forward.combine")
    kernels = [c.phase for c in calls if ops.kind(c.op) is not ops.Kind.COLLECTIVE]
    # The order of the tokens is no kernel of its own, though the results arrive after it.
    assert kernels == [Phase.FORWARD, Phase.BACKWARD]
    # The weights of the experts have 32 bits, but a fused kernel converts them for nothing.
    read = {t.dtype for c in calls for t in c.op.inputs if "float" in t.dtype}
    assert read == {"bfloat16"}


def test_a_gate_reads_and_writes_each_tensor_once() -> None:
    forward, backward = _of(
        with_fused(wavecast.trace(LLAMA), GATES), "blocks.1.feed_forward.activation"
    )
    counts = [(len(c.op.inputs), len(c.op.outputs)) for c in (forward, backward)]
    # Gate and other half, to their product; its gradient and both halves, to their gradients.
    assert counts == [(2, 1), (3, 2)]


def test_what_only_a_group_reads_takes_no_memory() -> None:
    trace = wavecast.trace(LLAMA)
    fused = with_fused(trace, GATES)
    saved = sum(a.nbytes for a in trace.allocations) - sum(a.nbytes for a in fused.allocations)
    tensor = 2 * 16 * 48 * 2
    # In both blocks: SiLU of the gate, which eager PyTorch keeps, and its gradient.
    assert saved == 2 * 2 * tensor


class RotatingBlock(nn.Module):
    """A block that rotates and gates without modules of their own, as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(32, 32)
        self.gate, self.up = nn.Linear(32, 48), nn.Linear(32, 48)
        self.down = nn.Linear(48, 32)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query = self.query(x)
        half = torch.cat((-query[..., 16:], query[..., :16]), dim=-1)
        x = x + query * cos + half * sin
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def _rotating() -> Any:
    model = nn.ModuleList(RotatingBlock() for _ in range(2)).cuda()
    x, cos, sin = (torch.randn(n, 16, 32, device="cuda") for n in (4, 1, 1))

    def step() -> None:
        y = x
        for block in model:
            y = block(y, cos, sin)
        y.sum().backward()

    return step


@pytest.mark.parametrize("kernel", [ROTARY, GATES])
def test_groups_are_found_whatever_their_modules_are(kernel: FusionRule) -> None:
    trace = wavecast.trace(_rotating)
    fused = with_fused(trace, kernel)
    names = [c.op.base for c in fused if ops.launches(c.op)]
    gone = {"fused_rotary": "aten.neg", "fused_gates": "aten.silu"}[kernel.option]
    assert gone in [c.op.base for c in trace]
    assert gone not in names


@pytest.mark.parametrize("option", ["fused_rotary", "fused_gates", "fused_experts"])
def test_a_step_without_such_groups_is_refused(option: str) -> None:
    options: dict[str, Any] = {option: True}
    with pytest.raises(InvalidInput, match=f"{option} runs .* and the blocks of the step have no"):
        spread(small_gpt2_step(), Parallel(data=2, **options))


def test_position_first_the_matmuls_of_attention_read_views() -> None:
    trace = wavecast.trace(UNFUSED)

    def copies(step: Trace) -> int:
        return sum(c.op.base == "aten.clone" and c.module.endswith("s.1.attention") for c in step)

    assert copies(trace) - copies(with_sequence_first(trace)) == 6  # three, and again recomputed
    with pytest.raises(InvalidInput, match="sequence_first leaves out the copies"):
        with_sequence_first(wavecast.trace(LLAMA))
