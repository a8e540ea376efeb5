"""Training steps that the lab traces and runs."""
