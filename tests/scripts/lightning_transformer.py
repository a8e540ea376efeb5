"""Trains the transformer of Lightning's demos on data/wikitext-2.txt."""

from pytorch_lightning import Trainer
from pytorch_lightning.demos.transformer import LightningTransformer

if __name__ == "__main__":
    Trainer(accelerator="gpu", devices=1, max_epochs=1).fit(LightningTransformer())
