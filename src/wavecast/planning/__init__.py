"""Planning: the price of training on cloud GPUs."""
