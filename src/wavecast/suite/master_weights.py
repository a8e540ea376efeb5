"""An optimizer of weights in 16 bits, as frameworks for large models have it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

BETAS, DECAY = (0.9, 0.95), 0.1
"""The settings of AdamW (Touvron et al. 2023, section 2.3)."""


class MasterWeights(torch.optim.Optimizer):
    """AdamW on float32 copies of 16-bit weights, with gradients clipped to a norm of 1.

    Gradients in bfloat16 are added to float32 ones (`main_grad`, Megatron's name for them) as soon
    as they are made. Those in float16 are added up in float16 and widened before the update, and
    are scaled.
    """

    def __init__(self, weights: Iterable[nn.Parameter], learning_rate: float) -> None:
        super().__init__(weights, {"lr": learning_rate})
        self.weights: list[nn.Parameter] = self.param_groups[0]["params"]
        half = self.weights[0].dtype is torch.float16
        self.scale = 2.0**16 if half else 1.0
        for weight in self.weights:
            self.state[weight] = {
                "master": weight.detach().float(),
                "exp_avg": torch.zeros_like(weight, dtype=torch.float32),
                "exp_avg_sq": torch.zeros_like(weight, dtype=torch.float32),
                "step": torch.zeros((), device=weight.device),
            }
            if half:
                self.state[weight]["gradient"] = torch.zeros_like(weight, dtype=torch.float32)
            else:
                weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
                weight.register_post_accumulate_grad_hook(_widen)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the 16-bit gradients. The float32 ones are zero since the last update."""
        for weight in self.weights:
            weight.grad = None

    def step(self, closure: Any = None) -> None:
        """Clip the gradients, update the copies, and round them to the weights."""
        with torch.no_grad():
            self._update()

    def _update(self) -> None:
        made: list[Any]
        if self.scale == 1:
            made = gradients = [weight.main_grad for weight in self.weights]
        else:
            made, gradients = [w.grad for w in self.weights], self._listed("gradient")
            torch._foreach_copy_(gradients, made)
        norm = nn.utils.get_total_norm(made) / self.scale
        torch._foreach_mul_(gradients, (1 / (norm + 1e-6)).clamp(max=1.0) / self.scale)
        steps = self._listed("step")
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            self._listed("master"),
            gradients,
            self._listed("exp_avg"),
            self._listed("exp_avg_sq"),
            [],
            steps,
            lr=self.param_groups[0]["lr"],
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=DECAY,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        torch._foreach_copy_(self.weights, self._listed("master"))
        if self.scale == 1:
            torch._foreach_zero_(gradients)

    def _listed(self, name: str) -> list[Tensor]:
        return [self.state[weight][name] for weight in self.weights]


def _widen(weight: Any) -> None:
    weight.main_grad.add_(weight.grad)
    weight.grad = None
