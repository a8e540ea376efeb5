"""JAX steps: lowered where they are written, compiled by XLA in a process of its own, and read."""
