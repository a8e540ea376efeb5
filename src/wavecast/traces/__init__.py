"""One training step as data: its ops, kernels and memory, and the files that hold them."""
