import torch
from accelerate_loop import small_model


def make_step():
    """Accelerate returns results in float32 and moves the next batch ahead."""
    model = small_model().cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    ids, labels = torch.randint(0, 30000, (16, 96)), torch.randint(0, 2, (16,))
    mask = torch.ones_like(ids)
    ahead = [(ids.cuda(), mask.cuda(), labels.cuda())]

    def step():
        for half in range(2):
            batch = ahead.pop()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = model(input_ids=batch[0], attention_mask=batch[1], labels=batch[2])
            out.logits.float()
            (out.loss.float() / 2).backward()
            if half == 0:
                ahead.append((ids.cuda(), mask.cuda(), labels.cuda()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ahead.append((ids.cuda(), mask.cuda(), labels.cuda()))

    return step
