"""REINFORCE with a learned baseline: 64 environments on the processor, 32 steps an update."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Poles:
    """Many cart poles at once, in numpy."""

    def __init__(self, count):
        self.state = np.random.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, action):
        x, v, angle, spin = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        pull = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turn = (9.8 * np.sin(angle) - np.cos(angle) * pull) / (
            0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        )
        push = pull - 0.05 * turn * np.cos(angle) / 1.1
        new = np.stack([x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn], 1)
        fallen = (np.abs(new[:, 0]) > 2.4) | (np.abs(new[:, 2]) > 0.21)
        new[fallen] = np.random.uniform(-0.05, 0.05, (fallen.sum(), 4))
        self.state = new.astype(np.float32)
        return self.state, np.where(fallen, 0.0, 1.0).astype(np.float32)


class Policy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.actor, self.critic = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, x):
        x = self.body(x)
        return Categorical(logits=self.actor(x)), self.critic(x).squeeze(-1)


def main():
    device = torch.device("cuda")
    poles = Poles(64)
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    state = poles.state
    for update in range(1000):
        logs, values, rewards = [], [], []
        for _ in range(32):
            chosen, value = policy(torch.from_numpy(state).to(device))
            action = chosen.sample()
            logs.append(chosen.log_prob(action))
            values.append(value)
            state, reward = poles.step(action.cpu().numpy())
            rewards.append(torch.from_numpy(reward))
        returns, total = [], torch.zeros(64)
        for reward in reversed(rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        returns = torch.stack(returns).to(device)
        logs, values = torch.stack(logs), torch.stack(values)
        advantage = returns - values.detach()
        loss = -(logs * advantage).mean() + nn.functional.smooth_l1_loss(values, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0:
            print(update, returns.mean().item())


if __name__ == "__main__":
    main()
