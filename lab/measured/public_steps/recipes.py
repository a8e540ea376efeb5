"""Training steps in the forms that the authors of published measurements used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wavecast.suite.training import float32_products

Step = Callable[[], Any]


def steady_step(
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    precision: str,
    *,
    clip_norm: float | None = None,
) -> Step:
    """An iteration in the steady state; only the gradient scaler synchronises.

    Args:
        loss: runs the forward pass.
        optimizer: updates the trained parameters.
        precision: "fp32", "tf32" or "amp_fp16" (autocast and a gradient scaler).
        clip_norm: the largest norm of the gradients.
    """
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp_fp16")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def step() -> None:
        # Before torch 2, gradients were filled with zeros and added to, not allocated anew.
        optimizer.zero_grad(set_to_none=False)
        with float32_products(precision):
            with torch.autocast("cuda", torch.float16, enabled=precision == "amp_fp16"):
                value = loss()
            scaler.scale(value).backward()
            if clip_norm is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, clip_norm)
            scaler.step(optimizer)
            scaler.update()

    return step


def half_step(
    model: nn.Module, loss: Callable[[], Tensor], *, clip_norm: float | None = None
) -> Step:
    """Apex's level O2: a float16 model, and float32 master weights that a fused Adam updates.

    Args:
        model: the model, on the GPU.
        loss: runs the forward pass of the model.
        clip_norm: the largest norm of the gradients.
    """
    model.half()
    weights = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float() for p in weights]
    optimizer = torch.optim.Adam(masters, fused=True)

    def update() -> None:
        gradients = [p.grad.float() for p in weights]
        torch._foreach_mul_(gradients, 1 / 1024)
        norm = nn.utils.get_total_norm(gradients)
        norm.item()  # dynamic loss scaling checks that all gradients are finite
        if clip_norm is not None:
            torch._foreach_mul_(gradients, torch.clamp(clip_norm / norm, max=1.0))
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient
        optimizer.step()
        torch._foreach_copy_(weights, masters)

    def step() -> None:
        for weight in weights:
            weight.grad = None
        (loss().float() * 1024).backward()
        with torch.no_grad():
            update()

    return step


class LoopedAdam(torch.optim.Optimizer):
    """Adam with weight decay as in the first BERT of PyTorch.

    NVIDIA's SQuAD script uses it in float32. It updates one parameter after the other, one op at
    a time, and clips each gradient by itself.

    `old` is torch before 1.10: clipping synchronises for each norm to see whether it is too large.
    The norm of a single weight's gradient rarely is, so no scaling follows (clip_grad.py).
    """

    def __init__(self, parameters: Any, lr: float = 3e-5, *, old: bool = False) -> None:
        super().__init__(parameters, {"lr": lr})
        self.old = old

    def step(self, closure: Any = None) -> None:
        """Update all weights."""
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    self._update(weight, group["lr"])

    def _update(self, weight: Tensor, lr: float) -> None:
        state = self.state[weight]
        if not state:
            state["mean"] = torch.zeros_like(weight)
            state["square"] = torch.zeros_like(weight)
        if self.old:
            torch.linalg.vector_norm(weight.grad).item()
        else:
            nn.utils.clip_grad_norm_(weight, 1.0, foreach=False)
        mean, square = state["mean"], state["square"]
        mean.mul_(0.9).add_(weight.grad, alpha=0.1)
        square.mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
        update = mean / (square.sqrt() + 1e-6)
        update += 0.01 * weight
        weight.add_(-lr * update)


def copy_biases(model: nn.Module) -> nn.Module:
    """Make linear layers run as before torch 1.11.

    The bias is copied into every row of the output, and the product is added to it (Blas.cpp).
    Later releases let cuBLASLt add the bias at the end of the product.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            layer.forward = partial(_added_to_bias, layer)
    return model


def _added_to_bias(layer: nn.Linear, x: Tensor) -> Tensor:
    rows = x.flatten(0, -2)
    place = layer.bias.expand(len(rows), -1).contiguous()
    return torch.addmm(place, rows, layer.weight.t()).unflatten(0, x.shape[:-1])


def add_biases_apart(model: nn.Module) -> nn.Module:
    """Make BERT's intermediate layers add their bias in a separate pass.

    NVIDIA's code does this in training (`bias_gelu_training` in its modeling.py).
    """
    for layer in model.modules():
        if hasattr(layer, "intermediate_act_fn"):
            layer.forward = partial(_biased_apart, layer)
    return model


def _biased_apart(layer: Any, x: Tensor) -> Tensor:
    activated: Tensor = layer.intermediate_act_fn(
        layer.dense.bias + nn.functional.linear(x, layer.dense.weight)
    )
    return activated


def smoothed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of NVIDIA's classifiers."""
    return nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
