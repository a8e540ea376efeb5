import torch
from lightning_module import AutoEncoder
from torch import nn


def make_step():
    """Lightning copies the loss for its logs, and reads it for its progress bar."""
    model = AutoEncoder().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.rand(128, 1, 28, 28)

    def step():
        x = data.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), x)
            logged = loss.detach().clone().squeeze()
        shown = logged.clone()
        scaled = loss / 1
        kept = scaled.detach().clone()
        optimizer.zero_grad()
        scaled.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        shown.item(), kept.item()

    return step
