"""Fine-tunes a BERT classifier with the Trainer of Hugging Face."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(torch.utils.data.Dataset):
    def __init__(self, count, length=128):
        self.texts = torch.randint(1000, 30000, (count, length)).tolist()
        self.labels = [i % 2 for i in range(count)]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.texts[i],
            "attention_mask": [1] * len(self.texts[i]),
            "labels": self.labels[i],
        }


def small_bert():
    return BertForSequenceClassification(
        BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_labels=2)
    )


if __name__ == "__main__":
    args = TrainingArguments(
        output_dir="results",
        num_train_epochs=3,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        warmup_steps=500,
        weight_decay=0.01,
        logging_steps=10,
        report_to="none",
    )
    trainer = Trainer(
        model=small_bert(), args=args, train_dataset=Reviews(320), eval_dataset=Reviews(64)
    )
    trainer.train()
    trainer.save_model("results/final")
