"""Decoders whose blocks are compiled one by one, as torchtitan and FSDP compile them.

torchtitan wraps each block so that its activations are computed again, compiles the wrapped block,
and applies FSDP to it. fms-fsdp compiles the model; FSDP's hooks break the graph at each block, so
the graphs are the same. The embedding, the last norm, the output layer and the loss are eager.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from wavecast.suite.decoders import _EverySecond


class Recomputed(nn.Module):
    """A block whose activations are computed again, all of them or torchtitan's choice."""

    def __init__(self, block: nn.Module, recompute: str) -> None:
        super().__init__()
        self.block = block
        self.options: dict[str, Any] = {"use_reentrant": False}
        if recompute == "alternate":
            self.options["context_fn"] = _contexts

    def forward(self, *inputs: Any) -> Any:
        return checkpoint(self.block, *inputs, **self.options)


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_EverySecond())


def with_compiled_blocks(make: Callable[[], Any]) -> Callable[[], Any]:
    """A function that makes a step of `wavecast.suite.decoders`, with each block compiled."""
    return partial(_made, make)


def _made(make: Callable[[], Any]) -> Any:
    step = make()
    model = step.model
    recompute, model.recompute = model.recompute, "none"
    for index, block in enumerate(model.blocks):
        again = recompute in ("full", "alternate")
        model.blocks[index] = Recomputed(block, recompute) if again else block
        model.blocks[index].compile()
    return step
