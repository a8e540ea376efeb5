"""The time of a training step, from the times of its ops and the host that issues them."""
