"""Changes of precision: autocast around the forward pass, and TF32 for float32 matmuls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks

from wavecast.frameworks.pytorch.capture.replacements import replacing


class Autocasting:
    """Autocast around forward passes, in float16 with a scaler of gradients that steps share."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._scaler: Any = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run forward passes of the block under autocast.

        The backward pass and the optimizer run outside of it, as torch's recipe has them. Weights
        are cast once in each step.
        """
        if self._dtype is torch.float16 and self._scaler is None:
            self._scaler = torch.amp.GradScaler("cuda")
        with ExitStack() as stack:
            hook = optimizer_hooks.register_optimizer_step_pre_hook(self._before_update)
            stack.callback(hook.remove)
            replacing(stack)(torch.autograd, backward=self._scaled(torch.autograd.backward))
            stack.enter_context(torch.autocast("cuda", self._dtype))
            yield

    def _scaled(self, backward: Callable[..., None]) -> Callable[..., None]:
        def run(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with torch.autocast("cuda", enabled=False):
                if self._scaler is not None and isinstance(tensors, torch.Tensor):
                    tensors = self._scaler.scale(tensors)
                backward(tensors, *args, **kwargs)

        return run

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        torch.clear_autocast_cache()
        if self._scaler is not None:
            with torch.autocast("cuda", enabled=False):
                self._scaler.unscale_(optimizer)
                self._scaler.update()


@contextmanager
def rounding_to_tf32() -> Iterator[None]:
    """Round the operands of float32 matmuls and convolutions to TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
