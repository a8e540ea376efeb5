"""Trains a small GPT-2 with the Trainer: bf16, accumulation, checkpointing, evaluation, saving."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count, length):
        self.count, self.length = count, length

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        ids = torch.randint(0, 50257, (self.length,))
        return {"input_ids": ids, "labels": ids.clone()}


def small_gpt2():
    return GPT2LMHeadModel(GPT2Config(n_embd=256, n_layer=4, n_head=4, use_cache=False))


def main():
    set_seed(42)
    args = TrainingArguments(
        output_dir="gpt2-small",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        bf16=True,
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        max_steps=1000,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
    )
    trainer = Trainer(
        model=small_gpt2(),
        args=args,
        train_dataset=Blocks(640, 256),
        eval_dataset=Blocks(32, 256),
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
