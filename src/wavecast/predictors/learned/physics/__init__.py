"""Physics models: the time of each kind of op on a GPU, for many ops at once."""
