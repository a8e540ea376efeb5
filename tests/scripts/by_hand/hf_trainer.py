import torch
from hf_trainer import small_bert


def make_step():
    """The Trainer counts the labels, filters losses that are no number, and moves a batch ahead."""
    model = small_bert().cuda()
    model.train()
    named = list(model.named_parameters())
    plain = [p for n, p in named if "bias" in n or "LayerNorm" in n]
    decayed = [p for n, p in named if not ("bias" in n or "LayerNorm" in n)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-5, fused=True)
    batch = {
        "input_ids": torch.randint(1000, 30000, (16, 128)),
        "attention_mask": torch.ones(16, 128, dtype=torch.int64),
        "labels": torch.randint(0, 2, (16,)),
    }
    ahead = [{name: value.cuda() for name, value in batch.items()}]
    total = torch.zeros((), device="cuda")

    def step():
        inputs = ahead.pop()
        (0 + inputs["labels"].ne(-100).sum()) // 1
        loss = model(**inputs).loss
        loss *= 1
        (loss / 1).backward()
        detached = loss.detach()
        if detached.isnan() or detached.isinf():
            raise ValueError("the loss is not a number")
        total.add_(detached)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ahead.append({name: value.cuda() for name, value in batch.items()})

    return step
