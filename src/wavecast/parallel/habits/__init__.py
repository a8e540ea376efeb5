"""What frameworks run in other ways than plain PyTorch, as changes to a rank's step."""
