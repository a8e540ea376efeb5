"""Readers of what was measured: `measurements/` and the public tables."""
