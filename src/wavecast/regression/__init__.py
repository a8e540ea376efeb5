"""Models fitted to past measurements of layers and of whole runs, and the choice of new runs.

`per_layer` predicts the time of a network from timed layers. `end_to_end` predicts the time of a
run from past runs. `extrapolation` does so for GPUs, numbers of GPUs, depths and batches that no
past run had. `design` chooses the runs from which a model learns the most within a budget.
"""
