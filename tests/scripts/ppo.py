"""Proximal policy optimization: a rollout without gradients, then epochs of minibatch updates."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn, optim
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    num_envs: int = 8
    num_steps: int = 32
    minibatches: int = 4
    update_epochs: int = 2
    total_timesteps: int = 100_000
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2


class Envs:
    """Environments that return random observations."""

    def __init__(self, count):
        self.count, self.rng = count, np.random.default_rng(1)

    def reset(self):
        return self.rng.standard_normal((self.count, 64), dtype=np.float32)

    def step(self, action):
        assert action.shape == (self.count,)
        reward = self.rng.standard_normal(self.count, dtype=np.float32)
        return self.reset(), reward, self.rng.random(self.count) < 0.01


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()

        def network(outputs, std):
            return nn.Sequential(
                layer_init(nn.Linear(64, 256)),
                nn.Tanh(),
                layer_init(nn.Linear(256, 256)),
                nn.Tanh(),
                layer_init(nn.Linear(256, outputs), std=std),
            )

        self.critic, self.actor = network(1, 1.0), network(6, 0.01)

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def loss_of(agent, obs, actions, logprobs, advantages, returns, clip):
    _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs, actions.long())
    ratio = (newlogprob - logprobs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * torch.clamp(ratio, 1 - clip, 1 + clip)
    pg_loss = torch.max(pg_loss1, pg_loss2).mean()
    v_loss = 0.5 * ((newvalue.view(-1) - returns) ** 2).mean()
    return pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss


def main():
    args = Args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs = Envs(args.num_envs)
    agent = Agent().to(device)
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    shape = args.num_steps, args.num_envs
    obs = torch.zeros((*shape, 64)).to(device)
    actions, logprobs, rewards, dones, values = (torch.zeros(shape).to(device) for _ in range(5))
    next_obs = torch.Tensor(envs.reset()).to(device)
    next_done = torch.zeros(args.num_envs).to(device)
    batch = args.num_steps * args.num_envs
    start = time.time()
    for update in range(1, args.total_timesteps // batch + 1):
        for step in range(args.num_steps):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            next_obs, reward, done = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs = torch.Tensor(next_obs).to(device)
            next_done = torch.Tensor(done).to(device)
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards).to(device)
            lastgaelam = 0
            for t in reversed(range(args.num_steps)):
                last = t == args.num_steps - 1
                nextnonterminal = 1.0 - (next_done if last else dones[t + 1])
                nextvalues = next_value if last else values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
                advantages[t] = lastgaelam
            returns = advantages + values
        b_obs = obs.reshape(-1, 64)
        flat = [t.reshape(-1) for t in (actions, logprobs, advantages, returns)]
        inds = np.arange(batch)
        for _ in range(args.update_epochs):
            np.random.shuffle(inds)
            for begin in range(0, batch, batch // args.minibatches):
                mb = inds[begin : begin + batch // args.minibatches]
                loss = loss_of(agent, b_obs[mb], *(t[mb] for t in flat), args.clip_coef)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print("SPS:", int(update * batch / (time.time() - start)), "loss", loss.item())


if __name__ == "__main__":
    main()
