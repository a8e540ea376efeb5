"""Reinforcement learning: A3C, actors that learn a policy and a value."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep

_PICTURES = 4
"""An actor sees the last four pictures at once, so it can see what moves."""
_LIFE = 1000
"""The mean number of steps of an episode."""


def a3c(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 84,
    actions: int = 6,
    steps: int = 5,
    discount: float = 0.99,
    entropy_bonus: float = 0.01,
    learning_rate: float = 7e-4,
) -> TrainingStep:
    """A3C: a batch of actors takes five steps in its environments, then the network learns.

    Shared RMSProp, 5-step returns and the entropy bonus are those of Mnih et al.; gradients are
    clipped at 40; there are the six actions of Pong. In the paper, 16 actors update the shared
    weights asynchronously. Here they do it together, in one step, so that one GPU can run them all.
    They play `follow_the_light` on the device, so the time of Atari's emulator on the host is not
    in the step.

    The input of the step is the actors' pictures, (batch, 4, image, image) bytes, which every step
    updates. The throughput counts these frames, five per actor; TBD calls them samples.
    """
    model = ActorCritic(image, actions).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=learning_rate, alpha=0.99, eps=0.1)

    def loss(seen: Tensor) -> Tensor:
        frames, moments = seen, []
        for _ in range(steps):
            logits, value = model(frames)
            chances = logits.log_softmax(dim=-1)
            action = torch.multinomial(chances.detach().exp(), 1)
            frames, reward, alive = follow_the_light(frames, action.squeeze(1), actions)
            moments.append(Moment(chances, value, action, reward, alive))
        with torch.no_grad():
            seen.copy_(frames)
            _, expected = model(frames)
        return advantage_loss(moments, expected, discount, entropy_bonus)

    inputs = (torch.randint(256, (batch, _PICTURES, image, image), device=device).byte(),)
    clipped = Minimizer(loss, optimizer, precision, device, clip_norm=40.0)
    return TrainingStep(model, inputs, clipped)


class Moment(NamedTuple):
    """One step of all actors; `chances` are the log-probabilities of the actions."""

    chances: Tensor
    value: Tensor
    action: Tensor
    reward: Tensor
    alive: Tensor


def advantage_loss(
    moments: list[Moment], expected: Tensor, discount: float, bonus: float
) -> Tensor:
    """The loss of algorithm S3, with returns computed backwards from the last step's value."""
    gain, loss = expected, torch.zeros_like(expected)
    for chances, value, action, reward, alive in reversed(moments):
        gain = reward + discount * alive * gain
        advantage = gain - value
        chosen = chances.gather(1, action).squeeze(1)
        entropy = -(chances.exp() * chances).sum(dim=1)
        loss = loss - chosen * advantage.detach() - bonus * entropy + advantage.square()
    return loss.mean()


def follow_the_light(frames: Tensor, action: Tensor, actions: int) -> tuple[Tensor, Tensor, Tensor]:
    """The frames after an action, its reward (1 or 0), and whether the episode goes on (1 or 0).
    The newest picture has one band per action. The action whose band is lit is rewarded."""
    batch, _, image, _ = frames.shape
    bands = torch.arange(image, device=frames.device) * actions // image
    brightest = frames[:, -1, :, 0].argmax(dim=1)
    reward = (brightest * actions // image == action).float()
    lit = torch.randint(actions, (batch, 1), device=frames.device)
    picture = (bands == lit).byte()[:, None, :, None] * 255
    after = torch.cat([frames[:, 1:], picture.expand(-1, -1, -1, image)], dim=1)
    alive = (torch.rand(batch, device=frames.device) > 1 / _LIFE).float()
    return after, reward, alive


class ActorCritic(nn.Module):
    """The network of Mnih et al. 2016 without LSTM: two convolutions, a linear layer, two heads.

    With 4 pictures, of which s x s points are left after the convolutions (9 x 9 for 84 x 84
    pixels), and A actions, it has 16 · 257 + 32 · 257 + 256(32s² + 1) + 257(A + 1) parameters.
    """

    def __init__(self, image: int = 84, actions: int = 6) -> None:
        super().__init__()
        side = ((image - 8) // 4 - 1) // 2
        if side < 1:
            raise InvalidInput(f"the image must be at least 20 pixels wide, not {image}")
        self.body = nn.Sequential(
            nn.Conv2d(_PICTURES, 16, 8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(32 * side * side, 256),
            nn.ReLU(inplace=True),
        )
        self.policy = nn.Linear(256, actions)
        self.value = nn.Linear(256, 1)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes (batch, 4, image, image) -> logits (batch, actions) and values (batch,)."""
        x = self.body(frames.float() / 255)
        return self.policy(x), self.value(x).squeeze(1)
