"""Trains GPT-2 with Accelerate: bf16, two micro-batches a step, clipping, a cosine schedule."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup


def main():
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    torch.manual_seed(0)
    data = DataLoader(
        torch.randint(0, 50257, (2000, 1024)), batch_size=8, shuffle=True, drop_last=True
    )
    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, 1000)
    model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
    model.train()
    for epoch in range(3):
        for step, ids in enumerate(data):
            with accelerator.accumulate(model):
                loss = model(input_ids=ids, labels=ids).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step % 100 == 99:
                accelerator.print(epoch, step, loss.item())


if __name__ == "__main__":
    main()
