"""ResNet-50 as a LightningModule, bf16-mixed, with two workers that load images."""

import pytorch_lightning as pl
import torch
from resnet import resnet50
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count):
        self.pool = torch.rand(64, 3, 224, 224)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.pool[i % 64], i % 10


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = resnet50(10)

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    loader = DataLoader(Images(20_000), 64, shuffle=True, num_workers=2, pin_memory=True)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)
