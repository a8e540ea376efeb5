"""An autoencoder as a LightningModule, with validation, logging, checkpoints and early stopping."""

import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Data(LightningDataModule):
    def __init__(self, batch_size=128):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        whole = TensorDataset(torch.rand(2000, 1, 28, 28))
        self.train, self.val = random_split(whole, [1600, 400])

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, num_workers=2)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size, num_workers=2)


class AutoEncoder(LightningModule):
    def __init__(self, width=512, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 32)
        )
        self.decoder = nn.Sequential(
            nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 784), nn.Unflatten(1, (1, 28, 28))
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self(x), x)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", nn.functional.mse_loss(self(x), x))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main():
    seed_everything(7)
    trainer = Trainer(
        max_epochs=10,
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        gradient_clip_val=0.5,
        val_check_interval=0.5,
        log_every_n_steps=5,
        logger=CSVLogger("logs"),
        callbacks=[
            ModelCheckpoint(monitor="val_loss", save_last=True),
            EarlyStopping(monitor="val_loss"),
            LearningRateMonitor(),
        ],
    )
    trainer.fit(AutoEncoder(), datamodule=Data())


if __name__ == "__main__":
    main()
