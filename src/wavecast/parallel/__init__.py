"""A training step spread over several GPUs: what each distinct group of ranks runs."""
