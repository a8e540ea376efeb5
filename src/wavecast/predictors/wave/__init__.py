"""Wave scaling: kernels measured on one GPU, scaled to another (Habitat, Yu et al., ATC 2021).

A GPU runs the blocks of a kernel in waves of W = (blocks that fit on one SM) x (SMs). Waves of the
same kernel differ between GPUs by memory bandwidth D, clock C and size W. Gamma is the share of
their time that is memory. Predictions use Eq. 2, as the paper does (section 3.3). Decisions that
the paper leaves open rest on `python -m lab score wave` and are documented where they are taken.
"""

from wavecast.predictors.wave.counters import kernels_that_matter
from wavecast.predictors.wave.scaler import SOURCE, WaveScaling

__all__ = ["SOURCE", "WaveScaling", "kernels_that_matter"]
