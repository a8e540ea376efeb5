"""Fine-tunes BERT base with the Trainer of Hugging Face, as its tutorials do."""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __init__(self, count, length):
        self.ids = torch.randint(1000, 30000, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": i % 2}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    args = TrainingArguments(
        output_dir="results",
        per_device_train_batch_size=options.batch,
        bf16=options.bf16,
        num_train_epochs=3,
        learning_rate=2e-5,
        weight_decay=0.01,
        report_to="none",
    )
    model = BertForSequenceClassification(BertConfig(num_labels=2))
    Trainer(model, args, train_dataset=Texts(40 * options.batch, options.length)).train()
