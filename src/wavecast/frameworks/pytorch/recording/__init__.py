"""The recorder of ops, values and memory, on fake tensors or on a real GPU."""
