"""How the suite trains: a loss is minimized in a chosen precision, and that is a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FLOAT32_PRODUCTS = {"fp32": "ieee", "tf32": "tf32"}


@dataclass(frozen=True)
class TrainingStep:
    """One training step: call it again and again to train `model` on `inputs`.

    The inputs stay where they are on the device; write into them to train on other data.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., Tensor]

    def __call__(self) -> Tensor:
        """Train once; returns the loss, still on the device."""
        return self.run(*self.inputs)


class Minimizer:
    """Lowers a loss by one optimizer step per call, in one of `wavecast.suite.PRECISIONS`.

        minimize = Minimizer(loss, optimizer, "bf16", "cuda")
        value = minimize(images, labels)  # zero_grad, loss(images, labels), backward, step

    Args:
        loss: from the inputs of a call to a scalar tensor.
        optimizer: holds the parameters to change.
        precision: how to compute.
        device: where the parameters are.
        clip_norm: the largest norm of all gradients together; longer ones are shortened to it.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        optimizer: Optimizer,
        precision: str,
        device: str,
        clip_norm: float | None = None,
    ) -> None:
        self.loss = loss
        self.optimizer = optimizer
        self.precision = precision
        self.device_type = torch.device(device).type
        self.clip_norm = clip_norm
        self.scaler = torch.amp.GradScaler(self.device_type) if precision == "fp16" else None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Take one step on these inputs; returns the loss before it."""
        self.optimizer.zero_grad()
        with float32_products(self.precision):
            with autocast(self.precision, self.device_type):
                loss = self.loss(*inputs)
            if self.scaler is None:
                loss.backward()
                self._clip()
                self.optimizer.step()
            else:
                self._scaled_update(loss, self.scaler)
        return loss.detach()

    def _scaled_update(self, loss: Tensor, scaler: torch.amp.GradScaler) -> None:
        scaler.scale(loss).backward()
        if self.clip_norm is not None:
            scaler.unscale_(self.optimizer)
        self._clip()
        scaler.step(self.optimizer)
        scaler.update()

    def _clip(self) -> None:
        if self.clip_norm is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)


def autocast(precision: str, device_type: str) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast in the 16-bit precisions, nothing in others."""
    if precision not in _AUTOCAST:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device_type, _AUTOCAST[precision])
    return context


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Multiply float32 matrices as "fp32" or "tf32" asks; leave it to the process otherwise."""
    if precision not in _FLOAT32_PRODUCTS:
        yield
        return
    backends = torch.backends
    before = (
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        backends.cudnn.rnn.fp32_precision,
    )
    _set_float32_products(*[_FLOAT32_PRODUCTS[precision]] * 3)
    try:
        yield
    finally:
        _set_float32_products(*before)


def _set_float32_products(matmul: str, conv: str, rnn: str) -> None:
    # PyTorch has these switches twice and refuses to read the old ones where they disagree with
    # the new, so both are set; the old first, because they overwrite the new.
    backends = torch.backends
    backends.cuda.matmul.allow_tf32 = matmul == "tf32"
    backends.cudnn.allow_tf32 = conv == "tf32"
    backends.cuda.matmul.fp32_precision = matmul
    backends.cudnn.conv.fp32_precision = conv
    backends.cudnn.rnn.fp32_precision = rnn
