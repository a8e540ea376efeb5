"""Measurements on this machine's GPU: steps, layers, memory, the GPU's and the host's speed."""
