import torch
from torch import nn


def make_step():
    """The whole of `training_step` runs under autocast, so the backward pass and the update do."""
    model = nn.Linear(32, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    data = torch.randn(1, 32)

    def step():
        batch = data.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(batch)
            loss = nn.functional.mse_loss(output, torch.ones_like(output))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step
