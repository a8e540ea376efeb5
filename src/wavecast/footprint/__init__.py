"""The GPU memory of a training step: how much, of what kind, and whether it fits."""
