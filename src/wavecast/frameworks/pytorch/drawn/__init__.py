"""Layers of networks with random sizes, which a sweep measures."""
