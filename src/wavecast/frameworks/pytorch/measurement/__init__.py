"""Measuring a training step on the real GPU of this machine."""
