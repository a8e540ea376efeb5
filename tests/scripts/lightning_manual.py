"""Trains the small model of Lightning's demos that calls its optimizer itself."""

from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import ManualOptimBoringModel

Trainer(accelerator="gpu", devices=1, max_epochs=1, precision="16-mixed").fit(
    ManualOptimBoringModel()
)
