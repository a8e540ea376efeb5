"""Habitat's MLPs: one network for each of the four layers whose kernels vary."""
