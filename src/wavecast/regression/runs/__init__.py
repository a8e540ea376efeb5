"""End-to-end models: the time of whole runs, by batch, iterations, GPUs and depth."""
