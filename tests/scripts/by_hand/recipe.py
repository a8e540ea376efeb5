import torch
from recipe import Decoder
from torch import nn


def make_step():
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Decoder(16000, 256, 4, 4)
    torch.set_default_dtype(torch.float32)
    model.checkpointing = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    tokens, targets = torch.randint(1, 16000, (4, 256)), torch.randint(1, 16000, (4, 256))

    def step():
        optimizer.zero_grad(set_to_none=True)
        running, count = 0, 0
        for _ in range(2):
            batch, labels = tokens.cuda(), targets.cuda()
            count = count + (labels != -100).sum()
            logits = model(batch)
            logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
            loss = nn.functional.cross_entropy(
                logits.view(-1, 16000), labels.view(-1), reduction="sum", ignore_index=-100
            )
            running = running + loss.detach()
            loss.backward()
        for p in model.parameters():
            p.grad *= 1 / count
        optimizer.step()
        running.item(), count.item()

    return step
