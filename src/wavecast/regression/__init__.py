"""Models fitted on what was measured: layers, runs, whole clusters; and which runs to make.

One file is one story: `per_layer` (times of layers), `end_to_end` (times of runs), `extrapolation`
(GPUs, counts, depths and batches nobody ran), `design` (which runs are worth their cost).
"""
