"""The training step of a suite model: minimize a loss, in a chosen precision."""

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
    """A training step. Call it repeatedly to train `model` on `inputs`.

    The inputs are tensors on the device. Write into them to train on other data.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., Tensor]

    def __call__(self) -> Tensor:
        """Run one training step, and return the loss as a tensor on the device."""
        return self.run(*self.inputs)


class Minimizer:
    """Runs one optimizer step per call, in one of `wavecast.suite.PRECISIONS`.

        minimize = Minimizer(loss, optimizer, "bf16", "cuda")
        value = minimize(images, labels)  # zero_grad, loss(images, labels), backward, step

    `loss` computes a scalar tensor from the inputs of a call; gradients are clipped to `clip_norm`.
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
        """Run one optimizer step on these inputs, and return the loss before it."""
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


def next_tokens(vocabulary: int, batch: int, sequence: int, device: str) -> tuple[Tensor, Tensor]:
    """Random tokens and, at each position, the token that follows: (batch, sequence) each."""
    text = torch.randint(vocabulary, (batch, sequence + 1), device=device)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def autocast(precision: str, device_type: str) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for 16-bit precisions, nothing for others."""
    if precision not in _AUTOCAST:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device_type, _AUTOCAST[precision])
    return context


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Run float32 matmuls in IEEE float32 ("fp32") or TF32 ("tf32"); others change nothing."""
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
    # PyTorch has an old and a new set of these switches, and raises an error if they disagree when
    # the old ones are read. So both are set; the old ones first, because they overwrite the new.
    backends = torch.backends
    backends.cuda.matmul.allow_tf32 = matmul == "tf32"
    backends.cudnn.allow_tf32 = conv == "tf32"
    backends.cuda.matmul.fp32_precision = matmul
    backends.cudnn.conv.fp32_precision = conv
    backends.cudnn.rnn.fp32_precision = rnn
