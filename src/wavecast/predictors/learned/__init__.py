"""Physics of each kind of op, times a learned efficiency within bounds."""

from wavecast.predictors.learned.predictor import Learned

__all__ = ["Learned"]
