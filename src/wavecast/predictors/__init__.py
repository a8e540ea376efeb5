"""Ways to predict the time of an op on a GPU: one file each."""
