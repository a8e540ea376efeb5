"""The GPU memory of a training step."""
