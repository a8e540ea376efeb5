"""Steps that call torch.compile: what the compiler would run on the GPU, found without one."""
