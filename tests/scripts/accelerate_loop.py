"""A training loop with Accelerate: bf16, accumulation, a scheduler, and evaluation with gather."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    get_linear_schedule_with_warmup,
)


def small_model():
    return DistilBertForSequenceClassification(
        DistilBertConfig(dim=256, hidden_dim=1024, n_layers=3, n_heads=4)
    )


def get_dataloaders(batch_size):
    def data(count):
        ids = torch.randint(0, 30000, (count, 96))
        return TensorDataset(ids, torch.ones_like(ids), torch.arange(count) % 2)

    return (
        DataLoader(data(256), shuffle=True, batch_size=batch_size, drop_last=True),
        DataLoader(data(64), shuffle=False, batch_size=32),
    )


def training_function(config, args):
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
    )
    set_seed(config["seed"])
    train_dataloader, eval_dataloader = get_dataloaders(config["batch_size"])
    model = small_model()
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=100,
        num_training_steps=len(train_dataloader) * config["num_epochs"],
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for ids, mask, labels in train_dataloader:
            with accelerator.accumulate(model):
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for ids, mask, labels in eval_dataloader:
            with torch.no_grad():
                outputs = model(input_ids=ids, attention_mask=mask)
            predictions = outputs.logits.argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, labels))
            right += (predictions == references).sum().item()
        accelerator.print(f"epoch {epoch}: {right}")
        accelerator.save_state("checkpoints")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    args = parser.parse_args()
    config = {"lr": 2e-5, "num_epochs": 3, "seed": 42, "batch_size": 16}
    training_function(config, args)


if __name__ == "__main__":
    main()
