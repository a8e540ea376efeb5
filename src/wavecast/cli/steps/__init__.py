"""Commands about a training step."""
