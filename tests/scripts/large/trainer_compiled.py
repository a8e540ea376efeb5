"""Trains GPT-2 with the Trainer and torch_compile=True."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count, length):
        self.ids = torch.randint(0, 50257, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


if __name__ == "__main__":
    args = TrainingArguments(
        output_dir="gpt2",
        per_device_train_batch_size=8,
        bf16=True,
        torch_compile=True,
        max_steps=500,
        report_to="none",
    )
    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    Trainer(model, args, train_dataset=Blocks(800, 512)).train()
