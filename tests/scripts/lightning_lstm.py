"""Trains the LSTM of Lightning's demos on data/wikitext-2.txt."""

from pytorch_lightning import Trainer
from pytorch_lightning.demos.lstm import LightningLSTM

trainer = Trainer(accelerator="gpu", devices=1, max_epochs=1, gradient_clip_val=0.25)
trainer.fit(LightningLSTM())
