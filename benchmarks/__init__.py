"""How good and how fast we are: one command each, run on demand."""
