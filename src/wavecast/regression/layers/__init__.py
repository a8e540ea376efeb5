"""Per-layer models: the time of a network as the sum of its layers (Gianniti et al.)."""
