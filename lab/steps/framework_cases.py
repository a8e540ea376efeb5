"""The micro-batches of `lab/steps/framework_decoder.py` that were measured, by sizes and habits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SIZES = {"1B": (16, 2048, 8192, 131_072), "8B": (8, 4096, 14_336, 131_072)}
"""Layers, hidden and inner sizes, vocabulary. Of the larger model, a quarter of its layers."""
HABITS: dict[str, dict[str, bool]] = {
    "plain": {"functions": False, "copies": False, "own_loss": False, "lengths": False},
    "functions": {"functions": True, "copies": False, "own_loss": False, "lengths": False},
    "copies": {"functions": True, "copies": True, "own_loss": False, "lengths": True},
    "all": {"functions": True, "copies": True, "own_loss": True, "lengths": True},
}


def decoder_step(
    habits: Mapping[str, bool], size: str, ranks: int, seq: int
) -> Callable[[], Callable[[], None]]:
    """A function that builds one micro-batch of one rank: forward, backward, gradients in float32.

    Args:
        habits: the fields of `DecoderHabits`.
        size: a key of `SIZES`.
        ranks: tensor ranks. With several, the process group must be there.
        seq: positions.
    """

    def make_step() -> Callable[[], None]:
        import torch

        from lab.steps.framework_decoder import DecoderHabits, FrameworkDecoder

        layers, hidden, ffn, vocab = SIZES[size]
        with torch.device("cuda"):
            model = FrameworkDecoder(
                layers, hidden, ffn, vocab, seq, ranks, DecoderHabits(**habits)
            )
            model = model.to(torch.bfloat16)
            model.cos, model.sin = model.cos.float(), model.sin.float()
            tokens = torch.randint(0, vocab // ranks, (1, seq))
            mask = torch.ones((1, seq), dtype=torch.bool)
            sums = {
                weight: torch.zeros_like(weight, dtype=torch.float32)
                for weight in model.parameters()
            }

        def widen(weight: Any) -> None:
            sums[weight].add_(weight.grad)
            weight.grad = None

        for weight in sums:
            weight.register_post_accumulate_grad_hook(widen)

        def step() -> None:
            model(tokens, tokens, mask).backward()

        return step

    return make_step
