"""What one training step does, as data: its ops, kernels, memory and files."""
