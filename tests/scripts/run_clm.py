"""Causal language modelling on a text file, in the style of transformers' run_clm_no_trainer."""

import argparse
import json
import logging
import math
import os
import random
from itertools import chain
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    default_data_collator,
    get_scheduler,
)

logger = logging.getLogger(__name__)


def parse_args():
    parser = argparse.ArgumentParser(description="Train a causal language model on a text file")
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--model_type", default="llama")
    parser.add_argument("--config_overrides", default="")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--lr_scheduler_type", default="cosine")
    parser.add_argument("--num_warmup_steps", type=int, default=10)
    parser.add_argument("--block_size", type=int, default=128)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Blocks(Dataset):
    def __init__(self, text, size):
        ids = list(chain.from_iterable(line.encode() for line in text.splitlines(keepends=True)))
        count = len(ids) // size
        self.blocks = [ids[i * size : (i + 1) * size] for i in range(count)]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return {"input_ids": self.blocks[i], "labels": self.blocks[i]}


def main():
    args = parse_args()
    logging.basicConfig(format="%(asctime)s - %(levelname)s - %(message)s", level=logging.INFO)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    os.makedirs(args.output_dir, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = AutoConfig.for_model(args.model_type)
    config.update_from_string(args.config_overrides)
    model = AutoModelForCausalLM.from_config(config)
    dataset = Blocks(Path(args.train_file).read_text(), args.block_size)
    loader = DataLoader(
        dataset,
        shuffle=True,
        collate_fn=default_data_collator,
        batch_size=args.per_device_train_batch_size,
    )
    no_decay = ["bias", "norm.weight"]
    grouped = [
        {
            "params": [p for n, p in model.named_parameters() if not any(d in n for d in no_decay)],
            "weight_decay": args.weight_decay,
        },
        {
            "params": [p for n, p in model.named_parameters() if any(d in n for d in no_decay)],
            "weight_decay": 0.0,
        },
    ]
    model.to(device)
    optimizer = torch.optim.AdamW(grouped, lr=args.learning_rate)
    updates = math.ceil(len(loader) / args.gradient_accumulation_steps)
    scheduler = get_scheduler(
        name=args.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=args.num_warmup_steps,
        num_training_steps=args.num_train_epochs * updates,
    )
    logger.info("***** Running training *****")
    logger.info("  Num examples = %d", len(dataset))
    total_loss = 0.0
    for _ in range(args.num_train_epochs):
        model.train()
        for step, batch in enumerate(loader):
            batch = {k: v.to(device) for k, v in batch.items()}
            loss = model(**batch).loss / args.gradient_accumulation_steps
            total_loss += loss.detach().float()
            loss.backward()
            if step % args.gradient_accumulation_steps == 0 or step == len(loader) - 1:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    perplexity = math.exp(total_loss.item() / len(loader))
    model.save_pretrained(args.output_dir)
    Path(args.output_dir, "all_results.json").write_text(json.dumps({"perplexity": perplexity}))


if __name__ == "__main__":
    main()
