"""Habitat's MLPs: one network for each of the four layers whose kernels vary between GPUs."""

from wavecast.predictors.mlp.predictor import Mlp

__all__ = ["Mlp"]
