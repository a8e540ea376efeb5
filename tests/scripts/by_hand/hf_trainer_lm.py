import torch
from hf_trainer_lm import small_gpt2


def make_step():
    """The Trainer draws four batches, counts their labels, and filters and logs the loss."""
    model = small_gpt2().cuda()
    model.gradient_checkpointing_enable()
    model.train()
    named = list(model.named_parameters())
    plain = [p for n, p in named if "bias" in n or "ln_" in n]
    decayed = [p for n, p in named if not ("bias" in n or "ln_" in n)]
    groups = [{"params": decayed, "weight_decay": 0.0}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-4, fused=True)
    ids = torch.randint(0, 50257, (4, 256))
    total = torch.zeros((), device="cuda")

    def step():
        batches = [(ids.cuda(), ids.clone().cuda()) for _ in range(4)]
        count = sum(labels.ne(-100).sum() for _, labels in batches) // 1
        for tokens, labels in batches:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = model(input_ids=tokens, labels=labels, num_items_in_batch=count)
            out.logits.float()
            loss = out.loss
            loss *= 1
            (loss / 1).backward()
            detached = loss.detach()
            if detached.isnan() or detached.isinf():
                raise ValueError("the loss is not a number")
            total.add_(detached)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total.mean().item(), norm.item()
        total.sub_(total)

    return step
