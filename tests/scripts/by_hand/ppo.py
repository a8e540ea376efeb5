import numpy as np
import torch
from ppo import Agent, loss_of
from torch import nn


def make_step():
    """One update on a minibatch: most optimizer steps of the script have no rollout before them."""
    agent = Agent().cuda()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((256, 64)).cuda()
    flat = [torch.zeros(256).cuda() for _ in range(4)]
    mb = np.arange(64)

    def step():
        loss = loss_of(agent, obs[mb], *(t[mb] for t in flat), 0.2)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()

    return step
