"""How the shipped fits came to be: one command each."""
