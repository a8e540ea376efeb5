"""Models fitted on past measurements of layers and of whole runs, and which runs to make.

`per_layer` predicts networks from timed layers, `end_to_end` runs from runs, and `extrapolation`
runs on GPUs, numbers of GPUs, depths and batches that were never tried. `design` chooses the runs
that are worth their cost.
"""
