"""Tiny trainings with real trainers on the CPU, for the tests of callbacks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any


def train_gpt(transformers: Any, folder: Path, callbacks: list[Any], **options: Any) -> Any:
    """Train a tiny GPT-2 with Hugging Face's Trainer, and return the Trainer."""
    import torch

    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )
    data = [{"input_ids": torch.randint(64, (16,))} for _ in range(64)]
    for sample in data:
        sample["labels"] = sample["input_ids"]
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 12,
        "logging_steps": 4,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    arguments = transformers.TrainingArguments(output_dir=str(folder / "out"), **usual | options)
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        arguments,
        train_dataset=data,
        eval_dataset=data[:8],
        callbacks=callbacks,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's and transformers' own
        trainer.train()
    return trainer


def lightning_module(lightning: Any, **options: Any) -> Any:
    """A tiny network with dropout that logs its loss."""
    import torch

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)
            )
            for name, value in options.items():
                setattr(self, name, value)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.layers(batch[0]).square().mean()
            self.log("loss", loss)
            if not self.automatic_optimization:
                self.manual_backward(loss)
            return {"loss": loss}

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("checked", self.layers(batch[0]).mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5)]

    return Net()


def train_net(lightning: Any, folder: Path, callbacks: list[Any], **options: Any) -> Any:
    """Train the tiny network with Lightning's Trainer, and return the Trainer."""
    import torch

    lightning.seed_everything(0)
    module = options.pop("module", None) or lightning_module(lightning)
    samples = torch.utils.data.TensorDataset(torch.randn(80, 4))
    loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)
    usual: dict[str, Any] = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": folder,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(callbacks=callbacks, **usual | options)
        trainer.fit(module, loader, loader)
    return trainer
