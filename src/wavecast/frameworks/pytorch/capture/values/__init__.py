"""Real values that user code reads, among tensors that have none."""
