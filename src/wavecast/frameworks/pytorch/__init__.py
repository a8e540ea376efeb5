"""PyTorch: a training step traced on fake tensors, or measured on a real GPU, as a Trace."""
