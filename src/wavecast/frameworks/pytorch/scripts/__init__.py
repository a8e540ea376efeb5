"""Training scripts, run unchanged on a machine without a GPU until their step repeats itself."""
